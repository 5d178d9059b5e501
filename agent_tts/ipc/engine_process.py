"""The front's link to its engine process: keeps one running."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from loguru import logger

from agent_tts.config.settings import Settings
from agent_tts.errors import EngineLost, SettingsError
from agent_tts.events import EngineCommand, EngineEvent
from agent_tts.ipc.engine_child import EngineChild

BACKOFF_S = (0.0, 0.1, 0.2, 0.5, 1.0)  # before the restart after the 1st, 2nd, ... death within `DEATHS_WITHIN_S`
DEATHS_WITHIN_S = 60.0


class EngineProcess:
    """An engine process and its supervisor: a dead engine is started again, until it dies too often.

    Each `Hello` given to `on_events` is followed by at most one `on_lost`, and each `on_lost` by a new `Hello` or by
    `failed`. Both are called on the event loop, events in the order and the batches in which they arrive.
    """

    def __init__(
        self,
        settings: Settings,
        on_events: Callable[[list[EngineEvent]], None],
        on_lost: Callable[[str], None],
        name: str = "engine",
    ) -> None:
        self._settings = settings
        # What the log and errors call it.
        self._name = name
        self._on_events = on_events
        self._on_lost = on_lost
        # The running process, or the last one. None before `start`.
        self._child: EngineChild | None = None
        # Waits for the death of the process and starts the next one. None before `start` and after `close`.
        self._supervisor: asyncio.Task[None] | None = None
        # Set when the engine died once more than there are back-offs, within a minute: it stays away.
        self.failed = asyncio.Event()

    @property
    def alive(self) -> bool:
        """Whether the engine is there and answers."""
        return self._child is not None and self._child.alive

    @property
    def pid(self) -> int | None:
        """The process id of the running engine, or of the last one."""
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Spawn the engine process; its `Hello` has been handed out when this returns. Cancelling it ends the process.

        Raises:
            SettingsError: the engine cannot be set up like that.
            EngineLost: it did not come up within `timeouts.engine_start_s`, or died; the message says why.
        """
        child = self._child = self._new_child()
        await child.start()
        self._supervisor = asyncio.create_task(self._supervise(child), name="engine supervisor")

    def send(self, command: EngineCommand) -> None:
        """Never blocks; a command to a lost engine is dropped.

        Raises:
            WireError: a text of a megabyte.
        """
        if self._child is not None:
            self._child.send(command)

    async def close(self) -> None:
        """Stop the engine, and kill it after two seconds. No event and no `on_lost` follows. Idempotent.

        Cancelling it skips the two seconds: the process is killed and reaped all the same.
        """
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

    def _new_child(self) -> EngineChild:
        return EngineChild(self._settings, self._on_events, self._on_lost, self._name)

    async def _supervise(self, child: EngineChild) -> None:
        """Keep an engine running. A safety net in case of bugs: without a supervisor the node has to end."""
        try:
            await self._keep_running(child)
        except Exception as error:  # noqa: BLE001 - the edge of a task
            logger.opt(exception=error).error("the {}'s supervisor failed", self._name)
            self.failed.set()

    async def _keep_running(self, child: EngineChild) -> None:
        """Ends `child` and its successors when they are gone; the last one is ended by `close`."""
        deaths: deque[float] = deque()
        clock = asyncio.get_running_loop().time
        while True:
            why = await asyncio.shield(child.gone)
            await child.end()
            logger.warning("{} is lost: {}; its last words: {}", child, why, child.last_words() or "none")
            now = clock()
            deaths.append(now)
            while deaths[0] < now - DEATHS_WITHIN_S:
                deaths.popleft()
            if len(deaths) > len(BACKOFF_S):
                logger.error("the {} died {} times within {:g} s: giving up", self._name, len(deaths), DEATHS_WITHIN_S)
                self.failed.set()
                return
            await asyncio.sleep(BACKOFF_S[len(deaths) - 1])
            child = self._child = self._new_child()
            with contextlib.suppress(EngineLost, SettingsError):  # its `gone` says the same
                await child.start()
