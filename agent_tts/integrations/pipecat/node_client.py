"""What the service needs of a node, and the implementation over a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from agent_tts.client.connection import ConnectionLost, NodeConnection, open_connection, stream_url
from agent_tts.protocol.context import AnyUtterance

CONNECT_S = 3.0  # for the node to answer a connection or settings; a turn waits for it

Session = Mapping[str, Any]  # fields of protocol.md's `session`


class NodeClient(Protocol):
    async def connect(self) -> bool:
        """Make sure within `CONNECT_S` that contexts can begin; True if this made a new connection. Safe to cancel.

        Raises:
            SpeechError: the node cannot be reached, or refuses.
        """
        ...

    async def check(self, session: Session) -> None:
        """Raise a `SpeechError` if the node refuses these settings. Safe to cancel."""
        ...

    def begin(self, session: Session) -> AnyUtterance:
        """Start a context; it takes a slot, or a place in the queue, before its first word.

        Raises:
            SpeechError: refused at once; a later refusal is raised by its events.
        """
        ...

    async def close(self) -> bool:
        """Stop all speech and disconnect; True if there was a connection. Idempotent; `connect` may follow."""
        ...


class WebSocketNodeClient:
    """A node at a url. `connect` replaces a connection that was lost or whose node is draining."""

    def __init__(self, url: str, api_key: str | None) -> None:
        stream_url(url)  # raises SettingsError for an invalid url
        self._url = url
        self._api_key = api_key
        # The connection for new contexts. None before the first.
        self._node: NodeConnection | None = None
        # The connection before it, whose draining node lets its contexts finish; otherwise None.
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

    def begin(self, session: Session) -> AnyUtterance:
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
