"""A node's engine processes: how many there are, and the supervisor that restarts each."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from functools import partial

from loguru import logger

from agent_tts.config.settings import Settings
from agent_tts.engine.factory import chosen_engine
from agent_tts.errors import EngineLost, SettingsError
from agent_tts.ipc.connection import drop
from agent_tts.ipc.engine_child import EngineChild
from agent_tts.messages import EngineEvent, EngineReady, Send
from agent_tts.system.processes import DEATHS_WITHIN_S, Deaths

BACKOFF_S = (0.0, 0.1, 0.2, 0.5, 1.0)  # see `Deaths`
RESPAWN_S = 1.0  # before the next attempt to spawn a process that could not be spawned


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


def engine_processes(settings: Settings) -> list[partial[EngineProcess]]:
    """A factory for each engine process, to call with `on_events` and `on_lost`. Several are named by their number."""
    each = engine_settings(settings)
    if len(each) == 1:
        return [partial(EngineProcess, each[0])]
    return [partial(EngineProcess, one, name=f"engine {number}") for number, one in enumerate(each)]


class EngineProcess:
    """An engine process and its supervisor, which restarts it until it has died too often.

    Each `EngineReady` given to `on_events` is followed by at most one `on_lost`, and each `on_lost` by a new
    `EngineReady` or by `failed`. Both are called on the event loop; events keep the order and batches in which they
    arrive.
    """

    def __init__(
        self,
        settings: Settings,
        on_events: Callable[[list[EngineEvent]], None],
        on_lost: Callable[[str], None],
        name: str = "engine",
    ) -> None:
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
        """Start the engine process; its `EngineReady` has been handed out on return. Cancelling it ends the process.

        Raises:
            SettingsError: the engine cannot be set up with these settings.
            EngineLost: it died, or was not ready within `timeouts.engine_start_s`; the message says why.
        """
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
        while True:
            why = await asyncio.shield(child.gone)
            await child.end()
            if child.pid is None:  # the machine lacks descriptors, memory or processes: no death of an engine
                logger.error("the {} {}; trying again every {:g} s", self._name, why, RESPAWN_S)
                await asyncio.sleep(RESPAWN_S)
            else:
                logger.warning("{} is lost: {}; the end of its stderr: {}", child, why, child.tail or "none")
                pause_s = deaths.pause_s(clock())
                if pause_s is None:
                    told = (self._name, len(deaths), DEATHS_WITHIN_S)
                    logger.error("the {} died {} times within {:g} s: giving up", *told)
                    self.failed.set()
                    return
                await asyncio.sleep(pause_s)
            child = self._child = self._new_child()
            with contextlib.suppress(EngineLost, SettingsError):  # `child.gone` says the same
                await child.start()
