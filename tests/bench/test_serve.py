"""The loads of `bench serve` on a real node."""

from __future__ import annotations

import random

import pytest

from agent_tts.bench import serve
from agent_tts.bench.serve import Load, measure
from tests.support import running_node


@pytest.fixture(autouse=True)
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "TEXTS", ("one two three four five", "six seven eight nine"))


async def test_an_open_loop_begins_its_requests_on_time() -> None:
    async with running_node(slots=64) as node:
        load = Load(rate=20, warmup_s=0.5, duration_s=1.5, words_every_ms=0, session={"voice": "tone-660"})
        figures, ttfa_ms = await measure(node.ws_url, None, load)
    arrivals, at = 0, 0.0
    draw = random.Random(load.seed)
    while (at := at + draw.expovariate(20)) < 2.0:
        arrivals += at >= 0.5
    assert figures["requests"] == arrivals == len(ttfa_ms)
    assert (figures["errors"], figures["silent"]) == ({}, 0)
    assert min(ttfa_ms) > 0
    assert figures["ttfa_ms"]["p50"] <= figures["ttfa_ms"]["p99"]
    assert figures["audio_s_per_s"] > 0
    assert 1 < figures["peak_in_flight"] <= 40


async def test_a_closed_loop_has_as_many_requests_at_once_as_asked_for() -> None:
    async with running_node(slots=64) as node:
        figures, _ = await measure(node.ws_url, None, Load(concurrency=3, warmup_s=0, duration_s=1.5))
    assert figures["peak_in_flight"] == 3
    assert figures["requests"] > 3
    assert figures["load"] == "3 at once"


async def test_refusals_are_counted_by_their_code_and_are_no_time_to_first_audio() -> None:
    async with running_node(slots=1, queue=0) as node:
        load = Load(rate=20, warmup_s=0, duration_s=1)
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
        slow = Load(concurrency=1, warmup_s=0, duration_s=0.2, words_every_ms=100)
        _, ttfa_ms = await measure(node.ws_url, None, slow)
    assert all(ms < 100 * 4 for ms in ttfa_ms)
