"""Start-time fair queueing of the front's work: keys and their connections share the event loop in slices."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable

# One slice of work, and all slices of one pass of the event loop, in seconds. What cannot be divided takes longer.
SLICE_S = 0.001
CREDIT_S = 0.01  # head start of those that have used less of the loop than others


class FairQueue:
    """The line in which flows wait for the event loop.

    A flow waits here before each slice of work. Nobody waits until `SLICE_S` of a pass of the event loop is used. Then
    flows stand in line, and each pass serves `SLICE_S` of them: of the share that has used least, the flow that has
    used least. So a client with little to do waits for about one slice of others, however many connections they have or
    open.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        # Shares with flows in line: time used when it was put in, number of arrival, the share.
        self._line: list[tuple[float, int, Share]] = []
        self.arrivals = itertools.count()
        # The most that a share had used when it was served, in s: about what each that always waits has used.
        self._level_s = 0.0
        # When the first slice of this pass began; None before it.
        self._began: float | None = None
        # Whether `_pass` is to be called in the next pass.
        self._is_due = False
        # Shares by name.
        self._shares: dict[str, Share] = {}

    def share(self, name: str | None) -> Share:
        """The one share of this name; names are few and never forgotten. None makes a new share."""
        return Share(self) if name is None else self._shares.setdefault(name, Share(self))

    async def wait(self, share: Share, used_s: float) -> None:
        """Wait for a slice for a flow that has used this much. Cancelling it gives the place in line up."""
        if self._line or not self._has_time():
            served: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.enter(share, used_s, served)
            await served
        else:
            self._serve(share, used_s)

    def enter(self, share: Share, used_s: float, place: Place) -> None:
        """Put a flow that has used this much in line."""
        heapq.heappush(share.line, (used_s, next(self.arrivals), place))
        if not share.is_in_line:
            self._catch_up(share)
            self._put(share)
        self._schedule()

    def _has_time(self) -> bool:
        now = self.clock()
        if self._began is None:
            self._began = now
            self._schedule()
            return True
        return now - self._began < SLICE_S

    def _schedule(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._pass)

    def _pass(self) -> None:
        self._is_due, self._began = False, None
        now = began = self.clock()
        while self._line and now - began < SLICE_S:
            used_s, _, share = heapq.heappop(self._line)
            if share.used_s > used_s:  # it has used more since it was put in
                self._put(share)
                continue
            share.is_in_line = False
            used_s, _, place = heapq.heappop(share.line)
            if isinstance(place, Flow):
                self._serve(share, used_s)
                now = place.work_since(now)
            elif not place.done():  # else cancelled
                self._serve(share, used_s)
                place.set_result(None)
                self._began = now
            if share.line and not share.is_in_line:
                self._put(share)
            if self._began is not None:  # its task works later in this pass
                break
        if self._line or self._began is not None:
            self._schedule()

    def _catch_up(self, share: Share) -> None:
        share.used_s = max(share.used_s, self._level_s - CREDIT_S)

    def _serve(self, share: Share, used_s: float) -> None:
        """Count that a flow which has used this much is served."""
        self._catch_up(share)
        self._level_s = max(self._level_s, share.used_s)
        share.level_s = max(share.level_s, used_s)

    def _put(self, share: Share) -> None:
        share.is_in_line = True
        heapq.heappush(self._line, (share.used_s, next(self.arrivals), share))


class Share:
    """What a client has used of the event loop, over all of its connections. Made by `FairQueue.share`."""

    def __init__(self, queue: FairQueue) -> None:
        self.queue = queue
        self.used_s = 0.0
        # The most that one of its flows had used when it was served, in s.
        self.level_s = 0.0
        # Its flows in line: time used, number of arrival, what is served; and whether it stands in the queue's line.
        self.line: list[tuple[float, int, Place]] = []
        self.is_in_line = False


class Flow:
    """One reader or writer of a client.

    `async with flow` stands around each slice of work, which must not await; or `call` has it called.
    """

    def __init__(self, share: Share) -> None:
        self._share = share
        # Time used, in s; no less than the share's level without the head start.
        self._used_s = 0.0
        # When its slice began.
        self._began = 0.0
        # What is called in its next slice; None if it does not stand in line for `call`.
        self._work: Callable[[], object] | None = None

    async def wait(self, cost_s: float) -> None:
        """Wait for a slice, for work that takes about `cost_s` and may await; several tasks may wait at once."""
        used_s = self._catch_up()
        self._used_s = used_s + cost_s
        await self._share.queue.wait(self._share, used_s)
        self._share.used_s += cost_s

    async def __aenter__(self) -> None:
        await self.wait(0.0)
        self._began = self._share.queue.clock()

    async def __aexit__(self, *_: object) -> None:
        self._count(self._share.queue.clock())

    def call(self, work: Callable[[], object]) -> None:
        """Have `work`, which must not raise, called in a slice, soon but not now. A call that waits is replaced."""
        if self._work is None:
            self._share.queue.enter(self._share, self._catch_up(), self)
        self._work = work

    def work_since(self, now: float) -> float:
        """For the queue: do the work of `call`; returns the time after it."""
        self._began = now
        work, self._work = self._work, None
        assert work is not None
        work()
        now = self._share.queue.clock()
        self._count(now)
        return now

    def has_time(self) -> bool:
        """Whether its slice may go on with another piece of work."""
        return self._share.queue.clock() - self._began < SLICE_S

    def _catch_up(self) -> float:
        self._used_s = max(self._used_s, self._share.level_s - CREDIT_S)
        return self._used_s

    def _count(self, now: float) -> None:
        took_s = now - self._began
        self._used_s += took_s
        self._share.used_s += took_s


# What stands in line: a flow with work to call, or what tells a task that its flow is served.
Place = Flow | asyncio.Future[None]
