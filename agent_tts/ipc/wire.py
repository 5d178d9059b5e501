"""The format of a link between front and engine: length-prefixed frames. Sans-I/O.

A frame is `u32 length | u8 tag | body`, little-endian; `length` counts tag and body. Frequent messages (audio, text,
credit) are packed; others are JSON of the dataclass' fields. Text is UTF-8 that keeps lone surrogates.

Decoding validates everything: a frame that is too long, has an unknown tag or a field of the wrong type raises
`WireError`. Only dataclasses of `events` and `Setup` are constructed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from agent_tts import events
from agent_tts.events import (
    AppendText,
    EngineCommand,
    EngineEvent,
    EnginePing,
    GrantCredit,
    RequestAudio,
    RequestCommand,
    StopEngine,
)

MAX_LENGTH = 1 << 20  # bytes of tag and body; the largest message, `EngineReady` with all voices, has about 50 KiB

_HEAD = struct.Struct("<IB")  # length, tag
_AUDIO_HEAD = struct.Struct("<IBI")  # length, tag and request_id of RequestAudio
_U32 = struct.Struct("<I")  # request_id of RequestAudio and AppendText; bytes follow
_U32_U32 = struct.Struct("<II")  # request_id and frames of GrantCredit


class WireError(ValueError):
    """A malformed frame; decoding cannot continue. The message contains no content."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message to an engine process: the settings it needs, as JSON."""

    settings: str


T = TypeVar("T")


def _exactly(kind: type[T], value: object) -> T:
    if type(value) is not kind:
        raise WireError(f"a value of type {kind.__name__} was expected")
    return value


def _checked(hint: Any, value: Any) -> Any:
    """A field as JSON yields it, as the type that `hint` names."""
    if hint is float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise WireError("a finite number was expected")
        return float(value)
    if hint in (int, str, bool, types.NoneType):
        return _exactly(hint, value)
    args = get_args(hint)
    match get_origin(hint):
        case origin if origin in (types.UnionType, Union):  # `Literal[...] | None` is a `Union`
            if value is None and types.NoneType in args:
                return None
            return _checked(_one_of([arg for arg in args if arg is not types.NoneType], value), value)
        case origin if origin is Literal:
            if value not in args:
                raise WireError("a value outside its set")
            return value
        case origin if origin is tuple:
            return tuple([_checked(args[0], item) for item in _exactly(list, value)])
        case origin if origin is dict:
            return {key: _checked(args[1], item) for key, item in _exactly(dict, value).items()}
        case _:
            return _dataclass(hint, value)


def _one_of(kinds: list[Any], value: Any) -> Any:
    """The only type, or the one of several dataclasses that has the fields of `value`."""
    if len(kinds) == 1:
        return kinds[0]
    given = _exactly(dict, value).keys()
    for kind in kinds:
        if _hints(kind).keys() == given:
            return kind
    raise WireError("fields of no known kind")


def _dataclass(kind: type, value: object) -> Any:
    hints, given = _hints(kind), _exactly(dict, value)
    if given.keys() != hints.keys():
        raise WireError(f"{kind.__name__} with missing or unknown fields")
    return kind(**{name: _checked(hint, given[name]) for name, hint in hints.items()})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


_TAG_AUDIO, _TAG_CREDIT, _TAG_APPEND = 1, 2, 3
_COMMAND_TAGS: dict[type[Setup | EngineCommand], int] = {
    Setup: 16,
    events.OpenRequest: 17,
    events.FlushText: 18,
    events.EndText: 19,
    events.CancelRequest: 20,
    events.EnginePing: 21,
    events.StopEngine: 22,
    events.Direct: 23,
}
_EVENT_TAGS: dict[type[EngineEvent], int] = {
    events.EngineReady: 32,
    events.RequestStarted: 33,
    events.RequestWords: 34,
    events.RequestFlushed: 35,
    events.RequestFinished: 36,
    events.EnginePong: 37,
    events.EngineLoad: 38,
    events.RequestStages: 39,
}
_JSON_TAGS: dict[type, int] = {**_COMMAND_TAGS, **_EVENT_TAGS}


def _audio(body: bytes) -> RequestAudio:
    return RequestAudio(_U32.unpack_from(body)[0], body[_U32.size :])


def _append(body: bytes) -> AppendText:
    return AppendText(_U32.unpack_from(body)[0], str(body[_U32.size :], "utf-8", "surrogatepass"))


def _credit(body: bytes) -> GrantCredit:
    return GrantCredit(*_U32_U32.unpack(body))


def from_json(hint: Any, body: bytes) -> Any:
    """What `to_json` has made, as the type that `hint` names: a dataclass, int, float, str, bool, None, or a union,
    `tuple[X, ...]` or `dict[str, X]` of them. Raises `ValueError`, `WireError` among them, or `RecursionError`."""
    return _checked(hint, json.loads(str(body, "utf-8", "surrogatepass")))


