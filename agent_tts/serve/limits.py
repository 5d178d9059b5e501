"""How often a client may do something."""

from __future__ import annotations


class TokenBucket:
    """At most `burst` at once and `rate` a second in the long run. Pure: the caller brings the time, in seconds."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        # What is left of the burst at `_then`; negative while the client is ahead of its rate.
        self._left = burst
        self._then = now

    def take(self, now: float) -> float:
        """Count one. Returns the seconds by which it came too early: 0 within the limits."""
        self._left = min(self._burst, self._left + (now - self._then) * self._rate) - 1
        self._then = now
        return max(0.0, -self._left / self._rate)
