"""One engine process, as its owner sees it, from start to end: bytes, heartbeats, stderr."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from collections.abc import Callable
from typing import Any

from loguru import logger

from agent_tts.config.settings import Settings
from agent_tts.errors import EngineLost, SettingsError
from agent_tts.ipc.connection import EngineConnection
from agent_tts.ipc.wire import Setup, encode
from agent_tts.messages import EngineEvent, EngineReady, StopEngine
from agent_tts.system.in_child import FAULTS, REFUSAL
from agent_tts.system.processes import PIPES_S, TAIL_BYTES, ChildProcess

# Settings that the engine process gets. API keys, TURN credentials and addresses are not for it.
ENGINE_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("engine", "slots", "queue", "limits", "timeouts", "voices", "watermark"), True),
    **dict.fromkeys(("espeak", "tone", "qwen3", "audioseal"), True),
    "telemetry": {"stages"},
}

# Environment variables that it gets: those of the system, of Python and of numeric libraries. Others may hold secrets.
ENVIRONMENT = re.compile(
    r"(PATH|HOME|LANG|TEMP|LD_LIBRARY_PATH|VIRTUAL_ENV|SYSTEMROOT|USERPROFILE|LOCALAPPDATA)\Z"
    r"|(LC_|TMP|DYLD_|PYTHON|OMP_|OPENBLAS_|MKL_|CUDA_|NVIDIA_|HF_|TORCH_|TRITON_|XDG_|COVERAGE_)"
)

STOP_S = 2.0  # for a stopped one to close its engine


class EngineChild(EngineConnection, ChildProcess):
    """One engine process, from `start` to `end`.

    `on_events` gets its events, `EngineReady` first. `on_lost` is called at most once and last: after `EngineReady`,
    when the process is lost without having been stopped.
    """

    def __init__(
        self,
        settings: Settings,
        on_events: Callable[[list[EngineEvent]], None],
        on_lost: Callable[[str], None],
        name: str = "engine",
    ) -> None:
        EngineConnection.__init__(self, settings.timeouts.engine_heartbeat_s, on_events)
        ChildProcess.__init__(self, name)
        self._settings = settings
        self._on_lost = on_lost
        # Passes descriptors to it; None before `start`, after `end` and where the system cannot.
        self._control: socket.socket | None = None
        # Its `EngineReady`; None before it has come.
        self.greeting: EngineReady | None = None
        # Completed by `greeting` or by a death before it.
        self._started: asyncio.Future[None] = self._loop.create_future()
        # Whether it is being ended: its events are dropped, and its death is no loss.
        self._stopping = False
        # Whether it was given up while it still ran.
        self._hung = False
        # Why no more events will come; completed as soon as that is known.
        self.gone: asyncio.Future[str] = self._loop.create_future()
        # The deadline of its pipe after the process has exited; None before.
        self._timer: asyncio.TimerHandle | None = None
        # The start of a line of stderr whose end has not come.
        self._line = bytearray()

    @property
    def alive(self) -> bool:
        """Whether it has sent `EngineReady` and is not known to be gone."""
        return self.greeting is not None and not self.gone.done()

    async def start(self) -> None:
        """Spawn it and wait for its `EngineReady`. After an error or a cancellation the process is gone.

        Raises:
            SettingsError: the engine cannot be set up with these settings.
            EngineLost: it did not start; the message holds the last line that it printed.
        """
        limit_s = self._settings.timeouts.engine_start_s
        try:
            async with asyncio.timeout(limit_s):
                self.open(await self._spawn())
                self.write(encode(Setup(self._settings.model_dump(mode="json", include=ENGINE_SETTINGS))))
                await self._started
        except TimeoutError:
            self._lose(f"not ready within {limit_s:g} s")
        except OSError as error:
            self._lose(f"cannot be spawned: {error.strerror}")
        except BaseException:
            await self.end()
            raise
        if self.greeting is not None:
            return
        await self.end()
        line = self.tail.rpartition("\n")[2] or "it printed nothing"
        if line.startswith(REFUSAL):
            raise SettingsError(line.removeprefix(REFUSAL))
        raise EngineLost(f"the {self._name} did not start ({self.gone.result()}): {line}")

    def attach(self) -> socket.socket:
        if not self.alive or self._control is None:
            raise EngineLost(f"the {self._name} takes no links now")
        mine, its = socket.socketpair()
        with its:
            try:
                socket.send_fds(self._control, [b"\0"], [its.fileno()])
            except OSError as error:  # it hangs, or has just ended
                mine.close()
                raise EngineLost(f"the {self._name} takes no links: {error.strerror}") from None
        mine.setblocking(False)
        return mine

    def silence(self) -> None:
        self._stopping = True

    async def end(self) -> None:
        """Stop, kill and reap it silently, within seconds. Idempotent. Cancelling skips the wait, never the kill."""
        self.silence()
        try:
            if self.alive:
                self.send(StopEngine())
                await asyncio.wait([self.exited], timeout=STOP_S)
            elif self._hung and sys.platform != "win32":
                await self.write_stacks()
        finally:
            self._lose("stopped")
            if self._control is not None:
                self._control.close()
            self.kill()
            await self.reap()

    async def _spawn(self) -> asyncio.WriteTransport:
        module, parent = "agent_tts.ipc.child", str(os.getpid())
        if sys.platform == "win32":
            return await self.spawn(module, parent, passes=_is_passed)
        self._control, its = socket.socketpair()
        self._control.setblocking(False)
        with its:
            fd = its.fileno()
            return await self.spawn(module, parent, str(fd), passes=_is_passed, pass_fds=[fd])

    def _lose(self, why: str) -> None:
        if self.gone.done():
            return
        self.gone.set_result(why)
        self.close()
        if self._timer is not None:
            self._timer.cancel()
        if not self._started.done():
            self._started.set_result(None)
        if self.greeting is not None and not self._stopping:
            self._on_lost(why)

    def _broken(self, why: str) -> None:
        self._hung = True
        self._lose(why)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        super().pipe_data_received(fd, data)
        if fd == 2:
            self._log(data)
        else:
            self.feed(data)

    def _deliver(self, new: list[EngineEvent]) -> None:
        if self._stopping:
            return
        if self.greeting is None:
            if not isinstance(new[0], EngineReady):
                self._broken("it broke the protocol: EngineReady did not come first")
                return
            self.greeting = new[0]
            self._started.set_result(None)
            self.beat()
        self._on_events(new)

    def _log(self, data: bytes) -> None:
        """Log lines of stderr: faults, and, while the engine loads, what it loads and how much memory that takes."""
        *lines, rest = (self._line + data).split(b"\n")
        usual = "INFO" if self.greeting is None else "DEBUG"
        for line in lines:
            said = line.decode("utf-8", "replace")
            level, _, fault = said.partition(": ")
            level, said = (level, fault) if level in FAULTS else (usual, said)
            if not said.startswith(REFUSAL):  # which `start` raises
                logger.log(level, "{}: {}", self._name, said)
        self._line = rest[-TAIL_BYTES:]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self.read_all()
            self._lose("it closed its pipe")

    def process_exited(self) -> None:
        super().process_exited()
        # The pipe ends when it has run empty, unless a process that the engine started still holds it.
        if not self.gone.done():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(PIPES_S, self._lose, "it ended")


def _is_passed(name: str) -> bool:
    return ENVIRONMENT.match(name.upper()) is not None
