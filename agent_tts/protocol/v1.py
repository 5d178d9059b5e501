"""The wire protocol `agent_tts.v1`: JSON and bytes of clients to commands, events to JSON and bytes. Sans-I/O."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, Field, ValidationError, create_model

from agent_tts import messages
from agent_tts.engine_info import FRAME_MS, SAMPLE_RATE
from agent_tts.errors import BadMessage, SpeechError, UnknownType
from agent_tts.messages import Audio, Cancelled, Finished, Words
from agent_tts.protocol import adapter
from agent_tts.protocol.adapter import ALL, Command, Created, Echo, Event, Failed, Pong, ProtocolAdapter, Updated
from agent_tts.protocol.options import ENCODINGS, Framing, Lenient, SessionConfig, refuse
from agent_tts.protocol.validation import parse

SUBPROTOCOL = "agent_tts.v1"

# version, kind, flags, context_no, first_sample
HEADER = struct.Struct("<BBHIQ")
VERSION = 1
KIND_AUDIO = 1

MAX_ID = 128

MAX_UNKNOWN = 32  # unknown fields that a client is told of, by one message and by one session
MAX_UNKNOWN_CHARS = 64  # of the path of each

MAX_WORDS = 200  # per message: about 80 bytes each, so that a message fits any data channel

Id = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
Milliseconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]

# A message of the protocol as a dict with its `type`. One that comes from a client is not validated yet.
Message = dict[str, Any]

# ---------------------------------------------------------------- client -> server


def _not_star(context_id: str) -> str:
    if context_id == ALL:
        raise ValueError("should not be '*', which stands for every context")
    return context_id


NewId = Annotated[Id, AfterValidator(_not_star)]


def _model(**fields: Any) -> type[BaseModel]:
    required: dict[str, Any] = {name: hint if isinstance(hint, tuple) else (hint, ...) for name, hint in fields.items()}
    return create_model("Message", __base__=Lenient, **required)


class _Opening(Lenient, extra="allow"):
    """Further fields override the session's."""

    context_id: NewId


_FLUSH_ID = (Annotated[str, Field(max_length=128)], "")
_PLAYED_MS = (Milliseconds | None, None)
_T = (int | Annotated[float, Field(allow_inf_nan=False)] | Annotated[str, Field(max_length=128)] | None, None)

# The command of each type of message, and the fields of both, in the same order.
_COMMANDS: dict[str, tuple[Callable[..., Command], type[BaseModel]]] = {
    "session.update": (adapter.Update, _model(session=dict[str, Any])),
    "context.open": (messages.Open, _Opening),
    "text.append": (messages.Append, _model(context_id=NewId, text=str)),
    "context.flush": (messages.Flush, _model(context_id=Id, flush_id=_FLUSH_ID)),
    "context.end": (messages.End, _model(context_id=Id)),
    "context.cancel": (messages.Cancel, _model(context_id=Id, played_ms=_PLAYED_MS)),
    "playback.ack": (adapter.Played, _model(context_id=Id, played_ms=Milliseconds)),
    "ping": (adapter.Ping, _model(t=_T)),
    "session.close": (adapter.Close, _model()),
}

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
_FIELDS = {name: _fields_of(model) for name, (_, model) in _COMMANDS.items()}
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


def check(message: Message) -> tuple[Command, list[str]]:
    """The command in one message of a client, without the fields that this version does not know, and their paths.

    There are at most `MAX_UNKNOWN` paths (`session.output.gain`), in printable ASCII.

    Raises:
        BadMessage, UnknownType: a known field is wrong; the error tells none of the content.
    """
    type_ = message.get("type")
    if type_ not in TYPES:
        raise UnknownType(f"type is one of {', '.join(TYPES)}")
    unknown: list[str] = []
    known = _known({name: message[name] for name in message if name != "type"}, _FIELDS[type_], unknown)
    command, model = _COMMANDS[type_]
    try:
        checked = model.model_validate(known)
    except ValidationError as error:
        refuse(error, "message")
    if isinstance(checked, _Opening):
        return messages.Open(checked.context_id, checked.model_extra or {}), unknown
    return command(*(value for _, value in checked)), unknown


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


# ---------------------------------------------------------------- server -> client

