"""When something that is in use comes free, from how long it and earlier ones have lasted."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

KEPT = 256  # durations: those of a changed load replace the older ones soon
ENOUGH = 8  # longer durations, to conclude from them

# For how long a refused client is told to wait: not so short that it asks all the time, not so long that it gives up.
MIN_RETRY_MS, MAX_RETRY_MS = 100, 30_000

# Multiples of it, modulo 1, are spread evenly, however many there are.
_GOLDEN = 0.618033988749895


class Forecast:
    """Durations of things of one kind. Pure: the caller passes all times, in seconds."""

    def __init__(self) -> None:
        self._lasted: deque[float] = deque(maxlen=KEPT)

    def ended(self, lasted_s: float) -> None:
        self._lasted.append(lasted_s)

    def left_s(self, ages_s: Sequence[float]) -> list[float]:
        """A likely rest of each thing, in the order of their ages.

        Each rest is at another quantile of what a thing of this age has left, so that their order statistics are
        likely, too: the least is about when the first of them ends. The rest of one thing alone is the median.
        Without enough longer durations, a thing lasts as long again as it has lasted, in the median.
        """
        lasted = sorted(self._lasted)
        left = []
        for index, age in enumerate(ages_s):
            quantile = (0.5 + index * _GOLDEN) % 1
            shorter = bisect_right(lasted, age)
            longer = len(lasted) - shorter
            if longer >= ENOUGH:
                left.append(lasted[shorter + int(quantile * longer)] - age)
            else:
                left.append(age * quantile / (1 - quantile))
        return left

    def mean_s(self, things: int) -> float | None:
        """The mean duration; None before so many have ended: of those that began together the shortest end first."""
        return sum(self._lasted) / len(self._lasted) if len(self._lasted) >= min(things, KEPT) else None


def retry_ms(wait_s: float) -> int:
    """The time after which a client may try again, if what it needs comes free in `wait_s`."""
    return min(MAX_RETRY_MS, max(MIN_RETRY_MS, round(wait_s * 1_000)))
