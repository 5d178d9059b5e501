"""One of several front processes: `python -m agent_tts.serve.processes.front PARENT_PID CHANNEL LOG NUMBER`.

CHANNEL and LOG are descriptors: a socket to the supervisor, which sends the settings, links to the engines and when to
drain, and the node's stderr. NUMBER is the front's, for those who list processes. It ignores the signals that end a
node, and exits as soon as the supervisor is gone.

Exit codes: 0 after a drain, or when the supervisor is gone; 1 when it cannot serve with its settings.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
from functools import partial
from typing import Any, cast

if __name__ == "__main__":
    gc.disable()  # until `main`: see `without_collections`

from agent_tts.config.files import FileContents
from agent_tts.config.lexicon import node_lexicon
from agent_tts.config.settings import Settings
from agent_tts.errors import SettingsError
from agent_tts.ipc import front_messages
from agent_tts.ipc.channel import Channel
from agent_tts.ipc.engine_link import EngineLink
from agent_tts.messages import EngineState
from agent_tts.serve.access.supervisor_client import SupervisorClient
from agent_tts.serve.app import create_app, extension_of
from agent_tts.serve.local_engine import service_of
from agent_tts.serve.processes.listener import share
from agent_tts.serve.processes.process import leave, raise_limit_of_files, runner, warm_up
from agent_tts.serve.processes.server import NodeServer
from agent_tts.serve.telemetry.logs import log_to_stderr
from agent_tts.speech.service import SpeechService
from agent_tts.system import open_files
from agent_tts.system.in_child import arrange_signals, die_with
from agent_tts.text.entries import Lexicon


class Front:
    """One of several fronts, as the supervisor's messages make it."""

    def __init__(self, sock: socket.socket, log: int) -> None:
        self._log = log
        self._channel = Channel(sock, front_messages.ToFront, lambda _: os._exit(0))  # the supervisor is gone
        # The server and its sockets, completed by the first message; and the engines behind the links of this front.
        self._built: asyncio.Future[tuple[NodeServer, list[socket.socket]]] = asyncio.get_running_loop().create_future()
        self._service: SpeechService
        # Set when requests may be taken.
        self._may_serve = asyncio.Event()
        # Held while settings are used: those that came first go first.
        self._using = asyncio.Lock()
        # States of the engines, as told last.
        self._states: dict[int, EngineState] = {}
        self._channel.handle(front_messages.FrontSetup, self._set_up)
        self._channel.handle(front_messages.EngineUp, self._take_link, fds=1)
        self._channel.handle(front_messages.EngineIs, self._note_state)
        self._channel.handle(front_messages.Serve, lambda _: self._may_serve.set())
        self._channel.handle(front_messages.Drain, lambda _: self._built.result()[0].drain())
        self._channel.handle(front_messages.UseSettings, self._use)
        self._channel.handle(front_messages.Beat, lambda _: None)

    @classmethod
    async def run(cls, sock: socket.socket, log: int) -> int:
        """Serve until the supervisor has it drain; returns the exit code."""
        front = cls(sock, log)
        server, listeners = await front._built
        await front._may_serve.wait()
        await server.serve(listeners)
        return server.exit_code

    def _set_up(self, setup: front_messages.FrontSetup) -> str | None:
        """Make all that can be made before the engines have started."""
        settings, contents = Settings.model_validate(setup.settings), _bytes_of(setup.files)
        log = log_to_stderr(settings.log_level, settings.log_format, front=setup.number, fd=self._log)
        raise_limit_of_files(settings, warn=False)
        try:
            listeners = [] if setup.port is None else [share(settings, setup.port)]
            beat_s, tell = settings.timeouts.engine_heartbeat_s, self._channel.tell
            asks = [partial(tell, front_messages.LinkLost(engine)) for engine in range(setup.engines)]
            links = [partial(EngineLink, ask, beat_s) for ask in asks]
            self._service = service_of(settings, links, contents, tries=False, prefers=setup.number)
            supervisor = SupervisorClient(setup.number, self._channel, bytes.fromhex(setup.token_secret))
            extension = extension_of(settings, setup.extension)
            app = create_app(settings, self._service, extension, supervisor, contents)
            server = NodeServer(app, lambda _: self._channel.tell(front_messages.FrontReady()), contents=contents)
        except SettingsError as error:
            return str(error)
        log.on_lost = lambda why: app.state.node.metrics.log_lost.labels(why).inc()
        warm_up(app)
        self._built.set_result((server, listeners))
        return None

    async def _take_link(self, up: front_messages.EngineUp, fd: int) -> None:
        engine = self._service.engines[up.engine]
        await cast(EngineLink, engine.client).connect(socket.socket(fileno=fd), up.greeting)
        engine.tell(self._states[up.engine])  # which may have changed meanwhile

    def _note_state(self, told: front_messages.EngineIs) -> None:
        self._states[told.engine] = told.state
        if self._built.done():
            self._service.engines[told.engine].tell(told.state)

    async def _use(self, told: front_messages.UseSettings) -> str | None:
        server, _ = self._built.result()
        contents = _bytes_of(told.files)
        try:
            async with self._using:
                server.use(*await asyncio.to_thread(_read, told.settings, contents), contents)
        except SettingsError as error:
            return str(error)
        return None


def _read(document: dict[str, Any], contents: FileContents) -> tuple[Settings, Lexicon | None]:
    """In a thread: settings with 1 000 keys take 0.1 s."""
    settings = Settings.model_validate(document)
    return settings, node_lexicon(settings, contents)


def _bytes_of(files: dict[str, str]) -> dict[str, bytes]:
    return {path: content.encode("latin1") for path, content in files.items()}


def main() -> None:
    """Run a front process."""
    gc.enable()
    parent, channel, log = map(int, sys.argv[1:4])
    die_with(parent)
    open_files.keep(channel, log)
    os.dup2(2, 1)  # what a library prints is for the supervisor
    arrange_signals()
    with runner() as running:
        code = running.run(Front.run(socket.socket(fileno=channel), log))
    # The supervisor takes the end of the channel for the end of the process.
    leave(code)


if __name__ == "__main__":
    main()
