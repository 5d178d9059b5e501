"""Start-time fair queueing of the front's work: keys and their connections share the event loop in slices."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable

STRANGERS = "strangers"  # name of the share of all that shows no key

# One slice of work, and all slices of one pass of the event loop, in seconds. What cannot be divided takes longer.
SLICE_S = 0.001
CREDIT_S = 0.01  # head start of those that have used less of the loop than others
# Those that have used less than NEW_S in all, about the work of a new stream up to its first frame, go up to FIRST_S
# before others: the less, the earlier. New connections have waited in another share before they come to this.
NEW_S, FIRST_S = 0.002, 1.0


class FairQueue:
    """The line in which flows wait for the event loop.

    A flow waits here before each slice of work. Nobody waits until `SLICE_S` of a pass of the event loop is used. Then
    flows stand in line, and each pass serves `SLICE_S` of them: of the share that has used least, the flow that has
    used least, new ones first. So a client with little to do waits for about one slice of others, however many
    connections they have or open.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        # Shares with flows in line: rank when it was put in, number of arrival, the share.
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

    async def wait(self, share: Share, standing: Standing, cost_s: float) -> None:
        """Wait for a slice, for work that takes about `cost_s`. Cancelling it gives the place in line up."""
        if self._line or not self._has_time():
            served: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.enter(share, standing, served, cost_s)
            await served
        else:
            self._serve(share, standing[1])

    def enter(self, share: Share, standing: Standing, place: Place, cost_s: float = 0.0) -> None:
        """Put a flow of a share in line. `cost_s`: of the work of a task, which begins after all others are served."""
        heapq.heappush(share.line, (*standing, next(self.arrivals), cost_s, place))
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
        began = now = self.clock()
        tasks_s = 0.0  # of this pass, which tasks that are served use later
        while self._line and (used_s := now - began + tasks_s) < SLICE_S:
            rank, _, share = self._line[0]
            _, flow_s, _, cost_s, place = share.line[0]
            if share.rank > rank:  # it has used more since it was put in
                heapq.heapreplace(self._line, (share.rank, next(self.arrivals), share))
                continue
            if used_s and used_s + cost_s > SLICE_S:
                break
            heapq.heappop(self._line)
            share.is_in_line = False
            heapq.heappop(share.line)
            if isinstance(place, Flow):
                self._serve(share, flow_s)
                now = place.work(now, cost_s)
                tasks_s += cost_s
            elif not place.done():  # else cancelled
                self._serve(share, flow_s)
                place.set_result(None)
                self._began = began
                tasks_s += cost_s
            if share.line and not share.is_in_line:
                self._put(share)
        if self._line or self._began is not None:
            self._schedule()

    def _catch_up(self, share: Share) -> None:
        if share.used_s < self._level_s - CREDIT_S:
            share.used_s = self._level_s - CREDIT_S

    def _serve(self, share: Share, flow_s: float) -> None:
        self._catch_up(share)
        if share.used_s > self._level_s:
            self._level_s = share.used_s
        if flow_s > share.level_s:
            share.level_s = flow_s

    def _put(self, share: Share) -> None:
        share.is_in_line = True
        heapq.heappush(self._line, (share.rank, next(self.arrivals), share))


class Share:
    """What a client has used of the event loop, over all of its connections. Made by `FairQueue.share`."""

    def __init__(self, queue: FairQueue) -> None:
        self.queue = queue
        # Time used, in s: no less than that of others without the head start, and what it really was.
        self.used_s = 0.0
        self.spent_s = 0.0
        # The most that one of its flows had used when it was served, in s.
        self.level_s = 0.0
        # Its flows in line: standing, number of arrival, cost of the work, what is served; and whether it stands in the
        # queue's line.
        self.line: list[tuple[float, float, int, float, Place]] = []
        self.is_in_line = False

    @property
    def rank(self) -> float:
        """The least is served next."""
        return self.used_s if self.spent_s >= NEW_S else self.used_s - _head_start_s(self.spent_s)


class Flow:
    """One reader or writer of a client.

    `async with flow` stands around each slice of work, which must not await; or `call` has it called.
    """

    def __init__(self, share: Share) -> None:
        self._share = share
        # Time used, in s: no less than the share's level without the head start, and what it really was.
        self._used_s = 0.0
        self._spent_s = 0.0
        # When its slice began, and how long its last one was, in s; the first is taken for a whole one.
        self._began = 0.0
        self._slice_s = SLICE_S
        # What is called in its next slice; None if it does not stand in line for `call`.
        self._work: Callable[[], object] | None = None

    async def wait(self, cost_s: float) -> None:
        """Wait for a slice, for work that takes about `cost_s` and may await; several tasks may wait at once."""
        standing = self._standing()
        self._used_s += cost_s
        self._spent_s += cost_s
        await self._share.queue.wait(self._share, standing, cost_s)
        self._share.used_s += cost_s
        self._share.spent_s += cost_s

    async def __aenter__(self) -> None:
        await self._share.queue.wait(self._share, self._standing(), self._slice_s)
        self._began = self._share.queue.clock()

    async def __aexit__(self, *_: object) -> None:
        self._slice_s = self._share.queue.clock() - self._began
        self._count(self._slice_s)

    def call(self, work: Callable[[], object], cost_s: float = 0.0) -> None:
        """Have `work`, which must not raise, called in a slice, soon but not now. A call that waits is replaced.

        `cost_s`: of what the work leaves to do in the same pass of the loop; a call that replaces another keeps that of
        the first.
        """
        if self._work is None:
            self._share.queue.enter(self._share, self._standing(), self, cost_s)
        self._work = work

    def work(self, now: float, cost_s: float) -> float:
        """For the queue: do the work of `call`, which leaves `cost_s` to do; returns the time after it."""
        self._began = now
        work, self._work = self._work, None
        assert work is not None
        work()
        now = self._share.queue.clock()
        self._slice_s = now - self._began + cost_s
        self._count(self._slice_s)
        return now

    def has_time(self) -> bool:
        """Whether its slice may go on with another piece of work."""
        return self._share.queue.clock() - self._began < SLICE_S

    def _standing(self) -> Standing:
        used_s = self._share.level_s - CREDIT_S
        if self._used_s < used_s:
            self._used_s = used_s
        if self._spent_s >= NEW_S:
            return self._used_s, self._used_s
        return self._used_s - _head_start_s(self._spent_s), self._used_s

    def _count(self, took_s: float) -> None:
        self._used_s += took_s
        self._spent_s += took_s
        self._share.used_s += took_s
        self._share.spent_s += took_s


def _head_start_s(spent_s: float) -> float:
    """Of those that have used less than `NEW_S` in all."""
    return FIRST_S * (1 - spent_s / NEW_S)


# What a flow is among those of its share: its rank, the least of which is served next; the time that it has used, s.
Standing = tuple[float, float]
# What stands in line: a flow with work to call, or what tells a task that its flow is served.
Place = Flow | asyncio.Future[None]
