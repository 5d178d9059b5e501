"""Callers as they come, in virtual time: bursts, streams without a pace beside conversations, callers in phase."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from agent_tts.bench.statistics import percentile
from tests.engine.qwen3.simulated import Listener
from tests.measure import arrivals
from tests.support import present

pytestmark = pytest.mark.model


def _first_ms(asked: Sequence[Listener], percent: float) -> float:
    """First audio of those who were answered, without the ways in and out."""
    return present(percentile([1_000 * one.waited[1] for one in asked if one.waited is not None], percent))


def _gaps(asked: Sequence[Listener]) -> list[tuple[float, float]]:
    return [gap for one in asked for gap in one.player.gaps]


def test_streams_without_a_pace_are_the_background_of_conversations() -> None:
    """They all began at once, and those of equal length end and begin together: 288 texts wait to be read."""
    with arrivals.simulated(540) as node:
        node.host = 1.4
        bulk = arrivals.beside(node, ids := itertools.count(), 288, ramp_s=0.0)
        callers = arrivals.at_rate(node, ids, 20, 0.5, 3.0)
        node.run(3.5)
        spoken_s = sum(seconds for one in (*bulk, *callers) for at, seconds in one.heard if at >= 1.0)
    assert len(callers) > 30
    assert _first_ms(callers, 95) < 38
    assert _first_ms(callers, 100) < 46
    assert not _gaps(callers)
    assert spoken_s > 2.5 * 1_150  # seconds of speech a second


def test_callers_in_phase_have_no_gap_on_a_slow_host() -> None:
    """They all write at once: a step with room for all would leave the texts of those unread who run short first."""
    with arrivals.simulated(540) as node:
        node.host = 1.3
        callers = arrivals.burst(node, itertools.count(), 496, 0.0)
        node.run(3.0)
    assert _first_ms(callers, 99) < 60
    assert not _gaps(callers)


def test_a_burst_is_answered_in_a_few_steps() -> None:
    with arrivals.simulated(540) as node:
        node.host = 1.0
        callers = arrivals.burst(node, itertools.count(), 512, 0.0)
        node.run(2.0)
    assert len([one for one in callers if one.waited]) == 512
    assert _first_ms(callers, 95) < 45
    assert not _gaps(callers)