# Body readers by tag for each direction, for a `Decoder`. A front that shares an engine can neither set it up nor stop
# it.
TO_SHARED_ENGINE: dict[int, Callable[[bytes], RequestCommand | EnginePing]] = {
    _TAG_CREDIT: _credit,
    _TAG_APPEND: _append,
    **{tag: partial(from_json, kind) for kind, tag in _COMMAND_TAGS.items() if kind not in (Setup, StopEngine)},
}
TO_ENGINE: dict[int, Callable[[bytes], Setup | EngineCommand]] = {
    **TO_SHARED_ENGINE,
    **{_COMMAND_TAGS[kind]: partial(from_json, kind) for kind in (Setup, StopEngine)},
}
TO_FRONT: dict[int, Callable[[bytes], EngineEvent]] = {
    _TAG_AUDIO: _audio,
    **{tag: partial(from_json, kind) for kind, tag in _EVENT_TAGS.items()},
}


def _fields(message: Any) -> dict[str, object]:
    return {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}


def encode_audio(request_id: int, pcm: bytes) -> bytes:
    """The frame of a `RequestAudio`."""
    return _AUDIO_HEAD.pack(1 + _U32.size + len(pcm), _TAG_AUDIO, request_id) + pcm


def to_json(message: object) -> bytes:
    """The body of a frame; see `from_json`. Raises `ValueError` for a number that is not finite."""
    text = json.dumps(message, default=_fields, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def encode(message: Setup | EngineCommand | EngineEvent) -> bytes:
    """A frame. Raises `WireError` for a message longer than `MAX_LENGTH` or a number outside its range."""
    try:
        match message:
            case RequestAudio(request_id, pcm):
                tag, body = _TAG_AUDIO, _U32.pack(request_id) + pcm
            case GrantCredit(request_id, frames):
                tag, body = _TAG_CREDIT, _U32_U32.pack(request_id, frames)
            case AppendText(request_id, text):
                tag, body = _TAG_APPEND, _U32.pack(request_id) + text.encode("utf-8", "surrogatepass")
            case _:
                tag, body = _JSON_TAGS[type(message)], to_json(message)
    except (struct.error, ValueError) as error:
        raise WireError(f"{type(message).__name__} with a number outside its range") from error
    return frame(tag, body, type(message).__name__)


def frame(tag: int, body: bytes, name: str) -> bytes:
    """A frame of a `Decoder`. Raises `WireError`, with this name of the message, if it is longer than `MAX_LENGTH`."""
    length = 1 + len(body)
    if length > MAX_LENGTH:
        raise WireError(f"{name} of {length} bytes; at most {MAX_LENGTH} are allowed")
    return _HEAD.pack(length, tag) + body


class Decoder(Generic[T]):
    """Decodes messages from bytes in any split."""

    def __init__(self, readers: Mapping[int, Callable[[bytes], T]]) -> None:
        self._readers = readers
        # Bytes of an incomplete frame.
        self._buffer = bytearray()
        # The first error, raised again by every later call; None before it.
        self._broken: WireError | None = None

    def feed(self, data: bytes) -> list[T]:
        """The messages that `data` completes, in order. Linear in the bytes fed, for any size of pieces.

        Raises:
            WireError: now and at every later call; messages before the broken frame in `data` are lost.
        """
        if self._broken is not None:
            raise self._broken
        try:
            return self._feed(data)
        except WireError as error:
            self._broken = error
            self._buffer.clear()
            raise

    def _feed(self, data: bytes) -> list[T]:
        messages: list[T] = []
        source: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            source = self._buffer
        start, last = 0, len(source) - _HEAD.size
        with memoryview(source) as view:
            while start <= last:
                length, tag = _HEAD.unpack_from(source, start)
                if not 1 <= length <= MAX_LENGTH:
                    raise WireError(f"a frame of {length} bytes; 1 to {MAX_LENGTH} are allowed")
                end = start + _U32.size + length
                if end > len(source):
                    break
                messages.append(self._read(tag, bytes(view[start + _HEAD.size : end])))
                start = end
        if self._buffer:
            del self._buffer[:start]
        else:
            self._buffer += data[start:]
        return messages

    def _read(self, tag: int, body: bytes) -> T:
        reader = self._readers.get(tag)
        if reader is None:
            raise WireError(f"unknown tag {tag}")
        try:
            return reader(body)
        except WireError:
            raise
        except (struct.error, ValueError, OverflowError, RecursionError) as error:
            # `from None`, because errors of codecs and of the JSON parser contain the content.
            raise WireError(f"a frame with tag {tag} and a malformed body ({type(error).__name__})") from None
