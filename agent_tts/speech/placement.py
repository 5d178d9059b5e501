"""Which of several engines takes a new utterance. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine has to do, and what it can."""

    utterances: int  # opened and not finished, waiting ones included
    slots: int  # how many may speak at once
    queue: int  # how many more may wait

    @property
    def is_full(self) -> bool:
        """Whether it would refuse another utterance."""
        return self.utterances >= self.slots + self.queue

    @property
    def share(self) -> float:
        """Streams for each slot: from 1 on a new one has to wait."""
        return self.utterances / self.slots


def least_loaded(loads: Sequence[Load]) -> int:
    """The place of the engine that takes the next utterance; the first of equals. A full one only when all are."""
    return min(range(len(loads)), key=lambda place: (loads[place].is_full, loads[place].share))
