"""When a node is too full for new callers."""

from __future__ import annotations

# A node that was full gets new callers again when so many fewer, of all slots, are in use.
_LESS = 0.05


class HighWater:
    """A mark of the slots in use, with hysteresis: a load balancer does not see a node flap with each utterance."""

    def __init__(self) -> None:
        # What the last look has found.
        self.was_over = False

    def over(self, used: float, share: float) -> bool:
        """Whether the node is too full, with `used` of all slots in use.

        `share` of all slots, in (0, 1], is the mark; at 1 a node is never too full: who waits is told `at_capacity`.
        """
        mark = share - _LESS if self.was_over else share
        self.was_over = share < 1 and used >= mark
        return self.was_over
