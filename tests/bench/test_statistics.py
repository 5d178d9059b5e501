"""Percentiles, the simulated player that counts underruns, and the lag of a client's own event loop."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.bench.statistics import Player, lag_watched, mean_at_once, most_at_once, percentile, percentiles, worst


def test_percentiles_are_measured_values() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (0, 1, 50, 99, 100)] == [1, 1, 50, 99, 100]
    assert percentiles([1.234, 2.0], 50, 99, digits=1) == {"p50": 1.2, "p99": 2.0}
    assert percentiles([], 50) == {"p50": None}


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_at_most_the_remaining_share_exceeds_a_percentile(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value > found for value in values) <= len(values) * (1 - percent / 100) + 1e-6


def test_chunks_on_time_leave_no_gap() -> None:
    player = Player()
    assert [player.take(now, 0.08) for now in (10.0, 10.02, 10.1, 10.24)] == [0, 0, 0, 0]
    assert player.started_at == 10.0
    assert player.least_margin_s == pytest.approx(0)
    assert player.gaps == []


def test_a_late_chunk_is_a_gap_and_delays_all_later_chunks() -> None:
    player = Player()
    assert [player.take(now, 0.08) for now in (0.0, 0.1, 0.17, 0.3)] == pytest.approx([0, 0.02, 0, 0.04])
    assert player.least_margin_s == pytest.approx(-0.04)
    assert [when for when, _ in player.gaps] == [0.1, 0.3]
    assert [seconds for _, seconds in player.gaps] == pytest.approx([0.02, 0.04])


@pytest.mark.parametrize(
    ("spans", "most"),
    [
        ([], 0),
        ([(0, 1), (1, 2)], 1),  # adjacent
        ([(0, 1.5), (1, 2), (1.2, 1.4)], 3),
        ([(0, 20)], 1),
        ([(-5, 0.5), (3, 9), (4, 5), (4, 5), (9.5, 12)], 3),
        ([(-5, -1), (-3, -1), (11, 12), (11, 12)], 0),  # outside the window
    ],
)
def test_the_maximum_overlap_of_spans_is_counted(spans: list[tuple[float, float]], most: int) -> None:
    assert most_at_once(spans, 0, 10) == most


def test_the_mean_of_spans_is_over_the_whole_window() -> None:
    assert mean_at_once([(-5, 5), (5, 10), (7.5, 12), (11, 12), (-2, -1)], 0, 10) == 1.25
    assert mean_at_once([], 0, 10) == 0


async def test_a_blocked_loop_is_late() -> None:
    async with lag_watched() as late_ms:
        await asyncio.sleep(0.05)
        time.sleep(0.2)  # noqa: ASYNC251 - the lag to measure
        await asyncio.sleep(0.05)
        assert max(late_ms) > 150


def test_the_worst_of_several_clients_is_reported() -> None:
    assert worst([{"p50": 1.0, "p99": 9.0}, {"p50": 2.0, "p99": 3.0}]) == {"p50": 2.0, "p99": 9.0}
    assert worst([{"p50": None}, {"p50": 2.0}]) == {"p50": 2.0}
    assert worst([{"p50": None}]) == {"p50": None}
