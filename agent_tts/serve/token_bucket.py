"""A limit on a rate: of messages, requests, datagrams, lines of the log. Pure."""

from __future__ import annotations


class TokenBucket:
    """At most `burst` at once and `rate` a second on average. Pure: the caller passes the time, in seconds."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        # What was left of the burst at `_then`; negative while the client is ahead of its rate.
        self._left = burst
        self._then = now

    def left(self, now: float) -> float:
        """How many may come now; negative while the client is ahead of its rate."""
        self.take(now, 0)
        return self._left

    def take(self, now: float, count: float = 1) -> float:
        """Count some. Returns the seconds by which they came too early: 0 within the limits."""
        self._left = min(self._burst, self._left + (now - self._then) * self._rate) - count
        self._then = now
        return max(0.0, -self._left / self._rate)

    def allows(self, now: float, count: float = 1) -> bool:
        """Count some if they are within the limits; returns whether they are."""
        if self.left(now) < count:
            return False
        self._left -= count
        return True
