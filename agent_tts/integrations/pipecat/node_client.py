"""The way from the service to a node: what it needs of one, and the one over a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from agent_tts.client.connection import ConnectionLost, NodeConnection, open_connection, stream_url
from agent_tts.client.utterance import ContextEvent

CONNECT_S = 3.0  # for a connection, or for settings, to be answered: a turn waits for it

Session = Mapping[str, Any]  # fields of protocol.md's `session`


class NodeUtterance(Protocol):
    """One context of a node."""

    context_id: str  # names it in the logs of the node

    def write(self, text: str) -> None:
        """Append text, verbatim and in any split. Never blocks; ignored once it has ended or failed."""
        ...

    def end(self) -> None:
        """No more text. Idempotent."""
        ...

    def stop(self) -> None:
        """Stop now, without waiting: no audio follows. Idempotent."""
        ...

    def events(self) -> AsyncIterator[ContextEvent]:
        """All events; the last is `Done`. To be iterated over once.

        Raises:
            SpeechError: it was refused, or failed.
        """
        ...


class NodeClient(Protocol):
    """A node."""

    async def connect(self) -> bool:
        """Make sure that contexts can be begun, within 3 s; whether this took a new connection. Safe to cancel.

        Raises:
            SpeechError: they cannot be now.
        """
        ...

    async def check(self, session: Session) -> None:
        """Raise the `SpeechError` that refuses these settings, if there is one. Safe to cancel."""
        ...

    def begin(self, session: Session) -> NodeUtterance:
        """Start a context: it takes a slot, or a place in the queue, before its first word.

        Raises:
            SpeechError: it is refused at once; otherwise its events tell.
        """
        ...

    async def close(self) -> bool:
        """End the connection, and all speech on it; whether there was one. Idempotent; it may be connected again."""
        ...


class WebSocketNodeClient:
    """A node at an address. A connection that was lost, or whose node is going away, is replaced by `connect`."""

    def __init__(self, url: str, api_key: str | None) -> None:
        stream_url(url)  # raises for what names no node
        self._url = url
        self._api_key = api_key
        # The connection that contexts are begun on. None before the first.
        self._node: NodeConnection | None = None
        # The one before it, whose node lets its contexts finish while it goes away; otherwise None.
        self._draining: NodeConnection | None = None
        # Held while a connection is made.
        self._connecting = asyncio.Lock()

    async def connect(self) -> bool:
        async with self._connecting:
            node = self._node
            if node is not None and node.lost is None and not node.draining:
                return False
            try:
                async with asyncio.timeout(CONNECT_S):
                    self._node = await open_connection(self._url, api_key=self._api_key)
            except TimeoutError:
                raise ConnectionLost(f"the node did not answer within {CONNECT_S:g} s") from None
            left, self._draining = self._draining, node
            if left is not None:
                await left.close()
            return True

    async def check(self, session: Session) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._connected.update(**session)
        except TimeoutError:
            raise ConnectionLost(f"the node did not answer within {CONNECT_S:g} s") from None

    def begin(self, session: Session) -> NodeUtterance:
        return self._connected.begin(**session)

    async def close(self) -> bool:
        nodes = [node for node in (self._node, self._draining) if node is not None]
        self._node = self._draining = None
        await asyncio.gather(*(node.close() for node in nodes))
        return bool(nodes)

    @property
    def _connected(self) -> NodeConnection:
        if self._node is None:
            raise ConnectionLost("there is no connection to the node")
        return self._node
