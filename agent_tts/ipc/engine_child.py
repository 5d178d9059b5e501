"""One engine process, from its spawning to its death: bytes, heartbeat, last words."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import cast

from loguru import logger

from agent_tts.config.settings import Settings
from agent_tts.errors import EngineLost, SettingsError
from agent_tts.events import EngineCommand, EngineEvent, EnginePing, EnginePong, EngineReady, StopEngine
from agent_tts.ipc.wire import TO_FRONT, Decoder, Setup, WireError, encode
from agent_tts.processes import DETACHED, REAP_S, TAIL_BYTES, kill, module_command, send_signal

# What the engine process is told. API keys and TURN credentials are none of its business.
ENGINE_SETTINGS = {"engine", "slots", "queue", "limits", "timeouts", "espeak", "tone", "qwen3", "voices"}

# The variables that it gets: those of the system, of Python and of numeric libraries. Any other may hold a secret.
ENVIRONMENT = re.compile(
    r"(PATH|HOME|LANG|TEMP|LD_LIBRARY_PATH|VIRTUAL_ENV|SYSTEMROOT|USERPROFILE|LOCALAPPDATA)\Z"
    r"|(LC_|TMP|DYLD_|PYTHON|OMP_|OPENBLAS_|MKL_|CUDA_|NVIDIA_|HF_|TORCH_|TRITON_|XDG_|COVERAGE_)"
)

MAX_UNREAD_BYTES = 8 << 20  # commands that the engine process does not read, then it counts as hung
BEATS = 5  # heartbeats without an answer, then it counts as hung

DUMP_S = 0.2  # for a hung process to write its stacks
STOP_S = 2.0  # for a stopped one to close its engine
LAST_WORDS_S = 0.2  # for its pipes to run empty after its end


class EngineChild(asyncio.SubprocessProtocol):
    """One life of the engine process.

    `on_events` gets what it sends, `EngineReady` first. `on_lost` is called at most once and last: after `EngineReady`,
    when the process is lost without having been stopped.
    """

    def __init__(
        self,
        settings: Settings,
        on_events: Callable[[list[EngineEvent]], None],
        on_lost: Callable[[str], None],
        name: str = "engine",
    ) -> None:
        self._settings = settings
        # What the log and errors call the engine.
        self._name = name
        self._on_events = on_events
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder(TO_FRONT)
        # The process. None until it is spawned.
        self._transport: asyncio.SubprocessTransport | None = None
        # Its commands. None until it is spawned.
        self._stdin: asyncio.WriteTransport | None = None
        # Frames of this tick of the event loop, written together at its end.
        self._outbox: list[bytes] = []
        # Whether its `EngineReady` has come.
        self._greeted = False
        # Whether it is to be ended: its events do not count, and its death is no loss.
        self._stopping = False
        # Whether it was given up while it still ran.
        self._hung = False
        # Completed by `EngineReady` or by a death before it.
        self._started: asyncio.Future[None] = self._loop.create_future()
        # Why no more events will come; completed the moment that is known.
        self.gone: asyncio.Future[str] = self._loop.create_future()
        # Completed when the process has ended and is reaped.
        self._exited: asyncio.Future[None] = self._loop.create_future()
        # Completed when its pipes are closed, too.
        self._closed: asyncio.Future[None] = self._loop.create_future()
        # Heartbeats sent since the last answer.
        self._unanswered = 0
        # The next heartbeat, or the patience with a pipe that outlives its process.
        self._timer: asyncio.TimerHandle | None = None
        # The end of what it wrote to stderr, `TAIL_BYTES` at most.
        self._tail = bytearray()
        # The start of a line of stderr whose end has not come.
        self._line = bytearray()

    @property
    def alive(self) -> bool:
        """Whether it has said `EngineReady` and is not known to be gone."""
        return self._greeted and not self.gone.done()

    @property
    def pid(self) -> int | None:
        """Its process id; None until it is spawned."""
        return None if self._transport is None else self._transport.get_pid()

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Spawn it and wait for its `EngineReady`. On failure, and when this is cancelled, nothing is left of it.

        Raises:
            SettingsError: the engine cannot be set up like that.
            EngineLost: it did not come up; the message holds the last line that it printed.
        """
        try:
            await self._come_up(self._settings.timeouts.engine_start_s)
        except BaseException:
            await self.end()
            raise
        if not self._greeted:
            await self.end()
            line, refusal = self._last_line(), f"{SettingsError.__name__}: "
            if line.startswith(refusal):
                raise SettingsError(line.removeprefix(refusal))
            raise EngineLost(f"the {self._name} did not start ({self.gone.result()}): {line}")

    async def _come_up(self, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await self._spawn()
                await self._started
        except TimeoutError:
            self._lose(f"not ready within {limit_s:g} s")
        except OSError as error:
            self._lose(f"cannot be spawned: {error.strerror}")

    async def _spawn(self) -> None:
        command = module_command("agent_tts.ipc.child", str(os.getpid()))
        env = {name: value for name, value in os.environ.items() if ENVIRONMENT.match(name.upper())}
        transport, _ = await self._loop.subprocess_exec(lambda: self, *command, env=env, **DETACHED)
        self._stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        self._write(encode(Setup(self._settings.model_dump_json(include=ENGINE_SETTINGS))))

    def send(self, command: EngineCommand) -> None:
        """Never blocks; dropped unless it is alive. All commands of a tick of the event loop leave in one write.

        Raises:
            WireError: a text of a megabyte.
        """
        if self.alive:
            if not self._outbox:
                self._loop.call_soon(self._flush)
            self._outbox.append(encode(command))

    def silence(self) -> None:
        """From now on hand out neither an event nor a loss."""
        self._stopping = True

    async def end(self) -> None:
        """Stop it, kill what is left, reap it. Bounded, idempotent. Cancelling it skips waiting, never the killing.

        Neither an event nor `on_lost` follows.
        """
        self.silence()
        try:
            if self.alive:
                self.send(StopEngine())
                await asyncio.wait([self._exited], timeout=STOP_S)
            elif self._hung and sys.platform != "win32" and self._transport is not None and not self._exited.done():
                send_signal(self._transport, signal.SIGUSR1)
                await asyncio.wait([self._exited], timeout=DUMP_S)
        finally:
            self._lose("stopped")
            if self._transport is not None:
                if not self._exited.done():
                    kill(self._transport)
                await self._reap(self._transport)

    async def _reap(self, transport: asyncio.SubprocessTransport) -> None:
        try:
            await asyncio.wait([self._exited], timeout=REAP_S)
            if self._stdin is not None and not self._stdin.is_closing():
                self._stdin.abort()
            await asyncio.wait([self._closed], timeout=LAST_WORDS_S)
        finally:
            transport.close()
        await asyncio.wait([self._closed], timeout=LAST_WORDS_S)
        if not self._closed.done():
            logger.error("{} process {} cannot be killed", self._name, transport.get_pid())

    def _lose(self, why: str) -> None:
        """No more events, from now on."""
        if self.gone.done():
            return
        self.gone.set_result(why)
        self._outbox.clear()
        if self._timer is not None:
            self._timer.cancel()
        if not self._started.done():
            self._started.set_result(None)
        if self._greeted and not self._stopping:
            self._on_lost(why)

    def _give_up(self, why: str) -> None:
        self._hung = True
        self._lose(why)

    # ------------------------------------------------------------ to the process

    def _write(self, data: bytes) -> None:
        stdin = cast(asyncio.WriteTransport, self._stdin)
        if stdin.is_closing():  # it has died already; uvloop raises where asyncio drops
            return
        stdin.write(data)
        if not stdin.is_closing() and stdin.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._give_up("it does not read its commands")

    def _flush(self) -> None:
        if self._outbox:
            data = b"".join(self._outbox)
            self._outbox.clear()
            self._write(data)

    def _beat(self) -> None:
        # Beats are counted, not seconds: after a pause of this process itself, answers that wait in the pipe count.
        if self._unanswered == BEATS:
            self._give_up(f"no answer for {self._settings.timeouts.engine_heartbeat_s:g} s")
            return
        self._unanswered += 1
        self.send(EnginePing(self._unanswered))
        self._timer = self._loop.call_later(self._settings.timeouts.engine_heartbeat_s / BEATS, self._beat)

    # ------------------------------------------------------------ from the process

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._hear(data)
        elif not (self._stopping or self.gone.done()):
            try:
                new = self._decoder.feed(data)
            except WireError as error:
                self._give_up(f"it broke the protocol: {error}")
                return
            if new:
                self._take(new)

    def _take(self, new: list[EngineEvent]) -> None:
        if not self._greeted:
            if not isinstance(new[0], EngineReady):
                self._give_up("it broke the protocol: no hello")
                return
            self._greeted = True
            self._started.set_result(None)
            self._beat()
        for event in new:
            if isinstance(event, EnginePong):
                self._unanswered = 0
        self._on_events(new)

    def _hear(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        *lines, rest = (self._line + data).split(b"\n")
        for line in lines:
            # Until it is ready, it says what it loads and how much memory that takes.
            logger.log("DEBUG" if self._greeted else "INFO", "{}: {}", self._name, line.decode("utf-8", "replace"))
        self._line = rest[-TAIL_BYTES:]

    def last_words(self) -> str:
        """The end of what it wrote to stderr, at most 4 KiB."""
        return self._tail.decode("utf-8", "replace").strip()

    def _last_line(self) -> str:
        return self.last_words().rpartition("\n")[2] or "it printed nothing"

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._lose("it closed its pipe")

    def process_exited(self) -> None:
        self._exited.set_result(None)
        # The pipe ends when it has run empty, unless something that the engine spawned still holds it.
        if not self.gone.done():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(LAST_WORDS_S, self._lose, "it ended")

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set_result(None)

    def __str__(self) -> str:
        if self._transport is None:
            return f"{self._name} process"
        code = self._transport.get_returncode()
        if code is None:
            return f"{self._name} process {self.pid} (running)"
        return f"{self._name} process {self.pid} (" + (f"signal {-code})" if code < 0 else f"exit code {code})")
