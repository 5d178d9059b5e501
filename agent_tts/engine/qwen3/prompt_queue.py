"""Which prompts a step computes: the rule, in the order in which they came. It knows nothing of tensors.

A step computes a bounded number of entries, so that those that speak wait no longer however many come. Each prompt is
computed in parts: first what it shares with others of its voice, then the rest, cut where a part would be longer than
a step takes. Where a cut changes how a prompt is rounded, there are no other cuts, so that none depends on who else
waits; where it does not, prompts are also cut to fill the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar


class Waiting(Protocol):
    """A prompt that waits. Its entries are its positions, and what follows the last of them."""

    computed: int  # entries

    @property
    def shared(self) -> int: ...  # leading entries that are the same in other prompts

    @property
    def length(self) -> int: ...  # entries


WaitingT = TypeVar("WaitingT", bound=Waiting)


class Taken(NamedTuple, Generic[WaitingT]):
    """A part of a prompt that this step computes."""

    one: WaitingT
    begin: int  # entries
    end: int


class Limits(NamedTuple):
    """What a step computes."""

    entries: int
    prompts: int | None = None  # that they are of, at most; None is as many as there are
    cut: bool = False  # a prompt may be cut anywhere, to fill the step


class PromptQueue(Generic[WaitingT]):
    """Prompts that wait."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: list[WaitingT] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[WaitingT]:
        """Those that wait, in the order in which they are computed."""
        return iter(self._waiting)

    def add(self, one: WaitingT) -> None:
        """A prompt comes."""
        self._waiting.append(one)

    def drop(self, one: WaitingT) -> None:
        """A prompt is not wanted any more, if it was."""
        if one in self._waiting:
            self._waiting.remove(one)

    def take(self) -> list[Taken[WaitingT]]:
        """What this step computes: the next part of the first, and of those behind it as there is room.

        Whoever needs more goes on first, if one step is enough for it; otherwise it goes to the end.
        """
        left = self._limits.entries
        taken: list[Taken[WaitingT]] = []
        for one in self._waiting:
            if not left or len(taken) == self._limits.prompts:
                break
            part = self._part(one, left)
            if part.end > part.begin:
                left -= part.end - part.begin
                taken.append(part)
        for one, _, end in taken:
            self._waiting.remove(one)
            one.computed = end
        more = [one for one, _, end in taken if end < one.length]
        soon = [one for one in more if one.length - one.computed <= self._limits.entries]
        self._waiting = [*soon, *self._waiting, *(one for one in more if one not in soon)]
        return taken

    def _part(self, one: WaitingT, left: int) -> Taken[WaitingT]:
        """The next part of a prompt; nothing of it where there is no room."""
        begin = one.computed
        end = min(one.shared if begin < one.shared else one.length, begin + self._limits.entries)
        if end - begin > left:
            end = begin + left if self._limits.cut else begin
        return Taken(one, begin, end)
