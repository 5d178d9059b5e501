"""The format of the pipe between front and engine: length-prefixed frames. Sans-I/O.

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
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from agent_tts import events
from agent_tts.events import AppendText, EngineCommand, EngineEvent, GrantCredit, RequestAudio

MAX_LENGTH = 1 << 20  # bytes of tag and body; the largest message, `EngineReady` with all voices, has about 50 KiB

_HEAD = struct.Struct("<IB")  # length, tag
_REQUEST_HEAD = struct.Struct("<IBI")  # length, tag, request_id of RequestAudio and AppendText; bytes follow
_TAKEN = struct.Struct("<IBII")  # length, tag, request_id, frames
_U32 = struct.Struct("<I")
_U32_U32 = struct.Struct("<II")


class WireError(ValueError):
    """A malformed frame; decoding cannot continue. The message contains no content."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message to an engine process: the settings it needs, as JSON."""

    settings: str


T = TypeVar("T")

# ---------------------------------------------------------------- fields: checked, from what JSON yields


def _int(value: object) -> int:
    if type(value) is not int:
        raise WireError("an integer was expected")
    return value


def _float(value: object) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise WireError("a finite number was expected")
    return float(value)  # type: ignore[arg-type]


def _of(kind: type[T]) -> Callable[[object], T]:
    def read(value: object) -> T:
        if type(value) is not kind:
            raise WireError(f"a field of type {kind.__name__} was expected")
        return value

    return read


def _one_of(allowed: tuple[object, ...]) -> Callable[[object], Any]:
    def read(value: object) -> object:
        if value not in allowed:
            raise WireError("a value outside its set")
        return value

    return read


def _optional(inner: Callable[[object], T]) -> Callable[[object], T | None]:
    return lambda value: None if value is None else inner(value)


def _tuple(inner: Callable[[object], T]) -> Callable[[object], tuple[T, ...]]:
    items = _of(list)
    return lambda value: tuple([inner(item) for item in items(value)])


def _dict(inner: Callable[[object], T]) -> Callable[[object], dict[str, T]]:
    items = _of(dict)  # the keys of a JSON object are strings
    return lambda value: {key: inner(item) for key, item in items(value).items()}


def _dataclass(kind: type[T]) -> Callable[[object], T]:
    hints = get_type_hints(kind)
    readers = {name: _field(hint) for name, hint in hints.items()}
    fields = _of(dict)

    def read(value: object) -> T:
        given = fields(value)
        if given.keys() != readers.keys():
            raise WireError(f"{kind.__name__} with missing or unknown fields")
        return kind(**{name: reader(given[name]) for name, reader in readers.items()})

    return read


def _union(kinds: list[type]) -> Callable[[object], Any]:
    """One of several dataclasses, distinguished by their field names."""
    readers: dict[frozenset[str], Callable[[object], Any]]
    readers = {frozenset(get_type_hints(kind)): _dataclass(kind) for kind in kinds}
    fields = _of(dict)

    def read(value: object) -> object:
        reader = readers.get(frozenset(fields(value)))
        if reader is None:
            raise WireError("fields of no known kind")
        return reader(value)

    return read


_SCALARS: dict[object, Callable[[object], Any]] = {int: _int, float: _float, str: _of(str), bool: _of(bool)}


def _field(hint: Any) -> Callable[[object], Any]:
    args = get_args(hint)
    match get_origin(hint):
        case types.UnionType:
            kinds = [arg for arg in args if arg is not types.NoneType]
            read = _field(kinds[0]) if len(kinds) == 1 else _union(kinds)
            return _optional(read) if len(kinds) < len(args) else read
        case origin if origin is Literal:
            return _one_of(args)
        case origin if origin is tuple:
            return _tuple(_field(args[0]))
        case origin if origin is dict:
            return _dict(_field(args[1]))
        case _:
            return _SCALARS.get(hint) or _dataclass(hint)


# ---------------------------------------------------------------- bodies

_TAG_AUDIO, _TAG_TAKEN, _TAG_APPEND = 1, 2, 3
_JSON_TAGS: dict[type, int] = {
    Setup: 16,
    events.OpenRequest: 17,
    events.FlushText: 18,
    events.EndText: 19,
    events.CancelRequest: 20,
    events.EnginePing: 21,
    events.StopEngine: 22,
    events.EngineReady: 32,
    events.RequestStarted: 33,
    events.RequestWords: 34,
    events.RequestFlushed: 35,
    events.RequestFinished: 36,
    events.EnginePong: 37,
}


def _audio(body: bytes) -> RequestAudio:
    return RequestAudio(_U32.unpack_from(body)[0], body[_U32.size :])


def _append(body: bytes) -> AppendText:
    return AppendText(_U32.unpack_from(body)[0], str(body[_U32.size :], "utf-8", "surrogatepass"))


def _taken(body: bytes) -> GrantCredit:
    return GrantCredit(*_U32_U32.unpack(body))


def _json(kind: type[T]) -> Callable[[bytes], T]:
    read = _dataclass(kind)
    return lambda body: read(json.loads(str(body, "utf-8", "surrogatepass")))


def _table(kinds: tuple[type, ...]) -> dict[int, Callable[[bytes], Any]]:
    return {_JSON_TAGS[kind]: _json(kind) for kind in kinds if kind in _JSON_TAGS}


# Body readers by tag for each direction, for a `Decoder`.
TO_ENGINE: Mapping[int, Callable[[bytes], Setup | EngineCommand]] = {
    _TAG_TAKEN: _taken,
    _TAG_APPEND: _append,
    **_table((Setup, *get_args(EngineCommand))),
}
TO_FRONT: Mapping[int, Callable[[bytes], EngineEvent]] = {_TAG_AUDIO: _audio, **_table(get_args(EngineEvent))}


def _fields(message: Any) -> dict[str, object]:
    return {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}


def _body(message: object) -> bytes:
    text = json.dumps(message, default=_fields, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


# ---------------------------------------------------------------- the two directions


def encode(message: Setup | EngineCommand | EngineEvent) -> bytes:
    """One message as a frame.

    Raises:
        WireError: the message is longer than `MAX_LENGTH`, or a number is outside its range.
    """
    try:
        if isinstance(message, RequestAudio):
            frame = _REQUEST_HEAD.pack(5 + len(message.pcm), _TAG_AUDIO, message.request_id) + message.pcm
        elif isinstance(message, GrantCredit):
            frame = _TAKEN.pack(9, _TAG_TAKEN, message.request_id, message.frames)
        elif isinstance(message, AppendText):
            text = message.text.encode("utf-8", "surrogatepass")
            frame = _REQUEST_HEAD.pack(5 + len(text), _TAG_APPEND, message.request_id) + text
        else:
            body = _body(message)
            frame = _HEAD.pack(1 + len(body), _JSON_TAGS[type(message)]) + body
    except (struct.error, ValueError) as error:
        raise WireError(f"{type(message).__name__} with a number outside its range") from error
    if len(frame) > MAX_LENGTH + _U32.size:
        raise WireError(f"{type(message).__name__} of {len(frame)} bytes; at most {MAX_LENGTH} are allowed")
    return frame


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
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _HEAD.size:
            length, tag = _HEAD.unpack_from(buffer, start)
            if not 1 <= length <= MAX_LENGTH:
                raise WireError(f"a frame of {length} bytes; 1 to {MAX_LENGTH} are allowed")
            end = start + _U32.size + length
            if end > len(buffer):
                break
            messages.append(self._read(tag, bytes(memoryview(buffer)[start + _HEAD.size : end])))
            start = end
        del buffer[:start]
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
