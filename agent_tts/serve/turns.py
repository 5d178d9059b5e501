"""Turns: the members of a node (connections, responses, API keys) share its event loop, about a millisecond each."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable

# Work of one turn, and of all turns of one pass of the event loop, in seconds. What cannot be divided takes longer.
SLICE_S = 0.001
CREDIT_S = 0.01  # head start of a member that has used less of the loop than others


class Turns:
    """The line in which members wait for the event loop.

    A member takes a turn before each piece of work. Turns are free until `SLICE_S` of a pass of the event loop is used.
    Then members wait in line, and each pass serves one: the one that has used least. So a connection with little to do
    waits for about one turn of others, however many they are and however much they have to do.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        # Members in line: time used, number of arrival, its turn.
        self._line: list[tuple[float, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()
        # The most that a member had used when it was served, in s: about what each that always waits has used.
        self._level_s = 0.0
        # When the first turn of this pass began; None before it.
        self._began: float | None = None
        # Members that stand for many connections, by name.
        self._shared: dict[str, Member] = {}

    def shared(self, name: str) -> Member:
        """The one member of this name; names are few and never forgotten."""
        return self._shared.setdefault(name, Member(self))

    async def take(self, used_s: float) -> None:
        """Wait for a turn of a member that has used this much. Cancelling it gives the place in line up."""
        if self._line or not self._has_time():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._line, (used_s, next(self._arrivals), turn))
            await turn
        self._level_s = max(self._level_s, used_s)

    def counted(self, used_s: float) -> float:
        """What counts of the time that a member has used: no less than the level without the head start."""
        return max(used_s, self._level_s - CREDIT_S)

    def _has_time(self) -> bool:
        now = self.clock()
        if self._began is None:
            self._begin(now)
            return True
        return now - self._began < SLICE_S

    def _begin(self, now: float) -> None:
        self._began = now
        asyncio.get_running_loop().call_soon(self._next_pass)

    def _next_pass(self) -> None:
        self._began = None
        while self._line:
            turn = heapq.heappop(self._line)[-1]
            if not turn.done():  # cancelled
                turn.set_result(None)
                self._begin(self.clock())
                return


class Member:
    """One that takes turns: `async with member` around each piece of work, which must not await."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        # Time used, in s; see `Turns.counted`.
        self._used_s = 0.0
        # When its turn began.
        self._began = 0.0

    async def turn(self, cost_s: float) -> None:
        """Wait for a turn, for work that takes about `cost_s` and may await; several tasks may wait at once."""
        used_s = self._turns.counted(self._used_s)
        self._used_s = used_s + cost_s
        await self._turns.take(used_s)

    async def __aenter__(self) -> None:
        await self.turn(0.0)
        self._began = self._turns.clock()

    async def __aexit__(self, *_: object) -> None:
        self._used_s += self._turns.clock() - self._began

    def has_time(self) -> bool:
        """Whether its turn may go on with another piece of work."""
        return self._turns.clock() - self._began < SLICE_S
