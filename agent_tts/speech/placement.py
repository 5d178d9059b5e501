"""Selects the engine for a new utterance. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """Load and capacity of an engine."""

    utterances: int  # opened and not finished, waiting ones included
    slots: int  # utterances that may speak at once
    queue: int  # utterances that may wait for a slot

    @property
    def is_full(self) -> bool:
        """Whether it would refuse another utterance."""
        return self.utterances >= self.slots + self.queue

    @property
    def share(self) -> float:
        """Utterances per slot; a new utterance waits when this is 1 or more."""
        return self.utterances / self.slots


def least_loaded(loads: Sequence[Load]) -> int:
    """Index of the engine for the next utterance; the first of equals. A full engine only when all are full."""
    return min(range(len(loads)), key=lambda place: (loads[place].is_full, loads[place].share))
