"""When a slot is likely to come free, for requests that are refused. Pure: all times are arguments, in seconds."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import Counter, deque
from typing import Protocol

from agent_tts.engine.requests import FRAME_S, Policy, Request
from agent_tts.forecast import Forecast, retry_ms

# For estimates of a request's rest: speech of one character before any was measured; it counts as a text of CHARS
# characters that was spoken, and the last 4 * CHARS characters count most.
CHAR_S, CHARS = 0.065, 500
ESTIMATE_S = 0.1  # how long an estimate is used again: a flood of refused requests is cheap


class Slots(Protocol):
    """Who has a slot, and who waits for one; see `Admission`."""

    policy: Policy
    running: dict[int, Request]
    waiting: dict[int, deque[Request]]
    held: Counter[int]
    free: int

    def idle_at(self, request: Request) -> float: ...


class Estimates:
    """What was seen of earlier requests, and what follows for those that wait and speak."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.forecast = Forecast()  # of how long slots are kept
        # Speech and text that were spoken to the end, in seconds and characters, later ones weighing more.
        self._spoken = (CHAR_S * CHARS, float(CHARS))
        # When the last estimate was made; the times at which it has slots free, in order; and what owners with so many
        # slots were told.
        self._estimated_at = -math.inf
        self._frees: list[float] = []
        self._told_ms: dict[int, int] = {}

    def learn(self, request: Request) -> None:
        """Count a request that has spoken all its text."""
        kept = max(0.0, 1 - request.chars / (4 * CHARS))
        seconds, chars = (kept * total for total in self._spoken)
        self._spoken = (seconds + request.frames * FRAME_S * request.options.speed, chars + request.chars)

    def retry_ms(self, owner: int, now: float) -> int:
        """When a slot would be free for a new request of this owner that waited without a limit."""
        if now >= self._estimated_at + ESTIMATE_S:
            self._estimated_at, self._frees = now, self._when_free(now)
            self._told_ms.clear()
        mine = self._slots.held[owner]
        if mine not in self._told_ms:
            self._told_ms[mine] = retry_ms(self._served_at(mine) - now)
        return self._told_ms[mine]

    def _served_at(self, mine: int) -> float:
        """When those ahead of a new request have got a slot or waited too long, and one more slot is free.

        Its owner has `mine` slots. Ahead are the waiting requests of owners with no more slots.
        """
        ahead = sorted(
            request.waits_since + self._slots.policy.queue_s
            for other, waiting in self._slots.waiting.items()
            if self._slots.held[other] <= mine
            for request in waiting
        )
        frees = self._frees.copy()  # sorted, so a heap
        mean_s = self.forecast.mean_s() or frees[-1] - self._estimated_at
        passed = 0
        while True:
            passed = bisect_right(ahead, frees[0], passed)
            if passed == len(ahead):
                return frees[0]
            passed += 1
            heapq.heapreplace(frees, frees[0] + mean_s)

    def _when_free(self, now: float) -> list[float]:
        """When the slots come free, in order: by their text where it is complete, otherwise by those before them."""
        running = list(self._slots.running.values())
        by_age = self.forecast.left_s([now - request.admitted_at for request in running])
        frees = [now + self._left_s(request, left_s, now) for request, left_s in zip(running, by_age, strict=True)]
        return sorted(frees + [now] * self._slots.free)

    def _left_s(self, request: Request, by_age_s: float, now: float) -> float:
        if not request.has_text:
            return 0.0 if self._slots.idle_at(request) <= now else by_age_s  # it will be taken back
        seconds, chars = self._spoken
        frames = request.chars * seconds / chars / request.options.speed / FRAME_S
        left = max(1.0, frames - request.frames, 0.1 * request.frames)
        if request.options.lead_ms is None:
            pace = (now - request.admitted_at) / request.frames if request.frames else FRAME_S
            left_s = left * min(pace, FRAME_S)
        else:
            ahead_s = max(0.0, request.buffered_until - now)
            left_s = max(0.0, left * FRAME_S + ahead_s - request.options.lead_ms / 1_000)
        return left_s if request.ended else max(left_s, by_age_s)
