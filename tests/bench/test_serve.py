"""The loads of `bench serve` on a real node."""

from __future__ import annotations

import itertools
import os
import random

import pytest

from agent_tts.bench.serve import TEXTS, Load, Sample, figures_of, measure, texts_of, us_per_frame
from tests.support import running_node

SHORT = ["one two three four five", "six seven eight nine"]


async def test_an_open_loop_begins_its_requests_on_time() -> None:
    session = {"voice": "tone-660"}
    async with running_node(slots=64) as node:
        load = Load(rate=20, warmup_s=0.5, duration_s=1.5, words_every_ms=0, session=session, texts=SHORT)
        figures, ttfa_ms = await measure(node.ws_url, None, load, clients=2, pids={"front": os.getpid()})
    arrivals, at = 0, 0.0
    draw = random.Random(load.seed)
    while (at := at + draw.expovariate(20)) < 2.0:
        arrivals += at >= 0.5
    assert figures["requests"] == arrivals == len(ttfa_ms)
    assert (figures["errors"], figures["silent"], figures["clients"]) == ({}, 0, 2)
    assert min(ttfa_ms) > 0
    assert figures["ttfa_ms"]["p50"] <= figures["ttfa_ms"]["p99"]
    assert figures["audio_s_per_s"] > 0
    assert 1 < figures["peak_in_flight"] <= 40
    assert figures["client_lag_ms"]["p99"] is not None
    assert figures["cpu_percent"].keys() == {"front", "clients"}
    assert figures["front_us_per_frame"] > 0


def test_a_load_is_the_same_however_many_processes_make_it() -> None:
    load = Load(rate=20)
    whole = list(itertools.islice(load.arrivals(5.0), 30))
    parts = [list(itertools.islice(load.arrivals(5.0), part, 30, 3)) for part in range(3)]
    assert sorted(itertools.chain(*parts)) == whole
    assert whole[0][0] > 5.0


async def test_a_closed_loop_has_as_many_requests_at_once_as_asked_for() -> None:
    async with running_node(slots=64) as node:
        load = Load(concurrency=3, warmup_s=0, duration_s=1.5, texts=SHORT)
        figures, _ = await measure(node.ws_url, None, load, clients=2)
    assert figures["peak_in_flight"] == 3
    assert figures["requests"] > 3
    assert figures["load"] == "3 at once"


async def test_a_request_follows_at_once_on_the_one_before_it() -> None:
    """What a node can do is only seen when it never waits for its clients."""
    unpaced = {"lead_ms": None}
    async with running_node(slots=2) as node:
        load = Load(concurrency=3, warmup_s=1, duration_s=1, ramp_s=0.5, words_every_ms=0, texts=SHORT, session=unpaced)
        figures, _ = await measure(node.ws_url, None, load)
    assert (figures["errors"], figures["peak_in_flight"]) == ({}, 3)
    assert figures["requests"] > 20
    assert figures["mean_in_flight"] > 2.9


async def test_refusals_are_counted_by_their_code_and_are_no_time_to_first_audio() -> None:
    async with running_node(slots=1, queue=0) as node:
        load = Load(rate=20, warmup_s=0, duration_s=1, texts=SHORT)
        figures, ttfa_ms = await measure(node.ws_url, None, load)
    assert figures["errors"].keys() == {"at_capacity"}
    assert figures["requests"] == figures["errors"]["at_capacity"] + len(ttfa_ms)


async def test_a_node_that_is_not_there_is_counted_too() -> None:
    async with running_node() as node:
        pass
    figures, _ = await measure(node.ws_url, None, Load(rate=20, warmup_s=0, duration_s=0.5))
    assert figures["errors"] == {"connection_lost": figures["requests"]}


async def test_words_come_at_their_pace() -> None:
    """The first words of a text are spoken while its last are not yet there."""
    async with running_node() as node:
        slow = Load(concurrency=1, warmup_s=0, duration_s=1, words_every_ms=100, texts=SHORT)
        _, ttfa_ms = await measure(node.ws_url, None, slow)
    assert ttfa_ms
    assert all(ms < 100 * 4 for ms in ttfa_ms)


def test_throughput_is_what_came_while_it_was_measured() -> None:
    before = Sample(9.0, 9.0, 9.1, 11.5, audio_s=4.0, measured_audio_s=1.0)
    within = Sample(11.0, 11.0, 11.02, 12.0, audio_s=2.0, measured_audio_s=2.0, gaps=2, gaps_s=0.25)
    after = Sample(12.5, 12.5, 12.6, 14.0, audio_s=8.0)
    failed = Sample(10.5, None, None, 10.6, error="at_capacity")
    figures, ttfa_ms = figures_of([before, within, after, failed], Load(rate=1, duration_s=2), (10.0, 12.0))
    assert figures["audio_s_per_s"] == 1.5
    assert (figures["requests"], figures["errors"]) == (2, {"at_capacity": 1})
    assert (figures["underruns"], figures["underrun_s"]) == (1, 0.25)
    assert (figures["peak_in_flight"], figures["mean_in_flight"]) == (2, 1.3)
    assert ttfa_ms == pytest.approx([20.0])


def test_the_front_s_cost_is_its_cpu_time_over_the_frames() -> None:
    """A whole core for 1000 s of audio a second, which are 12 500 frames."""
    assert us_per_frame(100.0, 1_000.0) == 80.0
    assert us_per_frame(50.0, 0.0) is None
    assert us_per_frame(None, 1_000.0) is None


@pytest.mark.parametrize("words", [1, 3, 40])
def test_texts_are_of_as_many_words_as_asked_for(words: int) -> None:
    texts = texts_of(words)
    assert {len(text.split()) for text in texts} == {words}
    assert len(texts) > len(TEXTS)
