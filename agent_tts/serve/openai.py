"""The types of OpenAI's speech API: requests, models, voices, errors. Values only."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from agent_tts import errors
from agent_tts.options import Sampling, SpeechOptions
from agent_tts.protocol.options import Strict, VoiceName, limits, option_model, sampling_of, speech_options
from agent_tts.speech.audio.files import FileFormat
from agent_tts.speech.routing import Routing
from agent_tts.voices import DESIGN


class VoiceRef(Strict):
    """A voice as an object."""

    id: VoiceName


class SpeechRequest(option_model(SpeechOptions, Sampling, without=["lead_ms"])):
    """The body of `POST /v1/audio/speech`. Unknown fields are errors, so that a misspelt setting is not ignored."""

    input: str = Field(min_length=1, pattern=r"\S", description="text to speak")
    model: str = Field("tts-1", **limits("model"), description="one of GET /v1/models, or with a language: tts-1-de")
    voice: VoiceName | VoiceRef | None = Field(
        None, description="a voice of GET /v1/audio/voices; default: the engine's"
    )
    response_format: FileFormat = "mp3"
    stream_format: Literal["audio", "sse"] = "audio"
    c2pa: bool = Field(False, description="with a signed C2PA manifest: wav, mp3 or flac, sent when it is complete")
    language: str | None = Field(
        None, **limits("language"), description="goes before the model's; default: the voice's"
    )
    normalize: bool | None = Field(None, description="say numbers, money and dates in words; default: the node's")
    stream: bool = Field(True, description="of vLLM-Omni: the answer is always sent while it is made")
    task_type: Literal["CustomVoice", "VoiceDesign", "Base"] | None = Field(None, description="of vLLM-Omni")

    def options(self, *, normalize: bool | None = None) -> SpeechOptions:
        """The engine's options, unpaced; `normalize` is the value if the request has none."""
        voice = self.voice.id if isinstance(self.voice, VoiceRef) else self.voice
        return speech_options(
            self,
            voice=DESIGN if voice is None and self.task_type == "VoiceDesign" else voice,
            language=self.language or "auto",
            normalize=normalize if self.normalize is None else self.normalize,
            sampling=sampling_of(self),
            lead_ms=None,
        )


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


class VoiceCard(BaseModel):
    """A voice. `aliases` are its other names: OpenAI's, and those of `voice_aliases`."""

    id: str  # the name; clients that list voices read this field
    name: str
    languages: list[str]
    description: str
    aliases: list[str]
    instructions: bool = False  # whether it obeys them


class VoiceList(BaseModel):
    """All voices, the default voice, and whether voices can be cloned from clips."""

    voices: list[VoiceCard]
    default: str
    clones: bool = False


def voice_list(routing: Routing, *, clones: bool = False) -> VoiceList:
    """Every voice that the node can speak."""
    aliases = routing.aliases()
    return VoiceList(
        voices=[
            VoiceCard(
                id=voice.name,
                name=voice.name,
                languages=list(voice.languages),
                description=voice.description,
                aliases=[alias for alias, name in aliases.items() if name == voice.name],
                instructions=routing.takes_instructions(voice.name),
            )
            for voice in routing.voices()
        ],
        default=routing.info.default_voice,
        clones=clones,
    )


ErrorKind = Literal["invalid_request_error", "authentication_error", "rate_limit_error", "server_error"]

# HTTP statuses whose class does not determine the type have it here.
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


_PARAMS: dict[type[errors.SpeechError], str] = {
    errors.TextTooLong: "input",
    errors.UnknownModel: "model",
    errors.UnknownVoice: "voice",
    errors.UnsupportedFormat: "response_format",
    errors.UnsupportedLanguage: "language",
}


def error_body(error: errors.SpeechError) -> dict[str, Any]:
    """The body of a response that is an error, with the field that caused it."""
    param = error.param if isinstance(error, errors.InvalidRequest) else _PARAMS.get(type(error))
    return status_body(error.status, error.message, error.code, param)


def status_body(status: int, message: str, code: str, param: str | None = None) -> dict[str, Any]:
    """The body of a response that is an error, for any HTTP status. See `ErrorBody`."""
    kind = _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def retry_headers(error: errors.SpeechError) -> dict[str, str]:
    """The headers that tell a client when to try again."""
    if error.retry_after_ms is None:
        return {}
    seconds = -(-error.retry_after_ms // 1_000)
    return {"Retry-After": str(seconds), "Retry-After-Ms": str(error.retry_after_ms)}
