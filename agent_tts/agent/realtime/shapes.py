"""The messages of OpenAI's Realtime API: what clients send, checked; errors; the names of its beta. Pure."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agent_tts.errors import InvalidRequest
from agent_tts.protocol.validation import first_complaint
from agent_tts.speech.audio.encoding import PcmEncoding

Event = dict[str, Any]  # one message of either side

MAX_EVENT_ID = 512  # characters; a longer one is not told again


class RealtimeError(InvalidRequest):
    """A refusal in OpenAI's form; the session goes on.

    Args:
        code: OpenAI's where it has one.
        param: the field that was wrong.
        retry_after_ms: when it may be taken; None: trying again does not help.
    """

    def __init__(self, code: str, message: str, param: str | None = None, retry_after_ms: int | None = None) -> None:
        super().__init__(message, param)
        self.openai_code, self.retry_after_ms = code, retry_after_ms
        self.event_id: object = None  # of a message that is not taken at all

    def event(self, event_id: object) -> Event:
        """The message that tells it; `event_id` is that of the client's message."""
        kind = "invalid_request_error" if self.retry_after_ms is None else "server_error"
        error = {"type": kind, "code": self.openai_code, "message": self.message, "param": self.param}
        known = isinstance(event_id, str) and len(event_id) <= MAX_EVENT_ID
        return {"type": "error", "error": {**error, **self.again, "event_id": event_id if known else None}}


class Shape(BaseModel):
    """Unknown fields are ignored: newer clients send them."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class RealtimeFormat(Shape):
    """pcm_s16le at 24 kHz, or G.711 at 8 kHz, mono."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: int | None = None

    @model_validator(mode="after")
    def _has_one_rate(self) -> RealtimeFormat:
        if self.rate not in (None, self.hz):
            raise ValueError(f"{self.type} has a rate of {self.hz}")
        return self

    @property
    def hz(self) -> int:
        """Samples per second."""
        return 24_000 if self.type == "audio/pcm" else 8_000

    @property
    def encoding(self) -> PcmEncoding:
        """The node's name of it."""
        return _ENCODINGS[self.type]

    def ms(self, size: int) -> float:
        """Milliseconds in `size` bytes."""
        return size * 1_000 / (self.hz * 2 if self.type == "audio/pcm" else self.hz)


_ENCODINGS: dict[str, PcmEncoding] = {"audio/pcm": "pcm_s16le", "audio/pcmu": "mulaw", "audio/pcma": "alaw"}


class Transcription(Shape):
    """Whether transcripts are sent. The node's own recogniser makes them, whatever is asked for."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None


class ServerVad(Shape):
    """A turn ends after a silence."""

    type: Literal["server_vad"]
    threshold: float = Field(0.5, ge=0, le=1)
    prefix_padding_ms: int = Field(300, ge=0, le=5_000)
    silence_duration_ms: int = Field(500, ge=50, le=10_000)
    create_response: bool = True
    interrupt_response: bool = True
    # An answer follows after so long a silence behind the last one.
    idle_timeout_ms: int | None = Field(None, ge=5_000, le=30_000)


class SemanticVad(Shape):
    """A turn ends when it sounds complete."""

    type: Literal["semantic_vad"]
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True


class AudioIn(Shape):
    format: RealtimeFormat = RealtimeFormat()
    transcription: Transcription | None = None
    turn_detection: Annotated[ServerVad | SemanticVad, Field(discriminator="type")] | None = ServerVad(
        type="server_vad"
    )


class AudioOut(Shape):
    format: RealtimeFormat = RealtimeFormat()
    voice: str | None = Field(None, max_length=200)
    speed: float = Field(1.0, ge=0.25, le=4)

    @field_validator("voice", mode="before")
    @classmethod
    def _by_id(cls, voice: object) -> object:
        return voice["id"] if isinstance(voice, dict) and isinstance(voice.get("id"), str) else voice


class AudioSettings(Shape):
    input: AudioIn = AudioIn()
    output: AudioOut = AudioOut()


class Tool(Shape):
    type: Literal["function"]
    name: str = Field(min_length=1, max_length=64)
    description: str = ""
    parameters: dict[str, Any] = {}


class SharedSettings(Shape):
    """What a session and a response share; a response's fields go before those of its session."""

    output_modalities: list[Literal["text", "audio"]] = Field(["audio"], min_length=1, max_length=2)
    instructions: str = ""
    tools: list[Tool] = Field([], max_length=128, fail_fast=True)
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] = "auto"
    max_output_tokens: Annotated[int, Field(ge=1)] | Literal["inf"] = "inf"
    audio: AudioSettings = AudioSettings()

    @property
    def speaks(self) -> bool:
        return "audio" in self.output_modalities


