"""Messages of ElevenLabs' clients and to them, over WebSocket and HTTP. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import AliasChoices, Field

from agent_tts.errors import UnsupportedFormat
from agent_tts.events import SpeechOptions
from agent_tts.protocol.context import Word
from agent_tts.protocol.options import Lenient, limits
from agent_tts.protocol.v1 import MAX_ID

# Sent by clients whose user named no voice: Pipecat's class sends the first, LiveKit's the second.
PLACEHOLDER_VOICES = {"None", "hpp4J3VqNfWAUOO0d1Us"}

# What the names of ElevenLabs' own models begin with; they mean any model.
FOREIGN_MODELS = "eleven"

DEFAULT_FORMAT = "mp3_44100_128"
FORMATS = (
    *("mp3_22050_32", "mp3_24000_48", "mp3_44100", "mp3_44100_32", "mp3_44100_64", "mp3_44100_96", "mp3_44100_128"),
    *("mp3_44100_192", "pcm_8000", "pcm_16000", "pcm_22050", "pcm_24000", "pcm_32000", "pcm_44100", "pcm_48000"),
    *("ulaw_8000", "alaw_8000", "opus_48000_32", "opus_48000_64", "opus_48000_96", "opus_48000_128"),
    "opus_48000_192",
)

# Over HTTP only.
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
class AudioFormat:
    """An output format."""

    encoding: str
    sample_rate: int  # Hz
    bit_rate: int | None  # bits per second
    is_wav: bool
    content_type: str


class VoiceSettings(Lenient):
    """How to speak."""

    speed: float | None = Field(None, **limits("speed"))


class ElevenLabsQuery(Lenient, strict=False):
    """The query of a WebSocket: strings."""

    model_id: str | None = None
    language_code: str | None = None
    output_format: str = DEFAULT_FORMAT
    seed: int | None = Field(None, **limits("seed"))
    auto_mode: bool = False  # every text is a sentence or a phrase
    sync_alignment: bool = False

    def session(self, voice: str) -> dict[str, Any]:
        """The fields of `session.update`.

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


class ElevenLabsMessage(Lenient):
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


class ElevenLabsRequest(Lenient):
    """The body of an HTTP request."""

    text: str = Field(min_length=1, pattern=r"\S", description="text to speak")
    model_id: str | None = Field(None, max_length=256, description="ElevenLabs' own names mean any")
    language_code: str | None = Field(None, max_length=64, description="default: the voice's")
    voice_settings: VoiceSettings | None = None
    seed: int | None = Field(None, **limits("seed"))

    @property
    def speed(self) -> float:
        return (self.voice_settings.speed if self.voice_settings else None) or 1.0

    def options(self, voice: str) -> SpeechOptions:
        """The options of speech, unpaced."""
        return SpeechOptions(
            voice=voice_of(voice),
            language=self.language_code or "auto",
            seed=self.seed,
            speed=self.speed,
            lead_ms=None,
            model=model_of(self.model_id),
        )


def voice_of(voice_id: str) -> str | None:
    """The voice that a path names; None is the engine's default."""
    return None if voice_id in PLACEHOLDER_VOICES else voice_id


def model_of(model_id: str | None) -> str | None:
    """The model that a request names; None is any."""
    return None if model_id is None or model_id.startswith(FOREIGN_MODELS) else model_id


def output_of(output_format: str) -> dict[str, Any]:
    """`codec_rate` or `codec_rate_kbps` as fields of an `output`.

    Raises:
        UnsupportedFormat: says which formats there are.
    """
    audio = format_of(output_format, FORMATS)
    return {"encoding": audio.encoding, "sample_rate": audio.sample_rate, "bit_rate": audio.bit_rate}


def format_of(output_format: str, allowed: tuple[str, ...] = FILE_FORMATS) -> AudioFormat:
    """What an output format means.

    Raises:
        UnsupportedFormat: says which formats there are.
    """
    if output_format not in allowed:
        raise UnsupportedFormat(f"output_format is one of {', '.join(allowed)}")
    kind, rate, *kbps = output_format.split("_")
    bit_rate = int(kbps[0]) * 1_000 if kbps else None
    return AudioFormat(_ENCODINGS[kind], int(rate), bit_rate, kind == "wav", CONTENT_TYPES[kind])


@dataclass(frozen=True, slots=True)
class TimedCharacter:
    """A character of the text, in milliseconds from the first sample."""

    char: str
    start_ms: int
    end_ms: int


class CharacterTimes:
    """Spreads words over their characters: a word, a space, a word, a space.

    Any white space between words is told as one space, also after the last word: clients take it for the word's end.
    """

    def __init__(self) -> None:
        # End of the last character: later times are never before it.
        self.end_ms = 0

    def of(self, words: list[Word]) -> list[TimedCharacter]:
        """The characters of the next words; all characters of a word get the same duration."""
        told: list[TimedCharacter] = []
        for word in words:
            start = max(word.start_ms, self.end_ms)
            end = max(word.end_ms, start)
            text = word.word
            edges = [start + (end - start) * index // len(text) for index in range(len(text) + 1)]
            told += map(TimedCharacter, text, edges, edges[1:])
            told.append(TimedCharacter(" ", end, end))
            self.end_ms = end
        return told
