"""Visits on a real node: who comes, what they see, and what the node keeps of them."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
from collections import Counter

import pytest

from agent_tts.bench.clients import start_time
from agent_tts.bench.load import Node, is_quiet, settled
from agent_tts.bench.promises import Promise
from agent_tts.bench.soak import Soak, front_growth
from agent_tts.bench.visits import LANGUAGES, Paid, Plan, Sample, figures_of, visitors
from agent_tts.bench.vitals import Process, Samples, Vitals, lag_p99_ms, slope, watched
from tests.support import RunningNode, running_node

SHORT = ["one two three", "four five"]


async def pay(node: RunningNode, plan: Plan, clients: int = 1) -> Paid:
    async with visitors({"ws": node.ws_url, "http": node.url}, None, plan, clients=clients) as pay_all:
        return await pay_all(start_time())


def test_a_plan_is_the_same_each_time_and_has_its_shares() -> None:
    plan = Plan(count=4_000, rate=10, http=0.2, rtc=0.2, barge_in=0.1, vanish=0.1, chars=(5, 2_000))
    visits = list(plan.visits())
    assert visits == list(plan.visits())
    assert visits[-1].after_s == pytest.approx(400, rel=0.1)
    carriers, leavings = Counter(v.carrier for v in visits), Counter(v.leaving for v in visits)
    assert carriers["http"] == pytest.approx(800, rel=0.1)
    assert carriers["rtc"] == pytest.approx(800, rel=0.1)
    assert leavings["barge_in"] == pytest.approx(400, rel=0.2)
    assert leavings["fin"] + leavings["reset"] == pytest.approx(400, rel=0.2)
    assert {visit.language for visit in visits} == set(LANGUAGES)
    assert 5 <= min(len(visit.text) for visit in visits) < 10
    assert 1_800 < max(len(visit.text) for visit in visits) <= 2_000
    assert all(math.isinf(visit.patience_s) for visit in visits if visit.leaving == "heard_out")


async def test_every_carrier_is_heard_out_and_told_once() -> None:
    plan = Plan(count=12, rate=10, http=0.3, rtc=0.3, texts=SHORT)
    async with running_node(slots=12) as node:
        paid = await pay(node, plan, clients=2)
        assert node.node.service.speaking == 0
    figures = figures_of(paid.samples)
    assert Counter(s.carrier for s in paid.samples) == Counter(v.carrier for v in plan.visits())
    assert {s.carrier for s in paid.samples} == {"websocket", "http", "rtc"}
    assert (figures["errors"], figures["not_one_end"]) == ({}, 0)
    assert [s.ends for s in paid.samples] == [1] * 12
    assert all(s.started for s in paid.samples if s.carrier != "http")
    assert figures["ttfa_ms"]["p50"] > 0
    assert paid.client_lag_ms["p99"] is not None


async def test_who_interrupts_is_told_once_and_who_vanishes_is_forgotten() -> None:
    long = ["a text that is long enough to be interrupted after two seconds"]
    plan = Plan(count=16, rate=10, http=0.25, barge_in=0.4, vanish=0.4, texts=long)
    async with running_node(slots=16) as node, watched(node.url, os.getpid(), 60) as watch:
        before = watch.looks[0]
        paid = await pay(node, plan)
        after = await settled(watch)
    assert is_quiet(after)
    leavings = {s.leaving for s in paid.samples}
    assert leavings >= {"barge_in", "fin", "reset"}
    assert figures_of(paid.samples)["not_one_end"] == 0
    assert not any(s.ends for s in paid.samples if s.carrier == "websocket" and s.leaving in ("fin", "reset"))
    ended = after.total("agent_tts_contexts_total") - before.total("agent_tts_contexts_total")
    assert sum(s.started for s in paid.samples) <= ended <= len(paid.samples)


async def test_a_refused_visit_is_an_error_with_one_end() -> None:
    async with running_node(slots=1, queue=0) as node:
        paid = await pay(node, Plan(count=6, rate=100, http=0.5, texts=SHORT))
    figures = figures_of(paid.samples)
    assert figures["errors"].keys() == {"at_capacity"}
    assert figures["not_one_end"] == 0


# ---------------------------------------------------------------- figures


def sample(**fields: object) -> Sample:
    return dataclasses.replace(Sample("websocket", "heard_out", 10.0), **fields)  # type: ignore[arg-type]


def test_a_second_end_or_none_is_counted() -> None:
    """The figure that exactly one terminal event is judged by."""
    http_barge_in = sample(carrier="http", leaving="barge_in")
    vanished = sample(leaving="reset")
    samples = [sample(ends=1), sample(ends=2), sample(ends=0), sample(leaving="barge_in"), http_barge_in, vanished]
    asked = [dataclasses.replace(each, sent_at=10.0) for each in samples]
    assert figures_of(asked)["not_one_end"] == 3
    refused = sample(sent_at=10.0, error="engine_lost")
    begun = dataclasses.replace(refused, started=True)
    assert figures_of([sample(error="engine_lost"), refused, begun])["not_one_end"] == 1


def test_what_failed_is_no_time_to_first_audio() -> None:
    good = sample(sent_at=10.0, first_audio_at=10.5, gaps=1, gaps_s=0.25)
    figures = figures_of([good, sample(sent_at=10.0, first_audio_at=11.0, error="engine_lost")])
    assert figures["ttfa_ms"]["p99"] == 500
    assert (figures["underruns"], figures["underrun_s"]) == (1, 0.25)
    assert figures["errors"] == {"engine_lost": 1}


@pytest.mark.parametrize(("found", "kept"), [(0, True), (1, True), (1.01, False), (None, False)])
def test_a_promise_without_a_figure_is_broken(found: float | None, kept: bool) -> None:
    assert Promise("something", found, 1).kept is kept


def vitals(at: float, rss_mib: float = 0.0, **buckets: float) -> Vitals:
    samples: Samples = {("agent_tts_loop_lag_seconds_bucket", (("le", le),)): count for le, count in buckets.items()}
    return Vitals(at, Process(rss_mib, 10, 2), (), samples)


def test_lag_is_the_bound_of_the_bucket_that_holds_99_of_100() -> None:
    before = vitals(0, **{"0.005": 5, "0.01": 5, "+Inf": 5})
    after = vitals(1, **{"0.005": 103, "0.01": 104, "+Inf": 105})
    assert lag_p99_ms(before, after) == 10
    assert lag_p99_ms(after, after) is None


def test_growth_is_per_thousand_contexts_after_the_warm_up() -> None:
    samples = [dataclasses.replace(sample(), begin=float(number)) for number in range(2_000)]
    looks = [vitals(float(at), 100 + (50 if at < 100 else 0) + at * 0.003) for at in range(0, 2_000, 10)]
    assert slope(front_growth(samples, looks)) == pytest.approx(3.0)
    assert slope([]) == slope([(1.0, 5.0)]) == 0


def test_the_soak_asks_for_what_it_says() -> None:
    node = Node("ws://x", "http://x", None, 1, {"voice": "tone-660"})
    plan = Soak(contexts=100).plan(node)
    assert (plan.count, plan.vanish, plan.session) == (100, 0.1, {"voice": "tone-660"})


async def test_a_node_that_is_gone_tells_nothing() -> None:
    async with running_node() as node, watched(node.url, os.getpid(), 60) as watch:
        looked = await watch.look()
        assert looked.front.rss_mib > 10
        assert looked.total("agent_tts_engine_up") == 1
        assert looked.total("agent_tts_contexts_total", carrier="websocket") == 0
        await asyncio.sleep(0.6)
        assert (await watch.look()).total("agent_tts_tasks") > 1