class SessionSettings(SharedSettings):
    type: Literal["realtime", "transcription"] = "realtime"
    model: str | None = None

    @property
    def responds(self) -> bool:
        """Whether it answers, not only transcribes."""
        return self.type == "realtime"

    def described(self, session_id: str) -> dict[str, Any]:
        """The session as clients get it."""
        found = self.model_dump() | {"object": "realtime.session", "id": session_id}
        for side in (found["audio"]["input"], found["audio"]["output"]):
            if side["format"]["type"] != "audio/pcm":
                del side["format"]["rate"]
            else:
                side["format"]["rate"] = 24_000
        found["audio"]["input"]["noise_reduction"] = None
        if self.responds:
            return found
        heard = {"type": self.type, "audio": {"input": found["audio"]["input"]}}
        return heard | {"object": "realtime.transcription_session", "id": session_id}


class Content(Shape):
    """One part of a message. A transcript stands for its audio."""

    type: Literal["input_text", "input_audio", "output_text", "output_audio"]
    text: str | None = None
    transcript: str | None = None
    audio: str | bytes | None = None  # bytes once it is decoded

    @field_validator("audio", mode="plain")
    @classmethod
    def _is_audio(cls, audio: object) -> object:
        if audio is not None and not isinstance(audio, str | bytes):
            raise ValueError("should be audio in base64")
        return audio


class NewItem(Shape):
    id: str | None = Field(None, min_length=1, max_length=64)
    type: Literal["message", "function_call", "function_call_output"]
    role: Literal["user", "assistant", "system"] | None = None
    content: list[Content] = Field([], fail_fast=True)
    call_id: str | None = Field(None, max_length=64)
    name: str | None = Field(None, max_length=64)
    arguments: str | None = None
    output: str | None = None


class ItemReference(Shape):
    type: Literal["item_reference"]
    id: str


AnyItem = Annotated[NewItem | ItemReference, Field(discriminator="type")]


class ResponseExtras(Shape):
    """The fields of `response.create` that a session has not."""

    conversation: Literal["auto", "none"] = "auto"
    metadata: dict[str, str] | None = None
    input: Annotated[list[AnyItem], Field(fail_fast=True)] | None = None


class CreateItem(Shape):
    item: NewItem
    previous_item_id: str | None = None


class ItemId(Shape):
    """`conversation.item.delete`, `conversation.item.retrieve`."""

    item_id: str


class Truncate(ItemId):
    content_index: int = Field(0, ge=0)
    audio_end_ms: int = Field(ge=0)


class AppendedAudio(Shape):
    audio: str


def checked(shape: type[Shape], fields: object, field: str = "") -> Any:
    """An instance of `shape`; raises `RealtimeError`, whose `param` is the path below `field`."""
    try:
        return shape.model_validate(fields)
    except ValidationError as error:
        complaint = first_complaint(error)
        path = ".".join([*filter(None, [field]), *complaint.path])
        missing = complaint.kind == "missing"
        code = "missing_required_parameter" if missing else "invalid_value"
        raise RealtimeError(code, f"{path or 'message'}: {complaint.reason}", path or None) from None


# Fields whose null is a value. Elsewhere null is a field that is not given.
_NULLABLE = frozenset({"turn_detection", "transcription", "idle_timeout_ms", "language", "prompt"})
# Objects that are merged; others are replaced.
_MERGED = frozenset({"audio", "input", "output", "turn_detection", "transcription"})


def merged(settings: SharedSettings, given: Mapping[str, Any], field: str) -> Any:
    """The settings with the fields that are given. Raises `RealtimeError`."""
    return checked(type(settings), _merge(settings.model_dump(), given), field)


