"""What stands between a session and a client's language: values of the protocol on one side, messages on the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

from agent_tts.protocol.context import AudioChunk

# A message of `agent_tts.v1` as its fields, `type` among them: from a client it is still to be checked.
Message = dict[str, Any]


class ProtocolAdapter(Protocol):
    """The language of one connection. Pure: it keeps what its language needs to remember, and does no I/O."""

    # Set when the connection is to be closed after what was encoded last: (WebSocket close code, reason).
    closing: tuple[int, str] | None

    def begin(self) -> Iterator[Message]:
        """What the connection itself says, by its address; a generator, as `decode`.

        Raises:
            SpeechError: as `decode`.
        """
        ...

    def decode(self, data: str | bytes) -> Iterator[Message]:
        """A message of the client as the protocol's; a generator, so that nothing is raised before it is iterated.

        Raises:
            SpeechError: what is wrong with it. What was yielded before counts.
        """
        ...

    def encode(self, item: Message | AudioChunk) -> Iterable[str | bytes]:
        """What the client is told of something that the session has to say; nothing where its language has no word."""
        ...


@runtime_checkable
class QueueingAdapter(ProtocolAdapter, Protocol):
    """A adapter that holds messages of the client back until the session has told something."""

    def follow(self) -> Iterable[Message]:
        """What the session is to be told now. Asked for after whatever was encoded.

        Raises:
            SpeechError: as `decode`.
        """
        ...
