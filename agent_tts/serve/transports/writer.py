"""Sending to a client that may not read: one rule for WebSockets and HTTP responses."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from agent_tts.config.settings import Timeouts
from agent_tts.errors import SlowConsumer
from agent_tts.serve.connections import CONNECTION
from agent_tts.serve.transports import tcp
from agent_tts.serve.transports.pace import Pace
from agent_tts.serve.transports.uvicorn_protocols import HttpProtocol, WebSocketProtocol, cut, socket_of

# Bytes of one write of several messages: half a second of 24 kHz audio. This and one message is the most that
# waits in this process for one connection; more would hide a slow reader for longer.
WRITE_BYTES = 24_576
FIRST_WAIT_S = 0.005  # for the kernel to send what it has
CHECKS = 4  # of what the client takes, within `timeouts.write_s`


async def disconnected(receive: Receive) -> None:
    """Wait until the client of an HTTP request has left; unread parts of its body are dropped. Cancelling is safe."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Writer:
    """The single writer of one connection.

    Args:
        send: the ASGI send of the endpoint, which waits only for room.

    Raises:
        ClientDisconnected: the client has left meanwhile, which uvicorn does not log.
    """

    def __init__(self, scope: Scope, send: Send, timeouts: Timeouts) -> None:
        self._send = send
        self._timeouts = timeouts
        self._check_s = timeouts.write_s / CHECKS
        # Whether the client can tell the end of what is sent from a lost connection.
        self.is_framed = scope.get("http_version") != "1.0"
        self._connection: HttpProtocol | WebSocketProtocol = scope["extensions"][CONNECTION]
        if self._connection.transport.is_closing():  # it has no socket to ask, and takes no options
            raise ClientDisconnected
        self._socket = socket_of(self._connection.transport)
        self._clock = asyncio.get_running_loop().time
        self._pace = Pace(timeouts.write_s, self._clock())
        # When it was last asked what the client has taken, and whether its machine is there.
        self._looked_at = self._sought_at = self._clock()
        # Full with the first byte that the kernel does not take: TLS is full at the mark, TCP above it.
        self._connection.transport.set_write_buffer_limits(high=1, low=0)
        self._connection.wait_for_player()

    async def write(self, message: Message | dict[str, Any], audio_s: float = 0.0) -> None:
        """Send a message with `audio_s` of audio after `room`, whose errors it raises.

        Cancelling it sends all of the message or nothing.
        """
        await self.room()
        await self._send(message)
        self.wrote(len(message.get("body", b"")), audio_s)

    def wrote(self, size: int, audio_s: float) -> None:
        """`size` bytes with `audio_s` of audio were written to the connection."""
        self._pace.wrote(size, audio_s)

    def has_room(self) -> bool:
        """Whether the kernel has all that was written. Raises `SlowConsumer`."""
        now = self._clock()
        if now - self._looked_at >= self._check_s:  # not before each frame: it takes a call of the kernel
            self._seek(now)
        return not self._connection.is_full

    async def room(self) -> None:
        """Wait until there is room. Cancelling it is safe. Raises `SlowConsumer`."""
        since = self._clock()
        while not self.has_room():
            try:
                async with asyncio.timeout(self._check_s):
                    await self._connection.drained()
            except TimeoutError:
                self._judge(since)

    async def finish(self) -> None:
        """Wait until all that was written is on its way: the end of a response, or of a connection, may follow.

        Otherwise a player that has no room would be left to the kernel. As `room`.
        """
        await self.room()
        since, wait_s = self._clock(), FIRST_WAIT_S
        while tcp.unsent_bytes(self._socket):
            await asyncio.sleep(wait_s)
            wait_s = min(1.5 * wait_s, self._check_s)
            self._judge(since)

    def unplayed_s(self) -> float:
        """Seconds until the slowest player has played all that was written; meanwhile it may read nothing."""
        now = self._clock()
        self._look(now)
        return self._pace.unplayed_s(now)

    def cut(self) -> None:
        """Close the connection; unsent bytes are dropped, the kernel's too."""
        cut(self._connection.transport)

    def _look(self, now: float) -> int:
        """See what the client has taken; returns the bytes that it has not."""
        waiting = tcp.untaken_bytes(self._socket)
        if not self._connection.transport.is_closing():
            waiting += self._connection.transport.get_write_buffer_size()
        self._pace.look(now, waiting)
        self._looked_at = now
        return waiting

    def _judge(self, since: float) -> None:
        """Raise `SlowConsumer` if a client that has had no room since then is late."""
        now = self._clock()
        self._seek(now)
        if now >= self._pace.deadline(since):
            raise SlowConsumer("the client does not read its audio")

    def _seek(self, now: float) -> None:
        if self._look(now) and now - self._sought_at >= self._check_s:
            self._sought_at = now
            if tcp.is_lost(self._socket, self._timeouts.tcp_user_s):
                raise SlowConsumer("the client's machine does not answer")
