"""Prompts are computed in the order in which they came, in batches of a bounded size."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_tts.engine.prompt_queue import PromptQueue, Shape

BATCH = 256


@dataclass(eq=False)
class One:
    """A prompt."""

    length: int
    computed: int = 0


def queue(*lengths: int) -> tuple[PromptQueue[One], list[One]]:
    made: PromptQueue[One] = PromptQueue(BATCH)
    prompts = [One(length) for length in lengths]
    for one in prompts:
        made.add(one)
    return made, prompts


def test_every_batch_has_as_many_positions() -> None:
    made, _ = queue()
    assert made.shapes()[0] == Shape(1, 256, begun=True)
    assert made.shapes()[1:] == [Shape(256 // n, n, begun=False) for n in (256, 128, 64, 32, 16)]


@pytest.mark.parametrize(
    ("length", "padded"), [(1, 16), (9, 16), (16, 16), (17, 32), (64, 64), (65, 128), (256, 256), (257, 256)]
)
def test_a_prompt_is_padded_to_the_next_length(length: int, padded: int) -> None:
    made, (one,) = queue(length)
    assert made.shape(one) == Shape(BATCH // padded, padded, begun=False)


def test_those_that_are_as_long_ride_along_and_hold_nobody_up() -> None:
    made, (a, b, c, d) = queue(9, 40, 12, 40)
    assert made.batch == [a, c]
    made.done()
    assert made.batch == [b, d]
    made.done()
    assert made.batch == []


def test_a_full_batch_leaves_the_rest_for_the_next() -> None:
    made, prompts = queue(*[16] * 20)
    assert made.batch == prompts[:16]
    made.done()
    assert made.batch == prompts[16:]


def test_a_long_prompt_takes_turns_with_those_behind_it() -> None:
    made, (long, short, other) = queue(600, 9, 100)
    turns = []
    while made.batch:
        turns.append([(one, made.part(one), made.ends(one), made.shape(one).begun) for one in made.batch])
        made.done()
    assert turns == [
        [(long, 256, False, False)],
        [(short, 9, True, False)],
        [(other, 100, True, False)],
        [(long, 256, False, True)],
        [(long, 88, True, True)],
    ]


def test_what_is_dropped_is_not_computed() -> None:
    made, (a, b, c) = queue(100, 9, 100)
    made.drop(a)
    made.drop(b)
    assert made.batch == [c]
    made.done()
    assert made.batch == []
    made.drop(c)  # as often as anybody likes


def test_the_place_of_one_that_is_dropped_is_taken_in_order() -> None:
    made, (a, b, c) = queue(9, 40, 100)
    made.drop(a)
    assert made.batch == [b]
    made.add(One(200))
    made.done()
    assert made.batch == [c]


@settings(max_examples=200)
@given(arrivals=st.lists(st.lists(st.integers(1, 700), max_size=6), min_size=1, max_size=12))
def test_nobody_waits_for_ever(arrivals: list[list[int]]) -> None:
    """In each step the first that waits is computed, within the batch's positions, and all are in the end."""
    made, _ = queue()
    prompts: list[One] = []
    steps = 0
    while steps < len(arrivals) or made.batch:
        for length in arrivals[steps] if steps < len(arrivals) else ():
            prompts.append(One(length))
            made.add(prompts[-1])
        first = made.shape(made.batch[0]) if made.batch else None
        assert all(made.shape(one) == first for one in made.batch)
        assert len(made.batch) <= (first.rows if first else 0)
        assert sum(made.part(one) for one in made.batch) <= BATCH
        assert first is None or first in made.shapes()
        made.done()
        steps += 1
        assert steps < 200
    assert all(one.computed == one.length for one in prompts)