_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def build(type_: str, **fields: Any) -> Message:
    return {"type": type_, **fields}


def dump(message: Message) -> str:
    """A message as JSON text. Lone surrogates are escaped."""
    return _JSON.encode(message)


def header(context_no: int, first_sample: int, flags: int) -> bytes:
    """The 16-byte header of a binary audio frame."""
    return HEADER.pack(VERSION, KIND_AUDIO, flags, context_no, first_sample)


def build_warning(fields: list[str], context_id: str | None) -> Message:
    """The warning that a message had `fields` that are not known."""
    message = "fields that this node does not know are ignored; session.created names those that it knows, in features"
    return {"type": "warning", "code": "unknown_field", "message": message, "context_id": context_id, "fields": fields}


class NativeAdapter(ProtocolAdapter):
    """The adapter of this protocol. A message that is longer than `max_message` bytes is left out, or some of it."""

    max_message: int | None = None

    def __init__(self) -> None:
        # Unknown fields that the client was told of, each once.
        self._warned: set[str] = set()

    def decode(self, data: str | bytes) -> Iterator[Command]:
        message = load(data)
        context_id = context_of(message)
        try:
            command, unknown = check(message)
        except SpeechError as error:
            raise error.about(context_id) from None
        new = [path for path in dict.fromkeys(unknown) if path not in self._warned]
        if new := new[: MAX_UNKNOWN - len(self._warned)]:
            self._warned.update(new)
            yield Echo(build_warning(new, context_id))
        yield command

    def encode(self, event: Event) -> Iterable[str | bytes]:
        if isinstance(event, Audio) and not event.base64:
            return (header(event.context_no, event.first_sample, event.flags) + event.payload,)
        texts = map(dump, _messages(event))
        if self.max_message is None:
            return texts
        return [text for text in texts if len(text) <= self.max_message] or self._shortened(event)

    def _shortened(self, event: Event) -> list[str]:
        """A `context.cancelled` without its texts; nothing for a word that is far too long."""
        if not isinstance(event, Cancelled):
            return []
        return [dump(message | {"heard_text": None, "unheard_text": None}) for message in _messages(event)]


# Events whose fields are those of their message.
_TYPES = {
    messages.Started: "context.started",
    messages.Mark: "mark",
    messages.Flushed: "context.flushed",
    Cancelled: "context.cancelled",
    adapter.AskedToMove: "session.draining",
    Pong: "pong",
}


def _messages(event: Event) -> Iterator[Message]:
    match event:
        case Audio(id=context_id, first_sample=first_sample, flags=flags, payload=payload):
            fields = {"context_id": context_id, "first_sample": first_sample, "flags": flags}
            yield {"type": "audio", **fields, "audio": base64.b64encode(payload).decode()}
        case Words(id=context_id, kind=kind, words=words):
            told = [_fields(word) for word in words]
            for first in range(0, len(told), MAX_WORDS):
                some = told[first : first + MAX_WORDS]
                yield {"type": "words", "context_id": context_id, "kind": kind, "words": some}
        case Finished():
            names = ("context_no", "reason", "audio_ms", "ttfa_ms", "rtf", "cut")
            fields = {name: getattr(event, name) for name in names}
            yield {"type": "context.done", "context_id": event.id, **fields}
        case Failed(id=context_id, error=error, fatal=fatal):
            fields = {"context_id": context_id, "fatal": fatal, "retry_after_ms": error.retry_after_ms}
            yield {"type": "error", "code": error.code, "message": error.message, **fields}
        case Created():
            about = {"sample_rate": SAMPLE_RATE, "frame_ms": FRAME_MS, "features": FEATURES}
            yield {"type": "session.created", "protocol": SUBPROTOCOL, **about, **_fields(event)}
        case Updated(session=session):
            yield {"type": "session.updated", "session": session.model_dump()}
        case Echo(item=item):
            yield item
        case Pong(played=None):
            yield {"type": "pong", "t": event.t}
        case _:
            yield {"type": _TYPES[type(event)], **_fields(event)}


def _fields(told: Any) -> Message:
    """The fields of a dataclass, by their names in the protocol."""
    return {"context_id" if name == "id" else name: getattr(told, name) for name in told.__match_args__}
