"""When a slot is likely to come free, for requests that are refused. Pure: all times are arguments, in seconds."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator
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
        # When the last estimate was made; the times at which it has slots free, in order; and for owners with so many
        # slots, when one refused request after the other would be served.
        self._estimated_at = -math.inf
        self._frees: list[float] = []
        self._served: dict[int, Iterator[float]] = {}
        # Owners of requests that were refused lately, and when they were told to come again. So many that those in a
        # loop, who do not wait for it, cannot make the times of others as long as they like.
        self._coming: deque[tuple[float, int]] = deque(maxlen=slots.policy.slots + slots.policy.queue)

    def learn(self, request: Request) -> None:
        """Count a request that has spoken all its text."""
        kept = max(0.0, 1 - request.chars / (4 * CHARS))
        seconds, chars = (kept * total for total in self._spoken)
        self._spoken = (seconds + request.frames * FRAME_S * request.options.speed, chars + request.chars)

    def retry_ms(self, owner: int, now: float) -> int:
        """When a slot would be free for a request of this owner that is refused now: each is told another time."""
        if now >= self._estimated_at + ESTIMATE_S:
            self._estimated_at, self._frees = now, self._when_free(now)
            self._coming = deque((one for one in self._coming if one[0] > now), self._coming.maxlen)
            self._served.clear()
        mine = self._slots.held[owner]
        if mine not in self._served:
            self._served[mine] = self._served_at(mine)
        told_ms = retry_ms(next(self._served[mine]) - now)
        self._coming.append((now + told_ms / 1_000, owner))
        return told_ms

    def _served_at(self, mine: int) -> Iterator[float]:
        """When those ahead of a new request have got a slot or waited too long, and one more slot is free; then two.

        Its owner has `mine` slots. Ahead are the requests of owners with no more slots that wait, or will come again.
        """
        held, queue_s = self._slots.held, self._slots.policy.queue_s
        comes = [(one.waits_since, owner) for owner, waiting in self._slots.waiting.items() for one in waiting]
        ahead = sorted(at + queue_s for at, owner in (*comes, *self._coming) if held[owner] <= mine)
        frees = self._frees.copy()  # sorted, so a heap
        mean_s = self.forecast.mean_s(len(frees)) or sum(frees) / len(frees) - self._estimated_at
        passed = 0
        while True:
            passed = bisect_right(ahead, frees[0], passed)
            if passed == len(ahead):
                yield frees[0]
            passed = min(passed + 1, len(ahead))
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
