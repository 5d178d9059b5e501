"""Prompts are computed in the order in which they came, in parts, so many entries in a step."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.engine.qwen3.prompt_queue import PrefillBudget, PromptQueue
from tests.examples import examples

ENTRIES = 128


@dataclass(eq=False)
class One:
    """A prompt."""

    length: int
    shared: int
    computed: int = 0


def queue(
    *lengths: int | tuple[int, int], prompts: int | None = None, cut: bool = False
) -> tuple[PromptQueue[One], list[One]]:
    """Of prompts that share all, or so much."""
    made: PromptQueue[One] = PromptQueue(PrefillBudget(ENTRIES, prompts, cut))
    waiting = [One(length, length) if isinstance(length, int) else One(*length) for length in lengths]
    for one in waiting:
        made.add(one)
    return made, waiting


def test_as_many_ride_along_as_there_is_room_for() -> None:
    made, (a, b, c, d) = queue(60, 40, 28, 1)
    assert made.schedule() == [(a, 0, 60), (b, 0, 40), (c, 0, 28)]
    assert made
    assert list(made) == [d]
    assert made.schedule() == [(d, 0, 1)]
    assert not made
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
    while made:
        finished += [one for one, _, end in made.schedule() if end == one.length]
    assert finished == waiting


@pytest.mark.parametrize("beside", [0, 100])
def test_what_is_shared_is_a_part_of_its_own(beside: int) -> None:
    """Wherever it is computed: so what is kept of it is what any other would have computed."""
    made, (one,) = queue((200, 150))
    parts = []
    for _ in range(8):
        if beside:
            made.add(One(beside, beside))
        parts += [(begin, end) for mine, begin, end in made.schedule() if mine is one]
    assert parts == [(0, 128), (128, 150), (150, 200)]


def test_what_is_known_is_not_computed() -> None:
    made, (one,) = queue()[0], [One(50, 20, computed=20)]
    made.add(one)
    assert made.schedule() == [(one, 20, 50)]


def test_what_is_dropped_is_not_computed() -> None:
    made, (a, b, c) = queue(100, 9, 100)
    made.drop(a)
    made.drop(b)
    assert made.schedule() == [(c, 0, 100)]
    made.drop(c)  # idempotent


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
    prompts: list[One] = []
    steps = 0
    while steps < len(arrivals) or made:
        for length, shared in arrivals[steps] if steps < len(arrivals) else ():
            prompts.append(One(length, min(length, shared)))
            made.add(prompts[-1])
        before = {id(one): one.computed for one in made}
        first = next(iter(made), None)
        taken = made.schedule()
        assert (taken[0].prompt if taken else None) is first
        assert sum(end - begin for _, begin, end in taken) <= ENTRIES
        assert all(begin == before[id(one)] < end == one.computed <= one.length for one, begin, end in taken)
        steps += 1
        assert steps < 1_000
    assert all(one.computed == one.length for one in prompts)
