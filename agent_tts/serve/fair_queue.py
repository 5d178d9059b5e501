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
    flows stand in line, and each pass serves one: of the share that has used least, the flow that has used least. So a
    client with little to do waits for about one slice of others, however many connections they have or open.
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
        # Shares by name.
        self._shares: dict[str, Share] = {}

    def share(self, name: str | None) -> Share:
        """The one share of this name; names are few and never forgotten. None makes a new share."""
        return Share(self) if name is None else self._shares.setdefault(name, Share(self))

    async def wait(self, share: Share, used_s: float) -> None:
        """Wait for a slice for a flow that has used this much. Cancelling it gives the place in line up."""
        if not share.line:
            share.used_s = max(share.used_s, self._level_s - CREDIT_S)
        if self._line or not self._has_time():
            served: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if not share.line:
                self._put(share)
            heapq.heappush(share.line, (used_s, next(self.arrivals), served))
            await served
        self._level_s = max(self._level_s, share.used_s)
        share.level_s = max(share.level_s, used_s)

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
            used_s, _, share = heapq.heappop(self._line)
            if share.used_s > used_s:  # it has used more since it was put in
                self._put(share)
                continue
            served = heapq.heappop(share.line)[-1]
            if share.line:
                self._put(share)
            if not served.done():  # cancelled
                served.set_result(None)
                self._begin(self.clock())
                return

    def _put(self, share: Share) -> None:
        heapq.heappush(self._line, (share.used_s, next(self.arrivals), share))


class Share:
    """What a client has used of the event loop, over all of its connections. Made by `FairQueue.share`."""

    def __init__(self, queue: FairQueue) -> None:
        self.queue = queue
        self.used_s = 0.0
        # The most that one of its flows had used when it was served, in s.
        self.level_s = 0.0
        # Its flows in line: time used, number of arrival, completed when it is served.
        self.line: list[tuple[float, int, asyncio.Future[None]]] = []


class Flow:
    """One reader or writer of a client: `async with flow` around each slice of work, which must not await."""

    def __init__(self, share: Share) -> None:
        self._share = share
        # Time used, in s; no less than the share's level without the head start.
        self._used_s = 0.0
        # When its slice began.
        self._began = 0.0

    async def wait(self, cost_s: float) -> None:
        """Wait for a slice, for work that takes about `cost_s` and may await; several tasks may wait at once."""
        used_s = max(self._used_s, self._share.level_s - CREDIT_S)
        self._used_s = used_s + cost_s
        await self._share.queue.wait(self._share, used_s)
        self._share.used_s += cost_s

    async def __aenter__(self) -> None:
        await self.wait(0.0)
        self._began = self._share.queue.clock()

    async def __aexit__(self, *_: object) -> None:
        took_s = self._share.queue.clock() - self._began
        self._used_s += took_s
        self._share.used_s += took_s

    def has_time(self) -> bool:
        """Whether its slice may go on with another piece of work."""
        return self._share.queue.clock() - self._began < SLICE_S
