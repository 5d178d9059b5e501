"""Requests that wait for a slot in a node with several engines: they move to the engine that has one first.

A request waits at its home. While another engine seems to have a free slot, the request is open there, too, with all of
its text, but does not wait there: it starts at once or is refused. Where it starts first, it stays, and the other
attempt is given up; its reader does not notice. So a wrong guess costs nobody a turn in line. A request that is refused
by its home before it has started waits at another engine, if one is not full.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

from agent_tts.messages import Append, Cancel, End, EngineCommand, Finished, Flush, RequestEvent
from agent_tts.options import EngineOptions
from agent_tts.speech.engine_handle import EngineHandle
from agent_tts.speech.utterance import Utterance

Text = Append[int] | Flush[int] | End[int]

WAITS_S = 0.1  # a request without a slot for so long waits for one; others start within a step or two
LOOK_S = 0.05  # between two looks for free slots, while requests wait
MAX_TEXT = 1 << 16  # characters of a request that can move: they are kept until it starts


class _Attempt:
    """A waiting request at one engine."""

    started = False

    def __init__(self, waiting: _Waiting, engine: EngineHandle, *, waits: bool) -> None:
        # The request; None when it is given up here.
        self.waiting: _Waiting | None = waiting
        self.engine = engine
        self.waits = waits
        self.id = 0

    def send(self, command: Text) -> None:
        self.engine.client.send(dataclasses.replace(command, id=self.id))

    def give_up(self) -> None:
        """Cancel it here; its events reach nobody."""
        self.waiting = None
        self.engine.client.send(Cancel(self.id))

    def deliver(self, event: RequestEvent) -> None:
        if self.waiting is not None:
            self.waiting.on_event(self, event)


class _Waiting:
    """One request until it has a slot."""

    def __init__(self, mover: Mover, engine: EngineHandle, utterance: Utterance, options: EngineOptions) -> None:
        self._mover = mover
        self._options = options
        self.request = utterance
        self.owner = utterance.owner
        # When it was opened, on the event loop's clock.
        self.since = mover.now()
        # Its text so far, and the number of characters.
        self._text: list[Text] = []
        self._chars = 0
        # Where it is open, its home first.
        self.attempts: list[_Attempt] = []
        # Engines that have been its home.
        self._homes: list[EngineHandle] = []
        # What the first of them said when it refused it.
        self._refusal: Finished[int] | None = None
        home = self._make_home(engine)
        utterance.settle(home.id, engine.number, self._send)

    @property
    def can_move(self) -> bool:
        """Whether it may be opened at one more engine."""
        return len(self.attempts) == 1 and self._chars <= MAX_TEXT

    def try_at(self, engine: EngineHandle, *, waits: bool = False) -> _Attempt:
        attempt = _Attempt(self, engine, waits=waits)
        waited_ms = round(1_000 * (self._mover.now() - self.since))
        self.attempts.append(attempt)
        attempt.id = engine.enter(attempt, self._options, self.owner, waits=waits, waited_ms=waited_ms)
        for command in self._text:
            attempt.send(command)
        return attempt

    def on_event(self, attempt: _Attempt, event: RequestEvent) -> None:
        """Take the first event of one of its attempts."""
        if not isinstance(event, Finished):
            self._settle(attempt)
            self.request.deliver(event)
            return
        self.attempts.remove(attempt)
        if event.code == "at_capacity":
            if attempt.waits:
                self._refusal = self._refusal or event
            if self.attempts or self._move_home():
                return
            event = self._refusal or event
        elif self.attempts and (not attempt.waits or event.code == "engine_lost"):
            return
        self._leave(attempt)
        self.request.settle(attempt.id, attempt.engine.number, attempt.engine.client.send)
        self.request.deliver(event)

    def _make_home(self, engine: EngineHandle) -> _Attempt:
        self._homes.append(engine)
        return self.try_at(engine, waits=True)

    def _move_home(self) -> bool:
        """Have it wait at another engine, if there is one for it."""
        engine = self._mover.roomy(self._homes) if self._chars <= MAX_TEXT else None
        if engine is None:
            return False
        self._make_home(engine)
        return True

    def _settle(self, attempt: _Attempt) -> None:
        """It stays where this attempt is."""
        self._leave(attempt)
        attempt.engine.settle(attempt.id, self.request)

    def _leave(self, attempt: _Attempt) -> None:
        """It waits no more: all but this attempt are given up. No cycle is left, so that it is freed at once."""
        attempts, self.attempts = self.attempts, []
        for other in attempts:
            if other is not attempt:
                other.give_up()
        attempt.waiting = None
        self._mover.forget(self)

    def _send(self, command: EngineCommand, *, waits: bool = False) -> None:
        if isinstance(command, Append | Flush | End):
            text = command.content if isinstance(command, Append) else None
            self._chars += len(text) if isinstance(text, str) else 1
            if self._chars <= MAX_TEXT:
                self._text.append(command)
            for attempt in self.attempts:
                attempt.send(command)
        elif isinstance(command, Cancel):
            attempt = self.attempts[0]
            self._settle(attempt)
            attempt.engine.client.send(Cancel(attempt.id))


class Mover:
    """The waiting requests of a node."""

    def __init__(self, engines: Sequence[EngineHandle]) -> None:
        self._engines = engines
        # The oldest comes first.
        self._waiting: dict[_Waiting, None] = {}
        # The next look; None while no request waits.
        self._timer: asyncio.TimerHandle | None = None

    def open(self, engine: EngineHandle, utterance: Utterance, options: EngineOptions) -> None:
        self._waiting[_Waiting(self, engine, utterance, options)] = None
        self._look_soon()

    def now(self) -> float:
        """On the event loop's clock."""
        return asyncio.get_running_loop().time()

    def forget(self, waiting: _Waiting) -> None:
        del self._waiting[waiting]

    def roomy(self, but: Iterable[EngineHandle]) -> EngineHandle | None:
        """An engine that would not refuse a request; None if there is none besides these."""
        found = [engine for engine in self._engines if engine.able and engine not in but and not engine.load[0]]
        return min(found, key=lambda engine: engine.load, default=None)

    def close(self) -> None:
        """Look no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """Try those that wait where slots are free: of owners with the fewest slots, the oldest."""
        self._timer = None
        opened_before = self.now() - WAITS_S
        movable = [one for one in self._waiting if one.since <= opened_before and one.can_move]
        for engine in self._engines if movable else ():
            free = engine.free if engine.able else 0
            if free > 0:
                elsewhere = [one for one in movable if one.can_move and one.attempts[0].engine is not engine]
                held = Counter(owner for each in self._engines for owner in each.owners())
                for waiting in sorted(elsewhere, key=lambda one: (held[one.owner], one.since))[:free]:
                    waiting.try_at(engine)
        if self._waiting:
            self._look_soon()
