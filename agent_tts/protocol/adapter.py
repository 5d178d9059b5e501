"""Adapters: they translate between a client's dialect and the messages of a session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

from agent_tts.protocol.context import AudioChunk

# A message of `agent_tts.v1` as a dict with its `type`. One that comes from a client is not validated yet.
Message = dict[str, Any]


class ProtocolAdapter(Protocol):
    """The dialect of one connection: it keeps the state that its dialect needs, and does no I/O."""

    # (WebSocket close code, reason) when the connection must close after the last encoded message.
    closing: tuple[int, str] | None

    def begin(self) -> Iterator[Message]:
        """Messages that the URL of the connection implies. A generator, as `decode`, with the same errors."""
        ...

    def decode(self, data: str | bytes) -> Iterator[Message]:
        """The protocol's messages for a message of the client. A generator: errors are raised while it is iterated.

        Raises:
            SpeechError: the client's message is invalid. Messages that were yielded before remain valid.
        """
        ...

    def encode(self, item: Message | AudioChunk) -> Iterable[str | bytes]:
        """The client's messages for an item of the session; empty where the dialect has none."""
        ...


@runtime_checkable
class QueueingAdapter(ProtocolAdapter, Protocol):
    """An adapter that holds back messages of the client until the session has sent something."""

    def follow(self) -> Iterable[Message]:
        """Messages that are no longer held back; called after each `encode`. Raises the errors of `decode`."""
        ...
