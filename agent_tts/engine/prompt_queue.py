"""Which prompts a step computes: the rule, in the order in which they came. It knows nothing of tensors.

A step computes one batch: the first prompt that waits, and in the places that are left those behind it that are as
long, up to padding. So however many come, the rows that speak wait for as many positions as a batch has; whoever is
passed in the queue loses no time by it; and how a prompt is rounded does not depend on the others. A prompt that is
longer than a batch is computed in parts; after each it goes to the end of the queue.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

SHORTEST = 16  # positions that the shortest prompts are padded to: those of a named speaker have 9 or 10


class Waiting(Protocol):
    """A prompt that waits."""

    computed: int  # positions

    @property
    def length(self) -> int: ...  # positions


WaitingT = TypeVar("WaitingT", bound=Waiting)


class Shape(NamedTuple):
    """Of a batch."""

    rows: int
    length: int  # positions of each row
    begun: bool  # the prompt has been begun by another step, so that it reads more than the batch


class PromptQueue(Generic[WaitingT]):
    """Prompts that wait, and the batch that the next step computes.

    Args:
        positions: of a batch, padding included; a power of two, at least `SHORTEST`.
    """

    def __init__(self, positions: int) -> None:
        self._positions = positions
        self._waiting: list[WaitingT] = []
        self.batch: list[WaitingT] = []

    def shapes(self) -> list[Shape]:
        """All that a batch may have, the largest first."""
        lengths = [self._positions]
        while lengths[-1] > SHORTEST:
            lengths.append(lengths[-1] // 2)
        return [Shape(1, self._positions, True), *(Shape(self._positions // n, n, False) for n in lengths)]

    def shape(self, one: WaitingT) -> Shape:
        """Of the batch that a prompt is computed in."""
        length = SHORTEST
        while one.computed or length < one.length:
            if length == self._positions:
                break
            length *= 2
        return Shape(self._positions // length, length, one.computed > 0)

    def part(self, one: WaitingT) -> int:
        """How many positions of a prompt its next batch computes."""
        return min(one.length - one.computed, self._positions)

    def ends(self, one: WaitingT) -> bool:
        """Whether its next batch is its last."""
        return one.length - one.computed <= self._positions

    def add(self, one: WaitingT) -> None:
        """A prompt comes."""
        self._waiting.append(one)
        self._fill()

    def drop(self, one: WaitingT) -> None:
        """A prompt is not wanted any more, if it was; another takes its place."""
        for those in (self._waiting, self.batch):
            if one in those:
                those.remove(one)
        self._fill()

    def done(self) -> None:
        """The batch has been computed: the next one is made up."""
        batch, self.batch = self.batch, []
        for one in batch:
            one.computed += self.part(one)
            if one.computed < one.length:
                self._waiting.append(one)
        self._fill()

    def _fill(self) -> None:
        for one in list(self._waiting):
            shape = self.shape(one)
            if not self.batch or (self.shape(self.batch[0]) == shape and len(self.batch) < shape.rows):
                self._waiting.remove(one)
                self.batch.append(one)
