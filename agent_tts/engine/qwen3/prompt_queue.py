"""Chunked prefill: which entries of which prompts a step computes, first come, first served. No tensors.

A step computes a bounded number of entries, so that rows that decode are not delayed by the number of prompts. Each
prompt is computed in chunks: first the entries that it shares with prompts of the same voice, then the rest, cut at the
budget of a step. Prompts are also cut to fill a step where that does not change their rounding (`PrefillBudget.cut`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar


class WaitingPrompt(Protocol):
    """A prompt that waits. Its entries are its positions and one more, see `Prompt.numbers`."""

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
    """The most that a step computes."""

    entries: int
    prompts: int | None = None  # None is any number
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
        self._waiting.append(prompt)

    def drop(self, prompt: PromptT) -> None:
        """Remove a prompt, if it waits."""
        if prompt in self._waiting:
            self._waiting.remove(prompt)

    def schedule(self) -> list[PromptChunk[PromptT]]:
        """The chunks of this step: the next one of each prompt in turn, while there is room.

        A prompt with entries left comes first in the next step if that step can finish it, otherwise last.
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
        """The next chunk of a prompt; empty where there is no room."""
        begin = prompt.computed
        end = min(prompt.shared if begin < prompt.shared else prompt.length, begin + self._budget.entries)
        if end - begin > left:
            end = begin + left if self._budget.cut else begin
        return PromptChunk(prompt, begin, end)
