"""`GET /v1/tts/stream`: one protocol session on one WebSocket, with a single reader and a single writer."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio import Transport

from loguru import logger
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from agent_tts.errors import Draining, SlowConsumer, SpeechError
from agent_tts.serve import protocol
from agent_tts.serve.node import Node
from agent_tts.serve.server import TRANSPORT
from agent_tts.serve.session import AudioChunk, Session

# Close codes of errors that refuse a connection as a whole.
CLOSE_CODES = {"unauthorized": 1008, "at_capacity": 1013, "draining": 1012}

# What asyncio may hold back in this process for one connection, in bytes: a third of a second of 24 kHz audio. More
# would only hide a slow reader for longer.
WRITE_BUFFER = 16_384


class StreamEndpoint:
    """The ASGI application of the route."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        offered = scope.get("subprotocols", [])
        async with asyncio.timeout(self._node.settings.timeouts.handshake_s):
            await websocket.accept(subprotocol=protocol.SUBPROTOCOL if protocol.SUBPROTOCOL in offered else None)
        try:
            client = self._node.guard.authorize(websocket.headers, websocket.query_params, token_ok=True)
            if self._node.service.draining:
                raise Draining("the node is going away: use another one")
            with self._node.guard.admit(client):
                await Connection(self._node, websocket).run()
        except SpeechError as error:
            self._node.metrics.refused.labels(error.code).inc()
            await self._refuse(websocket, error)

    async def _refuse(self, websocket: WebSocket, error: SpeechError) -> None:
        with contextlib.suppress(Exception):  # the client may be gone: it was to be refused anyway
            async with asyncio.timeout(self._node.settings.timeouts.write_s):
                await websocket.send_text(protocol.build_error(error, fatal=True))
                await websocket.close(CLOSE_CODES.get(error.code, 1011), error.message)


class Connection:
    """Moves messages between a socket and its session."""

    def __init__(self, node: Node, websocket: WebSocket) -> None:
        self._node = node
        self._websocket = websocket
        # The TCP connection under it, to look at its backlog and to cut it.
        self._transport: Transport = websocket.scope["extensions"][TRANSPORT]
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self._session = Session(node, "websocket")
        # Set when the session may have something to send.
        self._wake = asyncio.Event()
        self._wake.set()
        self._session.waker = self._wake.set

    async def run(self) -> None:
        """Serve until either side closes. Cancelling it stops all speech of the connection at once."""
        writer = asyncio.create_task(self._write(), name=f"writer of session {self._session.id}")
        try:
            await self._read()
        finally:
            self._session.close()
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            self._session.receive(message["bytes"] if text is None else text)

    async def _write(self) -> None:
        """The single writer. It ends after a close frame, or by cutting a connection that takes nothing."""
        try:
            while True:
                self._wake.clear()
                while (item := self._session.poll()) is not None:
                    await self._send(item.message() if isinstance(item, AudioChunk) else item)
                if self._session.closing is not None:
                    code, reason = self._session.closing
                    await self._websocket.close(code, reason)
                    return
                await self._wait()
        except SlowConsumer:
            self._node.metrics.refused.labels("slow_consumer").inc()
            logger.warning("session {}: slow_consumer, connection cut", self._session.id)
            self._transport.abort()
        except Exception as error:  # noqa: BLE001
            # The reader sees the end of the connection and cleans up; a writer must not outlive it.
            if not self._transport.is_closing():
                logger.error("session {}: writer failed: {}", self._session.id, type(error).__name__)
            self._transport.abort()

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._node.settings.limits.session_idle_s):
                await self._wake.wait()
        self._session.expire()

    async def _send(self, message: str | bytes) -> None:
        """Send one message.

        Raises:
            SlowConsumer: the client took nothing at all for `timeouts.write_s`.
        """
        event = {"type": "websocket.send", "bytes" if isinstance(message, bytes) else "text": message}
        backlog = sys.maxsize
        while True:
            try:
                async with asyncio.timeout(self._node.settings.timeouts.write_s):
                    # Waits for room before it writes, so a timeout leaves nothing half sent.
                    await self._websocket.send(event)
                return
            except TimeoutError:
                before, backlog = backlog, unsent_bytes(self._transport)
                if backlog >= before:
                    raise SlowConsumer("the client does not take its audio") from None


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
