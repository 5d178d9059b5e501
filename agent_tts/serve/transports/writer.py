"""Sending to a client that may not take it: one deadline for WebSockets and HTTP responses."""

from __future__ import annotations

import asyncio
import sys
from asyncio import Transport
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from starlette.types import Message, Scope, Send

from agent_tts.errors import SlowConsumer

# Key in `scope["extensions"]` under which an endpoint finds its `EndpointConnection`.
CONNECTION = "agent_tts.connection"

# Bytes of one write, if it is of several messages: a third of a second of 24 kHz audio. More than this, and a message,
# is never held back in this process for one connection: it would only hide a slow reader for longer.
WRITE_BYTES = 16_384

# Looks at the backlog within one deadline.
LOOKS = 4


class EndpointConnection(Protocol):
    """An endpoint's connection."""

    transport: Transport

    @property
    def is_full(self) -> bool:
        """Whether what was written waits in this process."""
        ...

    async def drained(self) -> None:
        """Wait until it is not full, or lost. Cancelling it is safe."""
        ...


class EndpointWebSocket(EndpointConnection, Protocol):
    """The connection of a WebSocket, once it is accepted."""

    def write(self, messages: Sequence[str | bytes]) -> None:
        """Write messages at once, whether there is room or not.

        Raises:
            ClientDisconnected: the WebSocket is at its end.
        """
        ...

    def demand_pongs(self, demands: Callable[[], bool]) -> None:
        """Ask `demands` from now on whether the client has to answer pings; by default it always has to."""
        ...


class Writer:
    """The single writer of one connection.

    Args:
        send: the ASGI send of the endpoint, which waits for nothing but room.
        write_s: time without any progress, in seconds, after which the client counts as gone.
    """

    def __init__(self, scope: Scope, send: Send, write_s: float) -> None:
        self._send = send
        self._look_s = write_s / LOOKS
        # To look at its backlog and to cut it.
        self._connection: EndpointConnection = scope["extensions"][CONNECTION]
        # Full with the first byte that the kernel does not take: TLS is full at this mark, TCP above it.
        self._connection.transport.set_write_buffer_limits(high=1, low=0)

    async def write(self, message: Message | dict[str, Any]) -> None:
        """Send one message when there is room. Cancelling it leaves nothing half sent.

        Raises:
            SlowConsumer: as `room`.
        """
        await self.room()
        await self._send(message)

    async def room(self) -> None:
        """Wait until the kernel has all that was written. Costs nothing if it has. Cancelling it is safe.

        Raises:
            SlowConsumer: the client took nothing at all for `write_s`.
        """
        backlog, looks = sys.maxsize, 0
        while self._connection.is_full:
            try:
                async with asyncio.timeout(self._look_s):
                    await self._connection.drained()
            except TimeoutError:
                before, backlog = backlog, unsent_bytes(self._connection.transport)
                looks = 1 if backlog < before else looks + 1
                if looks == LOOKS:
                    raise SlowConsumer("the client does not take its audio") from None

    def cut(self) -> None:
        """End the connection without waiting for what the client has not taken."""
        self._connection.transport.abort()

    @property
    def is_closing(self) -> bool:
        """Whether the connection is at its end."""
        return self._connection.transport.is_closing()


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
