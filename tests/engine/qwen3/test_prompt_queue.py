"""Prompts are computed in order of arrival, in chunks, with a limited number of entries per step."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.engine.qwen3.graphs import PrefillBudget
from agent_tts.engine.qwen3.runner import PromptChunk, RowPrompt, take_chunks
from agent_tts.engine.qwen3.served import LoadedVoice
from agent_tts.model.config import SamplingParams
from agent_tts.model.prompt import Position, Prompt, PromptVoice
from tests.examples import examples

ENTRIES = 128


def one_of(length: int, shared: int, computed: int = 0) -> RowPrompt:
    """A prompt of `length` entries, `shared` of them the same in other prompts."""
    prefix = (Position(None, None),) * (length - 1)
    prompt = Prompt(prefix, min(shared, length - 1), start=None, text=(), complete=True)
    return RowPrompt(0, prompt, SamplingParams(), LoadedVoice(PromptVoice()), computed=computed)


@dataclass
class Queue:
    """Waiting prompts, and what a step may compute of them."""

    budget: PrefillBudget
    waiting: list[RowPrompt] = field(default_factory=list)

    def schedule(self) -> list[PromptChunk]:
        return take_chunks(self.waiting, self.budget)


def queue(
    *lengths: int | tuple[int, int], prompts: int | None = None, cut: bool = False
) -> tuple[Queue, list[RowPrompt]]:
    """Waiting prompts of these lengths, all shared or (length, shared)."""
    waiting = [one_of(length, length) if isinstance(length, int) else one_of(*length) for length in lengths]
    return Queue(PrefillBudget(ENTRIES, prompts, cut), [*waiting]), waiting


def test_a_step_takes_as_many_prompts_as_fit() -> None:
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


def test_a_prompt_is_cut_to_fill_the_step_and_continues_first() -> None:
    made, (a, b, c) = queue(100, 90, 100, cut=True)
    assert made.schedule() == [(a, 0, 100), (b, 0, 28)]
    assert made.schedule() == [(b, 28, 90), (c, 0, 66)]
    assert made.schedule() == [(c, 66, 100)]


def test_a_step_takes_a_limited_number_of_prompts() -> None:
    made, (a, b) = queue(9, 9, prompts=1)
    assert made.schedule() == [(a, 0, 9)]
    assert made.schedule() == [(b, 0, 9)]


def test_a_long_prompt_alternates_with_those_behind_it() -> None:
    """Until the rest of it fits into one step."""
    made, (long, short, other, last) = queue(300, 9, 100, 120)
    assert [made.schedule() for _ in range(5)] == [
        [(long, 0, 128)],
        [(short, 0, 9), (other, 0, 100)],
        [(last, 0, 120)],
        [(long, 128, 256)],
        [(long, 256, 300)],
    ]


def test_prompts_finish_in_order_of_arrival() -> None:
    made, waiting = queue(*[200] * 8)
    finished = []
    while made.waiting:
        finished += [one for one, _, end in made.schedule() if end == one.prompt.length]
    assert finished == waiting


@pytest.mark.parametrize("beside", [0, 100])
def test_the_shared_prefix_is_a_chunk_of_its_own(beside: int) -> None:
    """In any step, so that its cached result does not depend on the prompt that computed it."""
    made, (one,) = queue((200, 150))
    parts = []
    for _ in range(8):
        if beside:
            made.waiting.append(one_of(beside, beside))
        parts += [(begin, end) for mine, begin, end in made.schedule() if mine is one]
    assert parts == [(0, 128), (128, 150), (150, 200)]


def test_a_known_prefix_is_not_computed() -> None:
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
def test_every_prompt_is_computed_eventually(arrivals: list[list[tuple[int, int]]], cut: bool) -> None:
    """Each step computes the first prompt that waits and stays within its entries."""
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
        assert all(begin == before[id(one)] < end == one.computed <= one.prompt.length for one, begin, end in taken)
        steps += 1
        assert steps < 1_000
    assert all(one.computed == one.prompt.length for one in prompts)
