"""The format of a link between front and engine: length-prefixed frames. Sans-I/O.

A frame is `u32 length | u8 tag | body`, little-endian; `length` counts tag and body. Frequent messages (audio, text,
credit) are packed, others are JSON of the dataclass' fields. Packed text is UTF-8 that keeps lone surrogates.

Decoding validates everything: a frame that is too long, has an unknown tag or a field of the wrong type raises
`WireError`. Only dataclasses of `messages` and `Setup` are constructed.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

import pydantic_core
from pydantic import ConfigDict, TypeAdapter
from typing_extensions import TypeAliasType

from agent_tts import messages
from agent_tts.messages import Append, Audio, Credit, EngineCommand, EngineEvent, EnginePing, RequestCommand
from agent_tts.options import EngineOptions

MAX_LENGTH = 1 << 20  # bytes of tag and body; the largest message, `EngineReady` with all voices, has about 50 KiB

_HEAD = struct.Struct("<IB")  # length, tag
_U32 = struct.Struct("<I")  # id of Audio and of text; bytes follow
_U32_U32 = struct.Struct("<II")  # id and frames of Credit


class WireError(ValueError):
    """A malformed frame; decoding cannot continue. The message contains no content."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message to an engine process: the settings it needs, a document."""

    settings: dict[str, Any]


T = TypeVar("T")

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    # Behind an alias, a dataclass takes the configuration, and so do those in its fields.
    return TypeAdapter(TypeAliasType("Body", hint), config=_STRICT)  # pyrefly: ignore[bad-argument-type]


def from_json(hint: Any, body: bytes) -> Any:
    """What `to_json` has made, as the type that `hint` names: any that pydantic knows. Raises `WireError`."""
    try:
        return _adapter(hint).validate_json(body)
    except ValueError as error:
        # `from None`, because errors of the parser contain the content.
        raise WireError(f"malformed JSON ({type(error).__name__})") from None


