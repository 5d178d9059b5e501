"""The node's uvicorn: signals, drain, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI
from loguru import logger

from agent_tts.config.files import FileContents
from agent_tts.config.settings import Settings
from agent_tts.errors import EngineLost
from agent_tts.serve.access.fair_queue import Flow
from agent_tts.serve.node import Node
from agent_tts.serve.processes.listener import CONNECTION_BACKLOG, url_of
from agent_tts.serve.processes.process import raise_limit_of_files
from agent_tts.serve.processes.reload import Change, Reload
from agent_tts.serve.transports import tcp
from agent_tts.serve.transports.tls import Handshakes, server_context
from agent_tts.serve.transports.uvicorn_protocols import HttpProtocol, NodeConfig
from agent_tts.text.entries import Lexicon

TICKS_PER_S = 10  # of uvicorn's main loop
DRAIN_CHECK_S = 0.05  # between checks of the send buffers


class NodeServer(uvicorn.Server):
    """A uvicorn that drains: the first SIGTERM or SIGINT lets open contexts finish, the second ends them at once."""

    config: NodeConfig

    def __init__(
        self,
        app: FastAPI,
        on_ready: Callable[[str], None] | None = None,
        reload: Reload | None = None,
        contents: FileContents | None = None,
    ) -> None:
        self._node: Node = app.state.node
        super().__init__(NodeConfig(app, self._node.settings, contents))
        self._app = app
        # Called once the node takes requests, with its URL, which is empty where it listens nowhere.
        self._on_ready = on_ready
        # What SIGHUP does; None where that has no meaning.
        self._reload = reload
        # The drain, once it has begun.
        self._drain: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sockets: list[socket.socket] = []
        self._handshakes: Handshakes | None = None  # with TLS
        self.exit_code = 0  # of the process

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until drained. Cancelling it stops the server without a drain."""
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets or []
        reload = None
        if self._reload is not None and sys.platform != "win32":
            reload = asyncio.create_task(self._reload.serve(self._use_change), name="reload")
        try:
            await super().serve(sockets)
        finally:
            ending = [task for task in (reload, self._drain) if task is not None]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the engines, then take requests. Raises what `SpeechService.start` does."""
        try:
            await super().startup(sockets if self.config.tls is None else [])
        except SystemExit:  # uvicorn raises it when the application's lifespan fails
            raise self._app.state.start_error or EngineLost("the node did not start") from None
        if self.config.tls is not None:
            await self._listen_for_tls(self._sockets, self.config.tls)
        if self._on_ready is not None and not self.should_exit:
            self._on_ready(url_of(self._sockets[0], self._node.settings) if self._sockets else "")

    def use(self, settings: Settings, lexicon: Lexicon | None, contents: FileContents) -> None:
        """Take settings that differ from the present ones in what `reload` calls live, and their files: no cut.

        Raises `SettingsError` for a certificate that cannot be used; all is as before.
        """
        tls = server_context(settings.tls, contents)
        raise_limit_of_files(settings, warn=self._node.supervisor is None)
        self._node.settings = settings
        self._node.service.lexicon = lexicon
        self._node.guard.configure(settings)
        self.config.use(settings, tls)
        if self._handshakes is not None and tls is not None:
            self._handshakes.context, self._handshakes.timeout_s = tls, settings.timeouts.handshake_s
        for listener in self._sockets:
            tcp.set_user_timeout(listener, settings.timeouts.tcp_user_s)

    def _use_change(self, change: Change) -> None:
        self.use(change.apply(self._node.settings), change.lexicon, change.contents)

    async def _listen_for_tls(self, sockets: list[socket.socket], context: ssl.SSLContext) -> None:
        config = self.config
        self._handshakes = Handshakes(
            context,
            config.settings.timeouts.handshake_s,
            Flow(self._node.fair_queue.share("TLS handshakes")),
            lambda: HttpProtocol(config, self.server_state, self.lifespan.state),
            entered=config.enter,
            left=config.table.remove,
        )
        for listener in sockets:
            server = await asyncio.get_running_loop().create_server(
                self._handshakes.protocol, sock=listener, backlog=CONNECTION_BACKLOG
            )
            self.servers.append(server)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._handshakes is not None:
            await self._handshakes.abort()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        if self._node.service.failed:
            logger.error("no engine can be kept running: the node exits")
            self.exit_code = 1
            return True
        if counter % TICKS_PER_S == 0:
            self.config.count_files()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """One of several fronts obeys its supervisor instead."""
        with contextlib.nullcontext() if self._node.supervisor is not None else super().capture_signals():
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop_once_or_twice, sig)

    def _stop_once_or_twice(self, sig: int) -> None:
        if not self.started and not self.should_exit:
            self.exit_code, self.should_exit = 128 + sig, True  # it shuts down cleanly as soon as it has started
            return
        if self._drain is not None or not self.started:
            self.exit_code = 0 if self.started and self.should_exit else 128 + sig
            self.should_exit = self.force_exit = True
            return
        logger.info("{}: draining until open contexts have finished; repeat it to exit now", signal.Signals(sig).name)
        self.drain()

    def drain(self) -> None:
        """Refuse new contexts, and exit when the open ones have finished. Idempotent."""
        if self._drain is None:
            self._drain = asyncio.create_task(self._drain_then_exit(), name="drain")

    async def _drain_then_exit(self) -> None:
        timeout_s = self._node.settings.timeouts.drain_s
        self._node.service.draining = True
        self._node.metrics.draining.set(1)
        for session in list(self._node.sessions):
            session.drain()
        try:
            async with asyncio.timeout(timeout_s):
                await self._node.service.drain()
                while self._is_sending():  # noqa: ASYNC110 - kernel buffers have no event
                    await asyncio.sleep(DRAIN_CHECK_S)
        except TimeoutError:
            logger.warning("drain: contexts still open after {:g} s are cut", timeout_s)
        self.should_exit = True

    def _is_sending(self) -> bool:
        state = self.server_state
        return bool(self._node.sessions or state.tasks) or any(
            connection.transport.get_write_buffer_size() for connection in state.connections
        )
