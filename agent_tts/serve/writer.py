"""Sending to a client that may not take it: one deadline for WebSockets and HTTP responses."""

from __future__ import annotations

import asyncio
import sys
from asyncio import Transport
from typing import Any

from starlette.types import Message, Scope, Send

from agent_tts.errors import SlowConsumer

# Key in `scope["extensions"]` under which an endpoint finds its TCP connection.
TRANSPORT = "agent_tts.transport"

# Key likewise for what says when a WebSocket's client has to answer pings: called with a predicate, at any time.
DEMAND_PONGS = "agent_tts.demand_pongs"

# What asyncio may hold back in this process for one connection, in bytes: a third of a second of 24 kHz audio. More
# would only hide a slow reader for longer.
WRITE_BUFFER = 16_384

# Looks at the backlog within one deadline.
LOOKS = 4


class Writer:
    """The single writer of one connection.

    Args:
        send: the ASGI send of the endpoint, which waits for room before it writes.
        write_s: time without any progress, in seconds, after which the client counts as gone.
    """

    def __init__(self, scope: Scope, send: Send, write_s: float) -> None:
        self._send = send
        self._look_s = write_s / LOOKS
        # The TCP connection, to look at its backlog and to cut it.
        self._transport: Transport = scope["extensions"][TRANSPORT]
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)

    async def write(self, message: Message | dict[str, Any]) -> None:
        """Send one message. Cancelling it leaves nothing half sent.

        Raises:
            SlowConsumer: the client took nothing at all for `write_s`.
        """
        backlog, looks = sys.maxsize, 0
        while looks < LOOKS:
            try:
                async with asyncio.timeout(self._look_s):
                    await self._send(message)
                return
            except TimeoutError:
                before, backlog = backlog, unsent_bytes(self._transport)
                looks = 1 if backlog < before else looks + 1
        raise SlowConsumer("the client does not take its audio")

    def cut(self) -> None:
        """End the connection without waiting for what the client has not taken."""
        self._transport.abort()

    @property
    def is_closing(self) -> bool:
        """Whether the connection is at its end."""
        return self._transport.is_closing()


def unsent_bytes(transport: Transport) -> int:
    """Bytes of a connection that its peer has not taken: in this process and, on Linux, in the kernel."""
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
