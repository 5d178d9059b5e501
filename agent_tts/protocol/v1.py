"""The wire protocol `agent_tts.v1`: validated messages in, JSON or bytes out. Sans-I/O."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NoReturn, Self, get_args

from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError, field_validator, model_validator

from agent_tts.errors import BadMessage, SpeechError, UnknownType, UnsupportedFormat
from agent_tts.options import Sampling, SpeechOptions
from agent_tts.protocol.adapter import Message, ProtocolAdapter
from agent_tts.protocol.context import AudioChunk
from agent_tts.protocol.formats import ENCODINGS, Encoding, SampleRate, check_format
from agent_tts.protocol.options import Lenient, Strict, option_model, sampling_of, speech_options
from agent_tts.protocol.validation import UNKNOWN_FIELD, first_complaint, message_error, parse

SUBPROTOCOL = "agent_tts.v1"

# version, kind, flags, context_no, first_sample
HEADER = struct.Struct("<BBHIQ")
VERSION = 1
KIND_AUDIO = 1

MAX_ID = 128

MAX_UNKNOWN = 32  # unknown fields that a client is told of, by one message and by one session
MAX_UNKNOWN_CHARS = 64  # of the path of each

# Minimum of lead_ms: one frame, plus the time to wake several utterances at once. A lower lead would cause gaps. The
# node's maximum limits the audio that a cancel discards.
MIN_LEAD_MS = 120

Id = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
Framing = Literal["binary", "base64"]
Milliseconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]

# ---------------------------------------------------------------- client -> server


class OutputFormat(Strict):
    """The format in which audio is sent."""

    encoding: Encoding = "pcm_s16le"
    sample_rate: SampleRate = 24_000
    bit_rate: int | None = Field(None, ge=8_000, le=320_000)  # bits per second of ogg_opus and mp3; None: the default
    framing: Framing = "binary"

    @model_validator(mode="after")
    def _has_an_encoder(self) -> Self:
        try:
            check_format(self.encoding, self.sample_rate)
        except UnsupportedFormat as error:
            raise ValueError(error.message) from None
        return self


class SamplingFields(option_model(Sampling)):  # type: ignore[misc]
    """See `Sampling`."""


class SessionConfig(option_model(SpeechOptions)):  # type: ignore[misc]
    """All options of a client. A context inherits its session's options and may override each."""

    timestamps: Literal["word", "none"] = "word"
    output: OutputFormat = OutputFormat()
    sampling: SamplingFields = SamplingFields()

    @field_validator("language", mode="before")
    @classmethod
    def _null_is_auto(cls, value: object) -> object:
        return "auto" if value is None else value

    def merged(self, fields: dict[str, Any], max_lead_ms: int) -> SessionConfig:
        """This configuration with `fields` replaced; `output` and `sampling` are merged field by field.

        Raises:
            BadMessage, UnsupportedFormat: a field is unknown or not allowed; the configuration is unchanged.
        """
        new = self.model_dump(exclude={"lexicon"}) | {"lexicon": self.lexicon}  # made once, not for each context
        for name, value in fields.items():
            nested = new.get(name)
            new[name] = {**nested, **value} if isinstance(nested, dict) and isinstance(value, dict) else value
        new |= replaced_by(fields)
        try:
            merged: SessionConfig = SessionConfig.model_validate(new)
        except ValidationError as error:
            _refuse(error, "session")
        if merged.lead_ms is not None:
            merged = merged.model_copy(update={"lead_ms": min(max(merged.lead_ms, MIN_LEAD_MS), max_lead_ms)})
        return merged

    def options(self) -> SpeechOptions:
        return speech_options(self, sampling=sampling_of(self.sampling))


def replaced_by(fields: dict[str, Any]) -> dict[str, None]:
    """What `fields` replace besides themselves: a voice replaces an earlier speaker embedding, and the reverse."""
    pairs = (("voice", "speaker_embedding"), ("speaker_embedding", "voice"))
    return {other: None for name, other in pairs if fields.get(name) is not None and other not in fields}


def _not_star(context_id: str) -> str:
    if context_id == "*":
        raise ValueError("should not be '*', which stands for every context")
    return context_id


NewId = Annotated[Id, AfterValidator(_not_star)]


class SessionUpdate(Lenient):
    type: Literal["session.update"]
    session: dict[str, Any]


