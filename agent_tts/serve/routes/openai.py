"""The types of OpenAI's speech API: requests, models, voices, errors. Values only."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from agent_tts.errors import (
    InvalidRequest,
    SpeechError,
    TextTooLong,
    UnknownModel,
    UnknownVoice,
    UnsupportedFormat,
    UnsupportedLanguage,
)
from agent_tts.events import Sampling, SpeechOptions
from agent_tts.protocol.options import Strict, VoiceName, limits, option_model, sampling_of, speech_options
from agent_tts.protocol.validation import check_body
from agent_tts.speech.audio.files import FileFormat
from agent_tts.speech.routing import Routing

# ---------------------------------------------------------------- requests


class VoiceRef(Strict):
    """A voice as an object."""

    id: VoiceName


class SpeechRequest(option_model(SpeechOptions, Sampling, without=["lead_ms"])):  # type: ignore[misc]
    """The body of `POST /v1/audio/speech`. Unknown fields are errors, so that a misspelt setting is not ignored."""

    input: str = Field(min_length=1, pattern=r"\S", description="text to speak")
    model: str = Field("tts-1", **limits("model"), description="one of GET /v1/models, or with a language: tts-1-de")
    voice: VoiceName | VoiceRef | None = Field(
        None, description="a voice of GET /v1/audio/voices; default: the engine's"
    )
    response_format: FileFormat = "mp3"
    stream_format: Literal["audio", "sse"] = "audio"
    language: str | None = Field(
        None, **limits("language"), description="goes before the model's; default: the voice's"
    )
    normalize: bool | None = Field(None, description="say numbers, money and dates in words; default: the node's")

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON schema without references, to embed it in another document."""
        schema: dict[str, Any] = cls.model_json_schema()
        definitions = schema.pop("$defs")
        voice = schema["properties"]["voice"]
        voice["anyOf"] = [definitions[VoiceRef.__name__] if "$ref" in kind else kind for kind in voice["anyOf"]]
        return schema

    def options(self, *, normalize: bool = False) -> SpeechOptions:
        """The engine's options, unpaced; `normalize` is the value if the request has none."""
        return speech_options(
            self,
            voice=self.voice.id if isinstance(self.voice, VoiceRef) else self.voice,
            language=self.language or "auto",
            normalize=normalize if self.normalize is None else self.normalize,
            sampling=sampling_of(self),
            lead_ms=None,
        )


def parse(body: bytes, max_chars: int) -> SpeechRequest:
    """The request in a body.

    Raises:
        InvalidRequest, UnsupportedFormat, TextTooLong: what was wrong and what is allowed, without any of the text.
    """
    request: SpeechRequest = check_body(SpeechRequest, body, "input", max_chars)
    return request


# ---------------------------------------------------------------- models


class ModelCard(BaseModel):
    """A model."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "agent_tts"


class ModelList(BaseModel):
    """All models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


# ---------------------------------------------------------------- voices


class VoiceCard(BaseModel):
    """A voice. `aliases` are its other names, including OpenAI's."""

    id: str  # the name; clients that list voices read this field
    name: str
    languages: list[str]
    description: str
    aliases: list[str]


class VoiceList(BaseModel):
    """All voices, the default voice, and whether voices can be cloned from clips."""

    voices: list[VoiceCard]
    default: str
    clones: bool = False


def voice_list(routing: Routing, *, clones: bool = False) -> VoiceList:
    """Every voice that the node can speak."""
    aliases: dict[str, list[str]] = {}
    for alias, name in routing.info.aliases.items():
        aliases.setdefault(name, []).append(alias)
    return VoiceList(
        voices=[
            VoiceCard(
                id=voice.name,
                name=voice.name,
                languages=list(voice.languages),
                description=voice.description,
                aliases=aliases.get(voice.name, []),
            )
            for voice in routing.voices()
        ],
        default=routing.info.default_voice,
        clones=clones,
    )


# ---------------------------------------------------------------- errors


ErrorKind = Literal["invalid_request_error", "authentication_error", "rate_limit_error", "server_error"]

# By HTTP status, where the class of the status does not determine the type.
_KINDS: dict[int, ErrorKind] = {401: "authentication_error", 403: "authentication_error", 429: "rate_limit_error"}


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: ErrorKind
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """The body of every error response."""

    error: ErrorDetail

    @classmethod
    def of(cls, status: int, message: str, code: str, param: str | None = None) -> Self:
        """The body for an HTTP status."""
        kind = _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
        return cls(error=ErrorDetail(message=message, type=kind, param=param, code=code))

    @classmethod
    def of_error(cls, error: SpeechError) -> Self:
        """The body for an error, with the field that caused it."""
        param = error.param if isinstance(error, InvalidRequest) else _PARAMS.get(type(error))
        return cls.of(error.status, error.message, error.code, param)


_PARAMS: dict[type[SpeechError], str] = {
    TextTooLong: "input",
    UnknownModel: "model",
    UnknownVoice: "voice",
    UnsupportedFormat: "response_format",
    UnsupportedLanguage: "language",
}


# ---------------------------------------------------------------- server-sent events


class Usage(BaseModel):
    """Usage of a request. An input token is 4 bytes of text (an estimate), an output token is 80 ms of audio."""

    input_tokens: int
    output_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, text: str, frames: int) -> Usage:
        """The usage of a text whose audio has `frames` frames."""
        tokens = -(-len(text.encode()) // 4)
        return cls(input_tokens=tokens, output_tokens=frames, total_tokens=tokens + frames)


class AudioDelta(BaseModel):
    """The next bytes of the audio file."""

    type: Literal["speech.audio.delta"] = "speech.audio.delta"
    audio: str  # base64


class AudioDone(BaseModel):
    """The audio file is complete."""

    type: Literal["speech.audio.done"] = "speech.audio.done"
    usage: Usage


class AudioError(ErrorBody):
    """The audio file ends incomplete."""

    type: Literal["error"] = "error"


def server_sent(event: BaseModel) -> bytes:
    """One event of a `text/event-stream`."""
    return b"data: " + event.model_dump_json().encode() + b"\n\n"
