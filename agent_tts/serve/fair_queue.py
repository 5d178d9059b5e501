"""Start-time fair queueing of the front's work: connections, responses and keys share the event loop in slices."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable

# One slice of work, and all slices of one pass of the event loop, in seconds. What cannot be divided takes longer.
SLICE_S = 0.001
CREDIT_S = 0.01  # head start of a flow that has used less of the loop than others


class FairQueue:
    """The line in which flows wait for the event loop.

    A flow waits here before each slice of work. Nobody waits until `SLICE_S` of a pass of the event loop is used. Then
    flows stand in line, and each pass serves one: the one that has used least. So a connection with little to do waits
    for about one slice of others, however many they are and however much they have to do.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        # Flows in line: time used, number of arrival, completed when it is served.
        self._line: list[tuple[float, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()
        # The most that a flow had used when it was served, in s: about what each that always waits has used.
        self._level_s = 0.0
        # When the first slice of this pass began; None before it.
        self._began: float | None = None
        # Flows that stand for many connections, by name.
        self._shared: dict[str, Flow] = {}

    def shared(self, name: str) -> Flow:
        """The one flow of this name; names are few and never forgotten."""
        return self._shared.setdefault(name, Flow(self))

    async def wait(self, used_s: float) -> None:
        """Wait for a slice for a flow that has used this much. Cancelling it gives the place in line up."""
        if self._line or not self._has_time():
            served: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._line, (used_s, next(self._arrivals), served))
            await served
        self._level_s = max(self._level_s, used_s)

    def counted(self, used_s: float) -> float:
        """What counts of the time that a flow has used: no less than the level without the head start."""
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
            served = heapq.heappop(self._line)[-1]
            if not served.done():  # cancelled
                served.set_result(None)
                self._begin(self.clock())
                return


class Flow:
    """One that shares the event loop: `async with flow` around each slice of work, which must not await."""

    def __init__(self, queue: FairQueue) -> None:
        self._queue = queue
        # Time used, in s; see `FairQueue.counted`.
        self._used_s = 0.0
        # When its slice began.
        self._began = 0.0

    async def wait(self, cost_s: float) -> None:
        """Wait for a slice, for work that takes about `cost_s` and may await; several tasks may wait at once."""
        used_s = self._queue.counted(self._used_s)
        self._used_s = used_s + cost_s
        await self._queue.wait(used_s)

    async def __aenter__(self) -> None:
        await self.wait(0.0)
        self._began = self._queue.clock()

    async def __aexit__(self, *_: object) -> None:
        self._used_s += self._queue.clock() - self._began

    def has_time(self) -> bool:
        """Whether its slice may go on with another piece of work."""
        return self._queue.clock() - self._began < SLICE_S
