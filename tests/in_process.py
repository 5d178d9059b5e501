"""An engine loop inside the front's event loop: the engine client for tests in virtual time."""

from __future__ import annotations

import asyncio

from agent_tts.engine.loop import EngineLoop
from agent_tts.messages import EngineCommand, OnEvents, OnLost


class InProcessEngine:
    """Runs an engine loop whenever a turn is due; each step blocks the event loop.

    Deterministic if the event loop is deterministic and `loop` uses its clock.
    """

    def __init__(self, loop: EngineLoop, on_events: OnEvents, on_lost: OnLost) -> None:
        self._loop = loop
        self._on_events = on_events
        self._on_lost = on_lost
        # Handle of the next turn. None when no turn is due, and before the start.
        self._next: asyncio.Handle | None = None
        # Started, not closed, and the engine is not lost.
        self.alive = False
        self.late = False
        # Set when the engine is lost: it is not restarted.
        self.failed = asyncio.Event()

    async def start(self) -> None:
        """Emit `EngineReady`."""
        self.alive = True
        self._on_events([self._loop.ready()])

    def send(self, command: EngineCommand, *, waits: bool = False) -> None:
        """Does not block. The command takes effect in the next turn; it is dropped unless alive."""
        if self.alive:
            self._loop.submit(command)
            self._schedule()

    async def close(self) -> None:
        """Close the engine. No events and no `on_lost` follow. Idempotent."""
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
