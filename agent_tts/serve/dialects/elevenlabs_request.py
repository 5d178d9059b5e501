"""What ElevenLabs' clients ask for, over every transport of theirs: fields in, fields of `agent_tts.v1` out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from agent_tts.errors import UnsupportedFormat
from agent_tts.events import SpeechOptions
from agent_tts.protocol.options import limits
from agent_tts.protocol.v1 import MAX_ID
from agent_tts.protocol.validation import body_error

# Voices that nobody has asked for: Pipecat's class names the first, LiveKit's the second when its user names none.
UNASKED_VOICES = {"None", "hpp4J3VqNfWAUOO0d1Us"}

# ElevenLabs' own models; a node speaks with its own.
FOREIGN_MODELS = "eleven"

DEFAULT_FORMAT = "mp3_44100_128"
FORMATS = (
    *("mp3_22050_32", "mp3_24000_48", "mp3_44100", "mp3_44100_32", "mp3_44100_64", "mp3_44100_96", "mp3_44100_128"),
    *("mp3_44100_192", "pcm_8000", "pcm_16000", "pcm_22050", "pcm_24000", "pcm_32000", "pcm_44100", "pcm_48000"),
    *("ulaw_8000", "alaw_8000", "opus_48000_32", "opus_48000_64", "opus_48000_96", "opus_48000_128"),
    "opus_48000_192",
)

# Over HTTP, for which it is a file.
WAV_FORMATS = tuple(f"wav_{rate}" for rate in (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000))
FILE_FORMATS = FORMATS + WAV_FORMATS

_ENCODINGS = {
    "mp3": "mp3",
    "pcm": "pcm_s16le",
    "wav": "pcm_s16le",
    "ulaw": "mulaw",
    "alaw": "alaw",
    "opus": "ogg_opus",
}
CONTENT_TYPES = {
    "mp3": "audio/mpeg",
    "pcm": "audio/pcm",
    "wav": "audio/wav",
    "ulaw": "audio/basic",
    "alaw": "audio/x-alaw-basic",
    "opus": "audio/ogg",
}


@dataclass(frozen=True, slots=True)
class File:
    """The audio of an HTTP response."""

    encoding: str
    sample_rate: int  # Hz
    bit_rate: int | None  # bits per second
    is_wav: bool
    content_type: str


class Fields(BaseModel):
    """Unknown fields are ignored: clients send many that only mean something to ElevenLabs' own models."""

    model_config = ConfigDict(frozen=True, strict=True, populate_by_name=True)


class VoiceSettings(Fields):
    """How to speak."""

    speed: float | None = Field(None, **limits("speed"))


class StreamQuery(BaseModel):
    """The query of a WebSocket: strings."""

    model_config = ConfigDict(frozen=True)

    model_id: str | None = None
    language_code: str | None = None
    output_format: str = DEFAULT_FORMAT
    seed: int | None = Field(None, **limits("seed"))
    auto_mode: bool = False  # every text is a sentence or a phrase
    sync_alignment: bool = False

    def session(self, voice: str) -> dict[str, Any]:
        """Fields of a `session.update`.

        Raises:
            UnsupportedFormat: there is no such format.
        """
        return {
            "voice": voice_of(voice),
            "model": model_of(self.model_id),
            "language": self.language_code or "auto",
            "seed": self.seed,
            "output": output_of(self.output_format),
        }


class StreamMessage(Fields):
    """A message on a WebSocket."""

    text: str | None = None
    context_id: str | None = Field(None, max_length=MAX_ID, validation_alias=AliasChoices("context_id", "contextId"))
    voice_settings: VoiceSettings | None = None
    flush: bool | None = None
    close_context: bool | None = None
    close_socket: bool | None = None

    @property
    def speed(self) -> float | None:
        return self.voice_settings.speed if self.voice_settings else None


class SpeechRequest(Fields):
    """The body of an HTTP request."""

    text: str = Field(min_length=1, pattern=r"\S", description="text to speak")
    model_id: str | None = Field(None, max_length=256, description="ElevenLabs' own names mean any")
    language_code: str | None = Field(None, max_length=64, description="default: the voice's")
    voice_settings: VoiceSettings | None = None
    seed: int | None = Field(None, **limits("seed"))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Its JSON schema, without references, so that it can stand anywhere in another document."""
        schema = cls.model_json_schema()
        settings = schema.pop("$defs")[VoiceSettings.__name__]
        schema["properties"]["voice_settings"]["anyOf"][0] = settings
        return schema

    @property
    def speed(self) -> float:
        return (self.voice_settings.speed if self.voice_settings else None) or 1.0

    def options(self, voice: str) -> SpeechOptions:
        """What of it concerns the engine; unpaced."""
        return SpeechOptions(
            voice=voice_of(voice),
            language=self.language_code or "auto",
            seed=self.seed,
            speed=self.speed,
            lead_ms=None,
            model=model_of(self.model_id),
        )


def parse_query(query: Mapping[str, str]) -> StreamQuery:
    """The query of a WebSocket.

    Raises:
        InvalidRequest: a parameter is not allowed.
    """
    try:
        return StreamQuery.model_validate(dict(query))
    except ValidationError as error:
        raise body_error(error, StreamQuery, spoken="text", depth=2) from None


def parse_message(fields: Mapping[str, Any]) -> StreamMessage:
    """A message of a WebSocket.

    Raises:
        InvalidRequest: a field is not allowed.
    """
    try:
        return StreamMessage.model_validate(fields)
    except ValidationError as error:
        raise body_error(error, StreamMessage, spoken="text", depth=2) from None


def parse_request(body: bytes) -> SpeechRequest:
    """The request in a body.

    Raises:
        InvalidRequest: what was wrong and what is allowed, without a word of the text.
    """
    try:
        return SpeechRequest.model_validate_json(body)
    except ValidationError as error:
        raise body_error(error, SpeechRequest, spoken="text", depth=2) from None


def voice_of(voice_id: str) -> str | None:
    """The voice that a path names; None is the engine's own."""
    return None if voice_id in UNASKED_VOICES else voice_id


def model_of(model_id: str | None) -> str | None:
    """The model that a request names; None is any."""
    return None if model_id is None or model_id.startswith(FOREIGN_MODELS) else model_id


def output_of(output_format: str) -> dict[str, Any]:
    """`codec_rate` or `codec_rate_kbps` as fields of an `output`.

    Raises:
        UnsupportedFormat: says which formats there are.
    """
    file = file_of(output_format, FORMATS)
    return {"encoding": file.encoding, "sample_rate": file.sample_rate, "bit_rate": file.bit_rate}


def file_of(output_format: str, allowed: tuple[str, ...] = FILE_FORMATS) -> File:
    """What an output format means.

    Raises:
        UnsupportedFormat: says which formats there are.
    """
    if output_format not in allowed:
        raise UnsupportedFormat(f"output_format is one of {', '.join(allowed)}")
    adapter, rate, *kbps = output_format.split("_")
    bit_rate = int(kbps[0]) * 1_000 if kbps else None
    return File(_ENCODINGS[adapter], int(rate), bit_rate, adapter == "wav", CONTENT_TYPES[adapter])
