"""Which prompts a step computes: the rule, in the order in which they came. It knows nothing of tensors.

A step computes a bounded number of positions, so that those that speak wait no longer however many come. Each prompt is
computed in parts: first what it shares with others of its voice, then the rest, cut where a part would be longer than
a step takes. So where it is cut, and how it is rounded, does not depend on the others.
"""

from __future__ import annotations

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


class PromptQueue(Generic[WaitingT]):
    """Prompts that wait.

    Args:
        entries: that a step computes.
    """

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._waiting: list[WaitingT] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, one: WaitingT) -> None:
        """A prompt comes."""
        self._waiting.append(one)

    def drop(self, one: WaitingT) -> None:
        """A prompt is not wanted any more, if it was."""
        if one in self._waiting:
            self._waiting.remove(one)

    def take(self) -> list[Taken[WaitingT]]:
        """What this step computes: the next part of the first, and of those behind it whose parts there is room for.

        Whoever needs more goes to the end.
        """
        left, taken = self._entries, []
        for one in self._waiting:
            part = self._part(one)
            if part.end - part.begin <= left:
                left -= part.end - part.begin
                taken.append(part)
        for one, _, end in taken:
            self._waiting.remove(one)
            one.computed = end
            if end < one.length:
                self._waiting.append(one)
        return taken

    def _part(self, one: WaitingT) -> Taken[WaitingT]:
        end = one.shared if one.computed < one.shared else one.length
        return Taken(one, one.computed, min(end, one.computed + self._entries))
