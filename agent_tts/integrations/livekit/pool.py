"""A pool of connections to a node, so that a reply does not wait for a handshake."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agent_tts.client.connection import OPEN_S, NodeInfo
from agent_tts.client.moving import AnyConnection, Target
from agent_tts.errors import SpeechError

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _PooledConnection:
    node: AnyConnection
    users: int = 0  # contexts on it


class Pool:
    """Connections to one node, each shared by as many contexts as the node allows.

    A connection that was lost, or whose node is draining, gets no new contexts; the next `connection` replaces it.
    """

    def __init__(self, target: Target) -> None:
        """Connects to nothing yet."""
        self._target = target
        # Open connections, and dead ones that are not closed yet.
        self._connections: list[_PooledConnection] = []
        # Held while a connection is made or dead ones are closed.
        self._changing = asyncio.Lock()
        # Makes the first connection early; None before `prewarm`. Cancelled and awaited by `close`.
        self._prewarming: asyncio.Task[None] | None = None
        # The node's last greeting; None before the first connection.
        self.info: NodeInfo | None = None

    @asynccontextmanager
    async def connection(self, timeout_s: float) -> AsyncIterator[tuple[AnyConnection, bool]]:
        """A connection for one context while the block runs, and whether it existed before. Cancelling it is safe.

        Raises:
            SpeechError: the node cannot be reached, or refuses the connection.
            TimeoutError: the node did not answer within `timeout_s`.
        """
        async with asyncio.timeout(timeout_s):
            pooled, is_reused = await self._find()
        pooled.users += 1
        try:
            yield pooled.node, is_reused
        finally:
            pooled.users -= 1

    def prewarm(self) -> None:
        """Connect in the background, once at a time. A failure is logged; the first speech tries again."""
        if self._prewarming is None or self._prewarming.done():
            self._prewarming = asyncio.create_task(self._prewarm(), name="prewarming of a node connection")

    async def close(self) -> None:
        """Stop all speech and close every connection, within 4 s. Idempotent; the next `connection` connects again."""
        if self._prewarming is not None:
            self._prewarming.cancel()
            await asyncio.wait([self._prewarming])
        async with self._changing:
            await asyncio.gather(*(pooled.node.close() for pooled in self._connections))
            self._connections.clear()

    # ------------------------------------------------------------ inside

    async def _find(self) -> tuple[_PooledConnection, bool]:
        async with self._changing:
            for pooled in [pooled for pooled in self._connections if not pooled.node.is_usable and pooled.users == 0]:
                await pooled.node.close()
                self._connections.remove(pooled)
            for pooled in self._connections:
                if pooled.node.is_usable and pooled.users < pooled.node.info.limits["contexts"]:
                    return pooled, True
            pooled = _PooledConnection(await self._target.open())
            self.info = pooled.node.info
            self._connections.append(pooled)
            return pooled, False

    async def _prewarm(self) -> None:
        try:
            async with self.connection(OPEN_S):
                pass
        except (SpeechError, TimeoutError) as error:
            log.warning("no connection to the node yet: %s", error or "it did not answer in time")
