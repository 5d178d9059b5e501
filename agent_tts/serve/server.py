"""The node's listening socket and its uvicorn: deadlines and sizes that uvicorn has not, signals, drain, exit code."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI
from loguru import logger
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from agent_tts.errors import EngineLost, SettingsError
from agent_tts.serve.node import Node
from agent_tts.serve.writer import TRANSPORT
from agent_tts.settings import Settings

# Kernel buffer of a client connection, in bytes, as asked for; Linux doubles it. Without it a client that never reads
# takes 84 s of audio before anybody notices.
SEND_BUFFER = 65_536

MAX_HEADER_BYTES = 65_536
MAX_HEADERS = 100
CONNECTION_BACKLOG = 1_024
DRAIN_LOOK_S = 0.05
SHUTDOWN_S = 2  # for responses that are still being sent after the drain


class HttpProtocol(HttpToolsProtocol):
    """HTTP with a deadline for strangers and a limit on headers; endpoints can see and cut their connection."""

    # Cuts the connection when the headers of its first request are late; None once they are there.
    _stranger: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        assert isinstance(self.config, NodeConfig)
        self._stranger = self.loop.call_later(self.config.settings.timeouts.handshake_s, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._welcome()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extensions: dict[str, object] = {TRANSPORT: self.transport}
        self.scope["extensions"] = extensions  # type: ignore[typeddict-item]

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES or len(self.headers) >= MAX_HEADERS:
            raise ValueError("too many headers")  # answered with 400 and the end of the connection
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._welcome()
        self._header_bytes = 0
        super().on_headers_complete()

    def _welcome(self) -> None:
        if self._stranger is not None:
            self._stranger.cancel()
            self._stranger = None


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket whose endpoint can see and cut its TCP connection."""

    async def run_asgi(self) -> None:
        extensions: dict[str, object] = self.scope["extensions"]  # type: ignore[assignment]
        extensions[TRANSPORT] = self.transport
        await super().run_asgi()


def listen(settings: Settings) -> socket.socket:
    """The listening socket; accepted connections inherit its options.

    Raises:
        SettingsError: the address cannot be used; the message says why.
    """
    host, port = settings.host, settings.port
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise SettingsError(f"host {host} is not an address of this machine: {error.strerror}") from error
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY by it
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = round(settings.timeouts.tcp_user_s * 1_000)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        listener.bind(address)
        listener.listen(CONNECTION_BACKLOG)
    except OSError as error:
        listener.close()
        raise SettingsError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    listener.setblocking(False)
    return listener


class NodeConfig(uvicorn.Config):
    """The node's uvicorn."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        super().__init__(
            app,
            http=HttpProtocol,
            ws=WebSocketProtocol,
            ws_max_size=settings.limits.message_bytes,
            ws_per_message_deflate=False,
            ws_ping_interval=settings.timeouts.ping_s,
            ws_ping_timeout=settings.timeouts.ping_s,
            timeout_graceful_shutdown=SHUTDOWN_S,
            access_log=False,
            log_config=None,
            log_level="warning",
            lifespan="on",
            proxy_headers=False,
            server_header=False,
        )
        self.settings = settings


class NodeServer(uvicorn.Server):
    """A uvicorn that drains: the first SIGTERM or SIGINT lets running speech finish, the second ends it at once."""

    def __init__(self, app: FastAPI, settings: Settings, on_ready: Callable[[str], None] | None = None) -> None:
        super().__init__(NodeConfig(app, settings))
        self._node: Node = app.state.node
        # Told the URL once requests are taken.
        self._on_ready = on_ready
        # The drain, once it has begun. Awaited by `serve`.
        self._drain: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # What the process is to exit with.
        self.exit_code = 0

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until drained. Cancelling it stops the server without a drain."""
        self._loop = asyncio.get_running_loop()
        try:
            await super().serve(sockets)
        finally:
            if self._drain is not None:
                self._drain.cancel()
                await asyncio.gather(self._drain, return_exceptions=True)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Bring the engine up, then take requests.

        Raises:
            EngineLost: it did not come up; the log says why.
        """
        try:
            await super().startup(sockets)
        except SystemExit:  # how uvicorn says that the application's lifespan failed
            raise EngineLost("the engine did not come up") from None
        if sockets and self._on_ready is not None:
            host, port = sockets[0].getsockname()[:2]
            self._on_ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    async def on_tick(self, counter: int) -> bool:
        """Called every 0.1 s; whether to stop."""
        if self._node.service.failed:
            logger.error("the engine cannot be kept up: the node ends")
            self.exit_code = 1
            return True
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: drain, or leave at once if that was asked for already."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop_once_or_twice, sig)

    def _stop_once_or_twice(self, sig: int) -> None:
        if self._drain is not None or not self.started:
            self.exit_code = 0 if self.started and self.should_exit else 128 + sig
            self.should_exit = self.force_exit = True
            return
        logger.info("{}: draining, running speech may finish; once more to leave at once", signal.Signals(sig).name)
        self._drain = asyncio.create_task(self._drain_then_exit(), name="drain")

    async def _drain_then_exit(self) -> None:
        timeout_s = self._node.settings.timeouts.drain_s
        self._node.service.draining = True
        for session in list(self._node.sessions):
            session.drain()
        try:
            async with asyncio.timeout(timeout_s):
                await self._node.service.drain(timeout_s)
                while self._is_sending():
                    await asyncio.sleep(DRAIN_LOOK_S)
        except TimeoutError:
            logger.warning("drain: speech still running after {:g} s is cut", timeout_s)
        self.should_exit = True

    def _is_sending(self) -> bool:
        """Whether what was spoken is still on its way: in a session, a response, or a connection's buffer."""
        state = self.server_state
        return bool(self._node.sessions or state.tasks) or any(
            connection.transport.get_write_buffer_size() for connection in state.connections
        )
