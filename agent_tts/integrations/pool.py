"""A pool of connections to a node, so that a reply does not wait for a handshake."""

from __future__ import annotations

import asyncio
import logging

from agent_tts.client.connection import OPEN_S, NodeInfo
from agent_tts.client.moving import AnyConnection, Target
from agent_tts.errors import SpeechError

log = logging.getLogger(__name__)


class Pool:
    """Connections to one node, each shared by as many contexts as the node allows.

    A connection that was lost, or whose node is draining, gets no new contexts; the next `usable` replaces it.
    """

    def __init__(self, target: Target) -> None:
        """Connects to nothing yet."""
        self._target = target
        # Open connections, and dead ones that are not closed yet.
        self._connections: list[AnyConnection] = []
        # Held while a connection is made or dead ones are closed.
        self._changing = asyncio.Lock()
        # Makes the first connection early; None before `prewarm`. Cancelled and awaited by `close`.
        self._prewarming: asyncio.Task[None] | None = None
        # The node's last greeting; None before the first connection.
        self.info: NodeInfo | None = None

    async def usable(self, timeout_s: float) -> tuple[AnyConnection, bool]:
        """A connection on which a context may begin at once, and whether it existed before. Cancelling it is safe.

        Raises:
            SpeechError: the node cannot be reached, or refuses the connection.
            TimeoutError: the node did not answer within `timeout_s`.
        """
        async with asyncio.timeout(timeout_s), self._changing:
            for node in [node for node in self._connections if not node.is_usable and not node.contexts]:
                await node.close()
                self._connections.remove(node)
            for node in self._connections:
                if node.is_usable and node.contexts < node.info.limits["contexts"]:
                    return node, True
            self._connections.append(node := await self._target.open())
            self.info = node.info
            return node, False

    def prewarm(self) -> None:
        """Connect in the background, once at a time. A failure is logged; the first speech tries again."""
        if self._prewarming is None or self._prewarming.done():
            self._prewarming = asyncio.create_task(self._prewarm(), name="prewarming of a node connection")

    async def close(self) -> None:
        """Stop all speech and close every connection, within 4 s. Idempotent; the next `usable` connects again."""
        if self._prewarming is not None:
            self._prewarming.cancel()
            await asyncio.wait([self._prewarming])
        async with self._changing:
            await asyncio.gather(*(node.close() for node in self._connections))
            self._connections.clear()

    # ------------------------------------------------------------ inside

    async def _prewarm(self) -> None:
        try:
            await self.usable(OPEN_S)
        except (SpeechError, TimeoutError) as error:
            log.warning("no connection to the node yet: %s", error or "it did not answer in time")
