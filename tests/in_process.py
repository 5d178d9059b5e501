"""An engine loop inside the front's event loop: the engine client of tests in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agent_tts.engine.loop import EngineLoop
from agent_tts.events import EngineCommand, EngineEvent


class InProcessEngine:
    """Runs an engine loop whenever something is due; each step blocks the event loop.

    It is deterministic in a deterministic event loop whose clock `loop` uses too.
    """

    def __init__(
        self, loop: EngineLoop, on_events: Callable[[list[EngineEvent]], None], on_lost: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._on_events = on_events
        self._on_lost = on_lost
        # The next turn. None when nothing is due, and while it does not run.
        self._next: asyncio.Handle | None = None
        # Whether it was started, is not closed, and its engine is not lost.
        self.alive = False
        # Set when the engine is lost: it is not restarted.
        self.failed = asyncio.Event()

    async def start(self) -> None:
        """Hand out `EngineReady`."""
        self.alive = True
        self._on_events([self._loop.ready()])

    def send(self, command: EngineCommand) -> None:
        """Never blocks. The command takes effect in the next turn; it is dropped unless alive."""
        if self.alive:
            self._loop.submit(command)
            self._schedule()

    async def close(self) -> None:
        """Close the engine. No event and no `on_lost` follows. Idempotent."""
        self.alive = False
        self._unschedule()
        self._loop.close()

    def _turn(self) -> None:
        self._next = None
        try:
            new = self._loop.step()
        except Exception as error:
            self.alive = False
            self.failed.set()
            self._on_lost(type(error).__name__)
            raise  # to the event loop's exception handler
        if new:
            self._on_events(new)
        if self.alive:
            self._schedule()

    def _schedule(self) -> None:
        wait_s = self._loop.wait_s()
        self._unschedule()
        if wait_s is not None:
            event_loop = asyncio.get_running_loop()
            self._next = event_loop.call_later(wait_s, self._turn) if wait_s else event_loop.call_soon(self._turn)

    def _unschedule(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
