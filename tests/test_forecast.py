"""Estimates from ages and durations."""

from __future__ import annotations

import random

import pytest

from agent_tts.forecast import ENOUGH, Forecast, retry_ms


def test_without_experience_a_thing_lasts_as_long_again() -> None:
    assert Forecast().left_s([3.0]) == [3.0]


def test_with_experience_it_lasts_as_long_as_those_before() -> None:
    forecast = Forecast()
    for _ in range(ENOUGH):
        forecast.ended(10.0)
    assert forecast.left_s([3.0, 9.0]) == [7.0, 1.0]
    assert forecast.left_s([12.0]) == [12.0]  # none has lasted so long


@pytest.mark.parametrize("things", [1, 4, 64])
def test_the_first_of_several_ends_about_when_the_least_rest_says(things: int) -> None:
    """Durations without a memory: the first of n ends after an n-th of the mean."""
    chance = random.Random(0)
    forecast = Forecast()
    for _ in range(200):
        forecast.ended(chance.expovariate(0.1))
    rests = [min(forecast.left_s([chance.uniform(0, 10) for _ in range(things)])) for _ in range(200)]
    assert sum(rests) / len(rests) == pytest.approx(10 / things, rel=0.5)


@pytest.mark.parametrize(("wait_s", "ms"), [(-1.0, 100), (0.0, 100), (1.2345, 1234), (3_600.0, 30_000)])
def test_a_client_waits_neither_too_short_nor_for_ever(wait_s: float, ms: int) -> None:
    assert retry_ms(wait_s) == ms
