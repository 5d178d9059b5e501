"""`bench streams` on a real node."""

from __future__ import annotations

import os

import pytest

from agent_tts.bench.streams import Plan, Sample, figures_of, hold, is_clean
from agent_tts.errors import SpeechError
from tests.support import running_node

GONE = 2**31 - 1  # no process has this number


async def test_paced_streams_are_held_without_a_gap() -> None:
    async with running_node(slots=8) as node:
        plan = Plan(seconds=1.5, ramp_s=0.2, per_connection=3, session={"lead_ms": 1_000})
        figures = await hold(node.ws_url, None, 8, plan, {"front": os.getpid(), "gone": GONE}, clients=2)
    assert (figures["streams"], figures["clients"]) == (8, 2)
    assert is_clean(figures)
    assert 0 < figures["margin_ms"]["p50"] <= 1_080
    assert figures["cpu_percent"].keys() == {"front", "clients"}
    assert figures["client_lag_ms"]["p99"] is not None


def test_figures_are_of_all_streams_together() -> None:
    """Percentiles of processes cannot be merged: their samples are."""
    good = Sample(True, None, [], 0.0, [float(ms) for ms in range(2, 101)])
    late = Sample(True, "length", [12.0, 13.5], 0.5, [-5.0])
    figures = figures_of([good, late, Sample(False, None, [], 0.0, [])], 10.0)
    assert figures["margin_ms"] == {"p50": 50.0, "p1": -5.0, "p0": -5.0}
    assert (figures["gaps"], figures["gaps_at_s"]) == (2, {"p0": 2.0, "p50": 2.0, "p100": 3.5})
    assert (figures["silent"], figures["ended"], figures["underruns"]) == (1, {"length": 1}, 1)
    assert not is_clean(figures)


def test_a_text_lasts_as_long_as_its_stream() -> None:
    """A word for every frame, within what a node takes of one context."""
    assert len(Plan(seconds=30, ramp_s=2).text.split()) >= 12.5 * 32
    assert len(Plan(seconds=3_600).text) <= 20_000


async def test_streams_that_get_no_slot_are_not_clean() -> None:
    async with running_node(slots=2, queue=0) as node:
        figures = await hold(node.ws_url, None, 3, Plan(seconds=0.3, ramp_s=0.1), {})
    assert figures["ended"] == {"at_capacity": 1}
    assert figures["silent"] == 1
    assert not is_clean(figures)


async def test_a_node_that_refuses_is_an_error_and_leaves_no_connection() -> None:
    async with running_node(limits={"connections": 1}) as node:
        with pytest.raises(SpeechError, match="refuses"):
            await hold(node.ws_url, None, 4, Plan(per_connection=1), {})
