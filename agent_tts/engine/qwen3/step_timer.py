"""When to begin the next step while one is in flight: late enough to include new requests, early enough that the device
never idles."""

from __future__ import annotations

from collections.abc import Hashable

# To wake, read commands and schedule; the time from there to the launch is measured.
WAKE_S = 0.000_5
# An estimate that was too long shrinks by 10 %: the step ended before the host looked, so the true time is unknown. One
# that was too short grows by at most 25 %: something else may have delayed the step once.
SHRINK, GROW = 0.9, 1.25


class StepTimer:
    """Estimates how long steps of each kind take, and when the step in flight will be done. Times in seconds."""

    def __init__(self) -> None:
        # Kind of step -> how long it takes.
        self._took: dict[Hashable, float] = {}
        # From the begin of a step to its launch, on the host.
        self._preparation_s = 0.0
        # Kind and begin of each step under way, oldest first.
        self._under_way: list[tuple[Hashable, float]] = []
        # When the last of them will be done.
        self._done_at = 0.0

    def launched(self, kind: Hashable, now: float, preparation_s: float) -> None:
        """A step has been launched behind those in flight."""
        self._preparation_s += (preparation_s - self._preparation_s) / 8
        self._under_way.append((kind, now))
        self._done_at = max(now, self._done_at) + self._took.get(kind, 0.0)

    def done(self, now: float, *, waited: bool) -> None:
        """The oldest step is done: just now if the host `waited` for it, otherwise earlier."""
        kind, began = self._under_way.pop(0)
        known = self._took.get(kind)
        if waited:
            self._took[kind] = now - began if known is None else min(now - began, known * GROW)
        elif known is not None:
            self._took[kind] = known * SHRINK
        if self._under_way:  # the next runs from now on
            kind, _ = self._under_way[0]
            self._under_way[0] = (kind, now)
            self._done_at = now + sum(self._took.get(kind, 0.0) for kind, _ in self._under_way)

    def wait_s(self, now: float) -> float:
        """How long to wait before the next step begins."""
        return max(0.0, self._done_at - self._preparation_s - WAKE_S - now)
