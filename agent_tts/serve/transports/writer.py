"""Sending to a client that may not read: one deadline for WebSockets and HTTP responses."""

from __future__ import annotations

import asyncio
import sys
from asyncio import Transport
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from agent_tts.errors import SlowConsumer
from agent_tts.serve.connections import CONNECTION
from agent_tts.serve.server import HttpProtocol, WebSocketProtocol

# Bytes of one write of several messages: a third of a second of 24 kHz audio. This and one message is the most that
# waits in this process for one connection; more would hide a slow reader for longer.
WRITE_BYTES = 16_384
CHECKS = 4  # of the backlog within one deadline


async def disconnected(receive: Receive) -> None:
    """Wait until the client of an HTTP request has left; unread parts of its body are dropped. Cancelling is safe."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Writer:
    """The single writer of one connection.

    Args:
        send: the ASGI send of the endpoint, which waits only for room.
        write_s: seconds without any progress after which the client counts as gone.
    """

    def __init__(self, scope: Scope, send: Send, write_s: float) -> None:
        self._send = send
        self._check_s = write_s / CHECKS
        self._connection: HttpProtocol | WebSocketProtocol = scope["extensions"][CONNECTION]
        # Full with the first byte that the kernel does not take: TLS is full at the mark, TCP above it.
        self._connection.transport.set_write_buffer_limits(high=1, low=0)

    async def write(self, message: Message | dict[str, Any]) -> None:
        """Send a message after `room`, whose errors it raises. Cancelling it sends all of the message or nothing."""
        await self.room()
        await self._send(message)

    async def room(self) -> None:
        """Wait until the kernel has all that was written. Cancelling it is safe. Raises `SlowConsumer`."""
        backlog, checks = sys.maxsize, 0
        while self._connection.is_full:
            try:
                async with asyncio.timeout(self._check_s):
                    await self._connection.drained()
            except TimeoutError:
                before, backlog = backlog, unsent_bytes(self._connection.transport)
                checks = 1 if backlog < before else checks + 1
                if checks == CHECKS:
                    raise SlowConsumer("the client does not read its audio") from None

    def cut(self) -> None:
        """Close the connection; unsent bytes are dropped."""
        self._connection.transport.abort()


def unsent_bytes(transport: Transport) -> int:
    """Bytes of a connection that its peer has not acknowledged: in this process and, on Linux, in the kernel."""
    waiting = transport.get_write_buffer_size()
    if sys.platform != "linux":
        return waiting
    import fcntl
    import termios

    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return waiting
    answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    return waiting + int.from_bytes(answer, sys.byteorder)
