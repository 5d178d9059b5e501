"""Which prompts a step computes: the rule, in the order in which they came. It knows nothing of tensors.

A step computes a bounded number of entries, so that those that speak wait no longer however many come. Each prompt is
computed in parts: first what it shares with others of its voice, then the rest, cut where a part would be longer than
a step takes. Where a cut changes how a prompt is rounded, there are no other cuts, so that none depends on who else
waits; where it does not, prompts are also cut to fill the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar


class WaitingPrompt(Protocol):
    """A prompt that waits. Its entries are its positions, and what follows the last of them."""

    computed: int  # entries

    @property
    def shared(self) -> int: ...  # leading entries that are the same in other prompts

    @property
    def length(self) -> int: ...  # entries


PromptT = TypeVar("PromptT", bound=WaitingPrompt)


class PromptChunk(NamedTuple, Generic[PromptT]):
    """A part of a prompt that this step computes."""

    prompt: PromptT
    begin: int  # entries
    end: int


class PrefillBudget(NamedTuple):
    """What a step computes."""

    entries: int
    prompts: int | None = None  # that they are of, at most; None is as many as there are
    cut: bool = False  # a prompt may be cut anywhere, to fill the step


class PromptQueue(Generic[PromptT]):
    """Prompts that wait."""

    def __init__(self, budget: PrefillBudget) -> None:
        self._budget = budget
        self._waiting: list[PromptT] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[PromptT]:
        """Those that wait, in the order in which they are computed."""
        return iter(self._waiting)

    def add(self, prompt: PromptT) -> None:
        """A prompt comes."""
        self._waiting.append(prompt)

    def drop(self, prompt: PromptT) -> None:
        """A prompt is not wanted any more, if it was."""
        if prompt in self._waiting:
            self._waiting.remove(prompt)

    def schedule(self) -> list[PromptChunk[PromptT]]:
        """What this step computes: the next part of the first, and of those behind it as there is room.

        Whoever needs more goes on first, if one step is enough for it; otherwise it goes to the end.
        """
        left = self._budget.entries
        chunks: list[PromptChunk[PromptT]] = []
        for prompt in self._waiting:
            if not left or len(chunks) == self._budget.prompts:
                break
            chunk = self._chunk(prompt, left)
            if chunk.end > chunk.begin:
                left -= chunk.end - chunk.begin
                chunks.append(chunk)
        for prompt, _, end in chunks:
            self._waiting.remove(prompt)
            prompt.computed = end
        more = [prompt for prompt, _, end in chunks if end < prompt.length]
        soon = [prompt for prompt in more if prompt.length - prompt.computed <= self._budget.entries]
        self._waiting = [*soon, *self._waiting, *(prompt for prompt in more if prompt not in soon)]
        return chunks

    def _chunk(self, prompt: PromptT, left: int) -> PromptChunk[PromptT]:
        """The next part of a prompt; nothing of it where there is no room."""
        begin = prompt.computed
        end = min(prompt.shared if begin < prompt.shared else prompt.length, begin + self._budget.entries)
        if end - begin > left:
            end = begin + left if self._budget.cut else begin
        return PromptChunk(prompt, begin, end)