class ContextOpen(Lenient, extra="allow"):
    """Further fields override the session's."""

    type: Literal["context.open"]
    context_id: NewId

    @property
    def overrides(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class TextAppend(Lenient):
    type: Literal["text.append"]
    context_id: NewId
    text: str


class ContextFlush(Lenient):
    type: Literal["context.flush"]
    context_id: Id
    flush_id: str = Field("", max_length=128)


class ContextEnd(Lenient):
    type: Literal["context.end"]
    context_id: Id


class ContextCancel(Lenient):
    type: Literal["context.cancel"]
    context_id: Id
    played_ms: Milliseconds | None = None


class PlaybackAck(Lenient):
    type: Literal["playback.ack"]
    context_id: Id
    played_ms: Milliseconds


class Ping(Lenient):
    type: Literal["ping"]
    t: int | Annotated[float, Field(allow_inf_nan=False)] | Annotated[str, Field(max_length=128)] | None = None


class SessionClose(Lenient):
    type: Literal["session.close"]


ClientMessage = (
    SessionUpdate
    | ContextOpen
    | TextAppend
    | ContextFlush
    | ContextEnd
    | ContextCancel
    | PlaybackAck
    | Ping
    | SessionClose
)
_CLASSES: tuple[type[BaseModel], ...] = get_args(ClientMessage)
_ADAPTER: TypeAdapter[ClientMessage] = TypeAdapter(Annotated[ClientMessage, Field(discriminator="type")])

# The fields of an object by name; of a field that is an object, its own fields.
Fields = dict[str, "Fields"]


def _fields_of(kind: Any) -> Fields:
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return {}
    return {name: _fields_of(field.annotation) for name, field in kind.model_fields.items()}


def _paths(fields: Fields, parent: str = "") -> Iterator[str]:
    for name, inner in fields.items():
        yield parent + name
        yield from _paths(inner, f"{parent}{name}.")


_SESSION = _fields_of(SessionConfig)
# The fields of each type of message.
_FIELDS = {get_args(cls.model_fields["type"].annotation)[0]: _fields_of(cls) for cls in _CLASSES}
_FIELDS["session.update"]["session"] = _SESSION
_FIELDS["context.open"] |= _SESSION
TYPES = list(_FIELDS)

# What a client can rely on: message types, fields of a session, encodings, framings, and the message `warning`.
FEATURES = (*TYPES, *_paths(_SESSION), *ENCODINGS, *get_args(Framing), "warning")


def load(data: str | bytes) -> Message:
    """Parse one message of a client; raises `BadMessage` if it is not a JSON object as text, or has too many values."""
    if isinstance(data, bytes):
        raise BadMessage("binary messages have no meaning here: send JSON text")
    return parse(data, "a message is one JSON object with a type, as text")


def context_of(message: Message) -> str | None:
    """The context_id of a message, valid or not; None if absent or malformed."""
    context_id = message.get("context_id")
    return context_id if isinstance(context_id, str) and 0 < len(context_id) <= MAX_ID else None


def check(message: Message) -> tuple[ClientMessage, list[str]]:
    """Validate one message of a client. Returns it without the fields that this version does not know, and their paths.

    There are at most `MAX_UNKNOWN` paths (`session.output.gain`), in printable ASCII.

    Raises:
        BadMessage, UnknownType: a known field is wrong; the error tells none of the content.
    """
    if message.get("type") not in TYPES:
        raise UnknownType(f"type is one of {', '.join(TYPES)}")
    unknown: list[str] = []
    known = _known(message, _FIELDS[message["type"]], unknown)
    try:
        return _ADAPTER.validate_python(known), unknown
    except ValidationError as error:
        _refuse(error, "message", skip=1)


def unknown_fields(session: Message) -> list[str]:
    """The paths of the fields that no session of this version has; see `check`."""
    unknown: list[str] = []
    _known(session, _SESSION, unknown)
    return unknown


def _known(value: Message, fields: Fields, unknown: list[str], parent: str = "") -> Message:
    """`value` without the fields that are not among `fields`; their paths are added to `unknown`."""
    known = {}
    for name, inner in value.items():
        if name in fields:
            nested = fields[name]
            known[name] = (
                _known(inner, nested, unknown, f"{parent}{name}.") if nested and type(inner) is dict else inner
            )
        elif len(unknown) < MAX_UNKNOWN:
            unknown.append(ascii(parent + name[:MAX_UNKNOWN_CHARS])[1:-1][:MAX_UNKNOWN_CHARS])
    return known


def _refuse(error: ValidationError, what: str, skip: int = 0) -> NoReturn:
    """Raise the error of a configuration or a message. `skip`: leading parts of the path that pydantic adds."""
    complaint = first_complaint(error)
    complaint = complaint._replace(path=complaint.path[skip:])
    where = complaint.path
    if complaint.kind == UNKNOWN_FIELD:
        nested: dict[str, type[BaseModel]] = {"output": OutputFormat, "sampling": SamplingFields}
        allowed = nested.get(where[0], SessionConfig) if len(where) > 1 else SessionConfig
        raise BadMessage(f"{what} has a field that is not known; fields are {', '.join(allowed.model_fields)}")
    raise message_error(complaint, ".".join([what, *where]))


# ---------------------------------------------------------------- server -> client


def build(type_: str, **fields: Any) -> Message:
    return {"type": type_, **fields}


def build_error(error: SpeechError, *, context_id: str | None = None, fatal: bool = False) -> Message:
    return build(
        "error",
        code=error.code,
        message=error.message,
        context_id=context_id,
        fatal=fatal,
        retry_after_ms=error.retry_after_ms,
    )


def build_warning(fields: list[str], *, context_id: str | None = None) -> Message:
    """The warning that a message had `fields` that are not known."""
    message = "fields that this node does not know are ignored; session.created names those that it knows, in features"
    return build("warning", code="unknown_field", message=message, context_id=context_id, fields=fields)


_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def dump(message: Message) -> str:
    """A message as JSON text. Lone surrogates are escaped."""
    return _JSON.encode(message)


def header(context_no: int, first_sample: int, flags: int) -> bytes:
    """The 16-byte header of a binary audio frame."""
    return HEADER.pack(VERSION, KIND_AUDIO, flags, context_no, first_sample)


class NativeAdapter(ProtocolAdapter):
    """The adapter of this protocol, which needs no translation."""

    def decode(self, data: str | bytes) -> Iterator[Message]:
        yield load(data)

    def encode(self, item: Message | AudioChunk) -> tuple[str | bytes]:
        if not isinstance(item, AudioChunk):
            return (dump(item),)
        if not item.base64:
            return (header(item.context_no, item.first_sample, item.flags) + item.payload,)
        audio = base64.b64encode(item.payload).decode()
        fields = {"context_id": item.context_id, "first_sample": item.first_sample, "flags": item.flags}
        return (dump(build("audio", **fields, audio=audio)),)
