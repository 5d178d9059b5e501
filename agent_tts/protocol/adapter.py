"""Adapters: they translate between a client's dialect and the messages of a session."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from agent_tts.protocol.context import AudioChunk

# A message of `agent_tts.v1` as a dict with its `type`. One that comes from a client is not validated yet.
Message = dict[str, Any]


class ProtocolAdapter:
    """The dialect of one connection: it keeps the state that its dialect needs, and does no I/O."""

    # (WebSocket close code, reason) when the connection must close after the last encoded message.
    closing: tuple[int, str] | None = None

    def begin(self) -> Iterator[Message]:
        """Messages that the URL of the connection implies. A generator, as `decode`, with the same errors."""
        yield from ()

    def decode(self, data: str | bytes) -> Iterator[Message]:
        """The protocol's messages for a message of the client. A generator: errors are raised while it is iterated.

        Raises:
            SpeechError: the client's message is invalid. Messages that were yielded before remain valid.
        """
        raise NotImplementedError

    def encode(self, item: Message | AudioChunk) -> Iterable[str | bytes]:
        """The client's messages for an item of the session; empty where the dialect has none."""
        raise NotImplementedError


class QueueingAdapter(ProtocolAdapter):
    """An adapter that holds back messages of the client until the session has sent something."""

    def __init__(self) -> None:
        # Its own answers to the client, each for the pong of a ping; None for a pong that only wakes it.
        self._notes: deque[Message | None] = deque()

    def follow(self) -> Iterable[Message]:
        """Messages that are no longer held back; called after each `encode`. Raises the errors of `decode`."""
        raise NotImplementedError

    def _note(self, answer: Message | None = None) -> Message:
        """A ping, whose pong keeps the place of `answer` among the answers of the session."""
        self._notes.append(answer)
        return {"type": "ping"}
