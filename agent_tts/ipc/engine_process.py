"""A node's engine processes: how many there are, each from start to end, and the supervisor that restarts it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
from functools import partial
from typing import Any

from loguru import logger

from agent_tts.config.settings import Settings
from agent_tts.engine.factory import DEFAULT_SLOTS, chosen_engine
from agent_tts.errors import EngineLost, SettingsError
from agent_tts.ipc.connection import EngineConnection, drop
from agent_tts.ipc.wire import Setup, encode
from agent_tts.messages import EngineEvent, EngineReady, OnEvents, OnLost, Send, StopEngine
from agent_tts.system.in_child import FAULTS, REFUSAL
from agent_tts.system.processes import DEATHS_WITHIN_S, PIPES_S, TAIL_BYTES, ChildProcess, Deaths

BACKOFF_S = (0.0, 0.1, 0.2, 0.5, 1.0)  # see `Deaths`
RESPAWN_S = 1.0  # before the next attempt to spawn a process that could not be spawned
STOP_S = 2.0  # for a stopped one to close its engine

# Settings that the engine process gets. API keys, TURN credentials and addresses are not for it.
ENGINE_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("engine", "slots", "queue", "limits", "timeouts", "voices", "watermark"), True),
    **dict.fromkeys(("espeak", "hibari", "tone", "qwen3", "vox", "audioseal"), True),
    "telemetry": {"stages"},
}

# Environment variables that it gets: those of the system, of Python and of numeric libraries. Others may hold secrets.
ENVIRONMENT = re.compile(
    r"(PATH|HOME|LANG|TEMP|LD_LIBRARY_PATH|VIRTUAL_ENV|SYSTEMROOT|USERPROFILE|LOCALAPPDATA)\Z"
    r"|(LC_|TMP|DYLD_|PYTHON|OMP_|OPENBLAS_|MKL_|CUDA_|NVIDIA_|HF_|HIBARI_|TORCH_|TRITON_|XDG_|COVERAGE_)"
)


def engine_settings(settings: Settings) -> list[Settings]:
    """The settings of each engine process. Engines take the devices in turn; those of one device share its memory."""
    if chosen_engine(settings) != "qwen3":
        return [settings] * (settings.engines or 1)
    named = [device.strip() for device in settings.qwen3.device.split(",")]
    devices = ["cuda:0" if device == "cuda" else device for device in named]
    count = settings.engines or len(devices)
    taken = [devices[number % len(devices)] for number in range(count)]
    memory = settings.qwen3.memory
    sections = [{"device": device, "memory": memory / taken.count(device)} for device in taken]
    return [settings.model_copy(update={"qwen3": settings.qwen3.model_copy(update=section)}) for section in sections]


def most_slots(settings: Settings) -> int:
    """Slots of all engines; without the setting an engine may have fewer, by its memory or cores."""
    return (settings.slots or DEFAULT_SLOTS) * len(engine_settings(settings))


def engine_processes(settings: Settings) -> list[partial[EngineProcess]]:
    """A factory for each engine process, to call with `on_events` and `on_lost`. Several are named by their number."""
    each = engine_settings(settings)
    if len(each) == 1:
        return [partial(EngineProcess, each[0])]
    return [partial(EngineProcess, one, name=f"engine {number}") for number, one in enumerate(each)]


class EngineChild(EngineConnection, ChildProcess):
    """One engine process, from `start` to `end`.

    `on_events` gets its events, `EngineReady` first. `on_lost` is called at most once and last: after `EngineReady`,
    when the process is lost without having been stopped.
    """

    def __init__(self, settings: Settings, on_events: OnEvents, on_lost: OnLost, name: str = "engine") -> None:
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


class EngineProcess:
    """An engine process and its supervisor, which restarts it until it has died too often.

    Each `EngineReady` given to `on_events` is followed by at most one `on_lost`, and each `on_lost` by a new
    `EngineReady` or by `failed`. Both are called on the event loop; events keep the order and batches in which they
    arrive.
    """

    def __init__(self, settings: Settings, on_events: OnEvents, on_lost: OnLost, name: str = "engine") -> None:
        self._name = name
        self._new_child = partial(EngineChild, settings, on_events, on_lost, name)
        # The running process, or the last one. None before `start`.
        self._child: EngineChild | None = None
        # Waits for the death of the process and starts the next one. None before `start` and after `close`.
        self._supervisor: asyncio.Task[None] | None = None
        # Set when the engine has died more often within a minute than there are back-offs: it is not restarted.
        self.failed = asyncio.Event()

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive

    @property
    def late(self) -> bool:
        return self._child is not None and self._child.late

    @property
    def greeting(self) -> EngineReady | None:
        """The `EngineReady` of the running engine; None while none runs."""
        return self._child.greeting if self._child is not None and self._child.alive else None

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """As `EngineChild.start`; its `EngineReady` has been handed out on return."""
        child = self._child = self._new_child()
        await child.start()
        self._supervisor = asyncio.create_task(self._supervise(child), name="engine supervisor")

    @property
    def send(self) -> Send:
        """See `EngineConnection.send`, of the process that runs; what is sent is dropped if none does."""
        return self._child.send if self._child is not None and self._child.alive else drop

    def attach(self) -> socket.socket:
        """A new link to the running engine, for a front that shares it: a connected socket that the caller owns.

        The link's requests end with it. Never blocks.

        Raises:
            EngineLost: no engine runs, or it does not take links.
            OSError: there are no descriptors left.
        """
        if self._child is None:
            raise EngineLost("the engine has not been started")
        return self._child.attach()

    async def close(self) -> None:
        """Stop the engine, and kill it after two seconds, which cancelling skips. No event follows. Idempotent."""
        if self._child is not None:
            self._child.silence()
        supervisor, self._supervisor = self._supervisor, None
        try:
            if supervisor is not None:
                supervisor.cancel()
                await asyncio.wait([supervisor])
        finally:
            if self._child is not None:
                await self._child.end()

    async def _supervise(self, child: EngineChild) -> None:
        """Keep an engine running. Safety net in case of bugs: a failed supervisor counts as a failed engine."""
        try:
            await self._keep_running(child)
        except Exception as error:  # noqa: BLE001 - the edge of a task
            logger.opt(exception=error).error("the supervisor of the {} failed", self._name)
            self.failed.set()

    async def _keep_running(self, child: EngineChild) -> None:
        """End `child` and its successors when they are gone; `close` ends the last one."""
        deaths = Deaths(BACKOFF_S)
        clock = asyncio.get_running_loop().time
        # It does not count in `deaths`: one that dies at once each time may have taken longer than that to start.
        starting_s = 0.0
        while True:
            why = await asyncio.shield(child.gone)
            await child.end()
            if child.pid is None:  # the machine lacks descriptors, memory or processes: no death of an engine
                logger.error("the {} {}; trying again every {:g} s", self._name, why, RESPAWN_S)
                await asyncio.sleep(RESPAWN_S)
            else:
                logger.warning("{} is lost: {}; the end of its stderr: {}", child, why, child.tail or "none")
                pause_s = deaths.pause_s(clock() - starting_s)
                if pause_s is None:
                    told = (self._name, len(deaths), DEATHS_WITHIN_S)
                    logger.error("the {} died {} times within {:g} s of running: giving up", *told)
                    self.failed.set()
                    return
                await asyncio.sleep(pause_s)
            child = self._child = self._new_child()
            begun = clock()
            with contextlib.suppress(EngineLost, SettingsError):  # `child.gone` says the same
                await child.start()
            starting_s += clock() - begun