def to_json(message: object) -> bytes:
    """The body of a frame; see `from_json`. Lone surrogates, which no UTF-8 has, become question marks.

    Raises `WireError` for a number that is not finite.
    """
    try:
        try:
            body = pydantic_core.to_json(message, inf_nan_mode="constants")
            if b"NaN" in body or b"Infinity" in body:  # as a number, or in a text
                pydantic_core.from_json(body, allow_inf_nan=False)
        except pydantic_core.PydanticSerializationError:
            fields = dataclasses.asdict(message) if dataclasses.is_dataclass(message) else message  # pyrefly: ignore[bad-argument-type]
            body = json.dumps(fields, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    except ValueError:
        raise WireError(f"{type(message).__name__} with a number outside its range") from None
    return body


_TAG_AUDIO, _TAG_CREDIT, _TAG_TEXT = 1, 2, 3
# The tag of a message that is JSON tells the type of the body.
_COMMANDS: dict[int, Any] = {
    17: messages.Open[int, EngineOptions],
    18: messages.Flush[int],
    19: messages.End[int],
    20: messages.Cancel[int],
    21: EnginePing,
    23: Append[int],  # with a directive
}
_OF_OWNER: dict[int, Any] = {16: Setup, 22: messages.StopEngine}
_EVENTS: dict[int, Any] = {
    32: messages.EngineReady,
    33: messages.Started[int],
    34: messages.Words[int],
    35: messages.Flushed[int],
    36: messages.Finished[int],
    37: messages.EnginePong,
    38: messages.EngineLoad,
    39: messages.Stages,
}
_TAGS = {getattr(hint, "__origin__", hint): tag for tag, hint in (_COMMANDS | _OF_OWNER | _EVENTS).items()}


def _text(body: bytes) -> Append[int]:
    return Append(_U32.unpack_from(body)[0], str(body[_U32.size :], "utf-8", "surrogatepass"))


def _readers(hints: dict[int, Any]) -> dict[int, Callable[[bytes], Any]]:
    return {tag: partial(from_json, hint) for tag, hint in hints.items()}


# Body readers by tag for each direction, for `decode`. A front that shares an engine can neither set it up nor stop it.
TO_SHARED_ENGINE: dict[int, Callable[[bytes], RequestCommand | EnginePing]] = {
    _TAG_CREDIT: lambda body: Credit(*_U32_U32.unpack(body)),
    _TAG_TEXT: _text,
    **_readers(_COMMANDS),
}
TO_ENGINE: dict[int, Callable[[bytes], Setup | EngineCommand]] = {**TO_SHARED_ENGINE, **_readers(_OF_OWNER)}
TO_FRONT: dict[int, Callable[[bytes], EngineEvent]] = {
    _TAG_AUDIO: lambda body: Audio(_U32.unpack_from(body)[0], body[_U32.size :]),
    **_readers(_EVENTS),
}


def prepare(readers: Mapping[int, Callable[[bytes], Any]]) -> None:
    """Build what checks the messages of one direction: up to 0.1 s, which a first message would wait for."""
    for reader in readers.values():
        if isinstance(reader, partial):
            _adapter(*reader.args)


def encode(message: Setup | EngineCommand | EngineEvent) -> bytes:
    """A frame. Raises `WireError` for a message longer than `MAX_LENGTH`, or with a value that no frame has."""
    try:
        if isinstance(message, Audio):
            tag, body = _TAG_AUDIO, _U32.pack(message.id) + message.payload
        elif isinstance(message, Credit):
            tag, body = _TAG_CREDIT, _U32_U32.pack(message.id, message.frames)
        elif isinstance(message, Append) and isinstance(message.content, str):
            tag, body = _TAG_TEXT, _U32.pack(message.id) + message.content.encode("utf-8", "surrogatepass")
        else:
            tag, body = _TAGS[type(message)], to_json(message)
    except struct.error as error:
        raise WireError(f"{type(message).__name__} with a number outside its range") from error
    return frame(tag, body, type(message).__name__)


def frame(tag: int, body: bytes, name: str, most: int = MAX_LENGTH) -> bytes:
    """A frame for `decode`. Raises `WireError`, with this name of the message, if it is longer than `most` bytes."""
    length = 1 + len(body)
    if length > most:
        raise WireError(f"{name} of {length} bytes; at most {most} are allowed")
    return _HEAD.pack(length, tag) + body


def decode(
    rest: bytearray, data: bytes, readers: Mapping[int, Callable[[bytes], T]], most: int = MAX_LENGTH
) -> list[T]:
    """The messages that `data` completes, in order. Linear in the bytes, for any size of pieces.

    `rest` has the bytes of an incomplete frame before `data`, and then those behind it. Raises `WireError`: nothing can
    be decoded any more, and the messages before the broken frame in `data` are lost; also for one longer than `most`.
    """
    found: list[T] = []
    source: bytes | bytearray = data
    if rest:
        rest += data
        source = rest
    start, last = 0, len(source) - _HEAD.size
    with memoryview(source) as view:
        while start <= last:
            length, tag = _HEAD.unpack_from(source, start)
            if not 1 <= length <= most:
                raise WireError(f"a frame of {length} bytes; 1 to {most} are allowed")
            end = start + _U32.size + length
            if end > len(source):
                break
            found.append(_read(readers, tag, bytes(view[start + _HEAD.size : end])))
            start = end
    if rest:
        del rest[:start]
    else:
        rest += data[start:]
    return found


def _read(readers: Mapping[int, Callable[[bytes], T]], tag: int, body: bytes) -> T:
    reader = readers.get(tag)
    if reader is None:
        raise WireError(f"unknown tag {tag}")
    try:
        return reader(body)
    except WireError:
        raise
    except (struct.error, ValueError) as error:
        # `from None`, because errors of codecs contain the content.
        raise WireError(f"a frame with tag {tag} and a malformed body ({type(error).__name__})") from None
