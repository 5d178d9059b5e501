"""Prompts are computed in the order in which they came, in parts, so many entries in a step."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.engine.qwen3.graphs import PrefillBudget
from agent_tts.engine.qwen3.runner import LoadedVoice, PromptChunk, RowPrompt, take_chunks
from agent_tts.model.prompt import Position, Prompt, PromptVoice
from agent_tts.model.sampling import SamplingParams
from tests.examples import examples

ENTRIES = 128


def one_of(length: int, shared: int, computed: int = 0) -> RowPrompt:
    """A prompt of so many entries, of which so many are the same in others."""
    prefix = (Position(None, None),) * (length - 1)
    prompt = Prompt(prefix, min(shared, length - 1), start=None, text=(), complete=True)
    return RowPrompt(0, prompt, SamplingParams(), LoadedVoice(PromptVoice()), computed)


@dataclass
class Queue:
    """Prompts that wait, and what a step may compute of them."""

    budget: PrefillBudget
    waiting: list[RowPrompt] = field(default_factory=list)

    def schedule(self) -> list[PromptChunk]:
        return take_chunks(self.waiting, self.budget)


def queue(
    *lengths: int | tuple[int, int], prompts: int | None = None, cut: bool = False
) -> tuple[Queue, list[RowPrompt]]:
    """Of prompts that share all, or so much."""
    waiting = [one_of(length, length) if isinstance(length, int) else one_of(*length) for length in lengths]
    return Queue(PrefillBudget(ENTRIES, prompts, cut), [*waiting]), waiting


def test_as_many_ride_along_as_there_is_room_for() -> None:
    made, (a, b, c, d) = queue(60, 40, 28, 1)
    assert made.schedule() == [(a, 0, 60), (b, 0, 40), (c, 0, 28)]
    assert made.waiting == [d]
    assert made.schedule() == [(d, 0, 1)]
    assert not made.waiting
    assert made.schedule() == []


def test_a_prompt_without_room_does_not_delay_smaller_ones() -> None:
    made, (a, b, c) = queue(100, 40, 20)
    assert made.schedule() == [(a, 0, 100), (c, 0, 20)]
    assert made.schedule() == [(b, 0, 40)]


def test_where_it_may_a_prompt_is_cut_to_fill_the_step_and_goes_on_first() -> None:
    made, (a, b, c) = queue(100, 90, 100, cut=True)
    assert made.schedule() == [(a, 0, 100), (b, 0, 28)]
    assert made.schedule() == [(b, 28, 90), (c, 0, 66)]
    assert made.schedule() == [(c, 66, 100)]


def test_no_more_prompts_than_a_step_can_take() -> None:
    made, (a, b) = queue(9, 9, prompts=1)
    assert made.schedule() == [(a, 0, 9)]
    assert made.schedule() == [(b, 0, 9)]


def test_a_long_prompt_takes_turns_with_those_behind_it() -> None:
    """Until one step is enough for the rest of it."""
    made, (long, short, other, last) = queue(300, 9, 100, 120)
    assert [made.schedule() for _ in range(5)] == [
        [(long, 0, 128)],
        [(short, 0, 9), (other, 0, 100)],
        [(last, 0, 120)],
        [(long, 128, 256)],
        [(long, 256, 300)],
    ]


def test_those_who_come_first_are_ready_first() -> None:
    made, waiting = queue(*[200] * 8)
    finished = []
    while made.waiting:
        finished += [one for one, _, end in made.schedule() if end == one.length]
    assert finished == waiting


@pytest.mark.parametrize("beside", [0, 100])
def test_what_is_shared_is_a_part_of_its_own(beside: int) -> None:
    """Wherever it is computed: so what is kept of it is what any other would have computed."""
    made, (one,) = queue((200, 150))
    parts = []
    for _ in range(8):
        if beside:
            made.waiting.append(one_of(beside, beside))
        parts += [(begin, end) for mine, begin, end in made.schedule() if mine is one]
    assert parts == [(0, 128), (128, 150), (150, 200)]


def test_what_is_known_is_not_computed() -> None:
    made, (one,) = queue()[0], [one_of(50, 20, computed=20)]
    made.waiting.append(one)
    assert made.schedule() == [(one, 20, 50)]


@examples(200)
@given(
    arrivals=st.lists(
        st.lists(st.tuples(st.integers(1, 700), st.integers(0, 700)), max_size=6), min_size=1, max_size=12
    ),
    cut=st.booleans(),
)
def test_nobody_waits_for_ever(arrivals: list[list[tuple[int, int]]], cut: bool) -> None:
    """In each step the first that waits is computed, within the step's entries, and all are in the end."""
    made, _ = queue(cut=cut)
    prompts: list[RowPrompt] = []
    steps = 0
    while steps < len(arrivals) or made.waiting:
        for length, shared in arrivals[steps] if steps < len(arrivals) else ():
            prompts.append(one_of(length, min(length, shared)))
            made.waiting.append(prompts[-1])
        before = {id(one): one.computed for one in made.waiting}
        first = next(iter(made.waiting), None)
        taken = made.schedule()
        assert (taken[0].prompt if taken else None) is first
        assert sum(end - begin for _, begin, end in taken) <= ENTRIES
        assert all(begin == before[id(one)] < end == one.computed <= one.length for one, begin, end in taken)
        steps += 1
        assert steps < 1_000
    assert all(one.computed == one.length for one in prompts)
