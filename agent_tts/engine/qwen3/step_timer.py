"""When to begin the next step while one is under way: so late that newcomers are in it, so early that nothing idles."""

from __future__ import annotations

from collections.abc import Hashable

# Between the moment that is waited for and the launch: to wake, to read commands, to plan. What a step's own
# preparations take is measured.
WAKE_S = 0.000_5
# Of an estimate that was too long, nobody has seen by how much; of one that was too short, at most: something else may
# have held the step up, once.
SHRINK, GROW = 0.9, 1.25


class StepTimer:
    """How long steps of each kind take, as far as seen; and when the one under way will be done. Times in seconds."""

    def __init__(self) -> None:
        # Kind of step -> how long it takes.
        self._took: dict[Hashable, float] = {}
        # How long the host needs from the begin of a step to its launch.
        self._preparation_s = 0.0
        # Kind and begin of each step under way, oldest first.
        self._under_way: list[tuple[Hashable, float]] = []
        # When the last of them will be done.
        self._done_at = 0.0

    def launched(self, kind: Hashable, now: float, preparation_s: float) -> None:
        """A step has been given to the device, behind those that are under way."""
        self._preparation_s += (preparation_s - self._preparation_s) / 8
        self._under_way.append((kind, now))
        self._done_at = max(now, self._done_at) + self._took.get(kind, 0.0)

    def done(self, now: float, *, waited: bool) -> None:
        """The oldest step is done: just now, if somebody `waited` for it, otherwise before."""
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
        """How long it is too early to begin the next step; 0 when it is not."""
        return max(0.0, self._done_at - self._preparation_s - WAKE_S - now)