def _merge(known: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        if value is None and name not in _NULLABLE:
            continue
        if name in _MERGED and isinstance(value, dict):
            before = known.get(name) or {}
            if name == "turn_detection":
                before = {"type": "server_vad"} | before
                # Another kind of detection begins with its own defaults; one without a kind changes the present one.
                before = before if value.get("type") in (None, before["type"]) else {}
            value = _merge(before, value)
        known[name] = value
    return known


def audio_of(sound: str | bytes) -> bytes:
    """Audio that `decode_audio` has decoded. Raises `RealtimeError` where it was not in base64."""
    if isinstance(sound, str):
        raise RealtimeError("invalid_value", "audio: audio in base64", "audio")
    return sound


def decode_audio(message: Event) -> int:
    """Have bytes in the place of base64, wherever a message has audio; returns how many characters it was."""
    chars = 0
    for place in _places_of_audio(message):
        if isinstance(audio := place.get("audio"), str):
            chars += len(audio)
            with contextlib.suppress(ValueError):
                place["audio"] = base64.b64decode(audio, validate=True)
    return chars


def _places_of_audio(message: Event) -> Iterator[Event]:
    items: list[Any] = []
    match message:
        case {"type": "input_audio_buffer.append"}:
            yield message
        case {"type": "conversation.item.create", "item": item}:
            items = [item]
        case {"type": "response.create", "response": {"input": [*items]}}:
            pass
    for item in items:
        match item:
            case {"content": [*parts]}:
                yield from (part for part in parts if isinstance(part, dict))


# ------------------------------------------------------------ the beta

_BETA_PARTS = {"output_text": "text", "output_audio": "audio"}
_GA_PARTS = {name: part for part, name in _BETA_PARTS.items()}
_BETA_FORMATS = {"audio/pcm": "pcm16", "audio/pcmu": "g711_ulaw", "audio/pcma": "g711_alaw"}
_GA_FORMATS = {name: {"type": kind} for kind, name in _BETA_FORMATS.items()}
# Where a beta session's fields are.
_PLACES = {
    "modalities": ("output_modalities",),
    "voice": ("audio", "output", "voice"),
    "speed": ("audio", "output", "speed"),
    "input_audio_format": ("audio", "input", "format"),
    "output_audio_format": ("audio", "output", "format"),
    "input_audio_transcription": ("audio", "input", "transcription"),
    "turn_detection": ("audio", "input", "turn_detection"),
    "max_response_output_tokens": ("max_output_tokens",),
}


def from_beta(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A session or response with the beta's names as one of today; today's stay."""
    found = {name: value for name, value in settings.items() if name not in _PLACES}
    for name, place in _PLACES.items():
        if name not in settings:
            continue
        value = settings[name]
        if name.endswith("_format") and isinstance(value, str):
            value = _GA_FORMATS.get(value, {"type": value})
        below = found
        for part in place[:-1]:
            below = below.setdefault(part, {})
            if not isinstance(below, dict):
                raise RealtimeError("invalid_value", f"{part}: should be an object", part)
        below[place[-1]] = value
    return found


def item_from_beta(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item whose parts have the beta's names as one of today."""
    return _with_parts(item, _GA_PARTS)


def _with_parts(item: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    content = item.get("content")
    if not isinstance(content, list):
        return dict(item)
    parts = [part if isinstance(part, dict) else {"type": part} for part in content]
    return dict(item) | {
        "content": [part | {"type": names.get(str(part.get("type")), part.get("type"))} for part in parts]
    }


def to_beta(event: Event) -> Iterator[Event]:
    """The beta's messages for one of today."""
    kind: str = event["type"]
    if kind == "conversation.item.done":
        return
    if kind == "conversation.item.added":
        kind = "conversation.item.created"
    kind = kind.replace("response.output_audio", "response.audio").replace("response.output_text", "response.text")
    event = event | {"type": kind}
    if "session" in event:
        event["session"] = _session_to_beta(event["session"])
    if "item" in event:
        event["item"] = _with_parts(event["item"], _BETA_PARTS)
    if "response" in event:
        response = event["response"]
        modalities = ["audio", "text"] if "audio" in response["output_modalities"] else ["text"]
        event["response"] = response | {
            "modalities": modalities,
            "output": [_with_parts(item, _BETA_PARTS) for item in response["output"]],
        }
    yield event


def _session_to_beta(session: dict[str, Any]) -> dict[str, Any]:
    flat = {name: value for name, value in session.items() if name not in ("audio", "output_modalities", "type")}
    flat.pop("max_output_tokens")
    for name, place in _PLACES.items():
        value: Any = session
        for part in place:
            value = value[part]
        flat[name] = _BETA_FORMATS[value["type"]] if name.endswith("_format") else value
    return flat | {"modalities": ["audio", "text"] if "audio" in session["output_modalities"] else ["text"]}
