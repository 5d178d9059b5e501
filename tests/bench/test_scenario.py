"""Scenarios and figures as pure values."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import random
from collections import Counter
from typing import Any

import pytest

from agent_tts.bench import scenario as scenarios
from agent_tts.bench.load import Promise, front_growth
from agent_tts.bench.node import MetricSamples, NodeStats, ProcessStats, lag_ms, slope
from agent_tts.bench.rtc_peer import Arrivals
from agent_tts.bench.runner import (
    ScenarioResult,
    client_limit,
    clients_for,
    is_clean,
    request_figures,
    request_runs,
    rtc_figures,
    session_figures,
    us_per_frame,
)
from agent_tts.bench.scenario import LANGUAGES, TEXTS, CallListener, CallSample, Scenario, burst, requests, texts_of

PROCESSES: dict[str, Any] = {
    "clients": 2,
    "client_lag_ms": {"p99": 1.0},
    "cpu_percent": {"front": 15.0, "clients": 90.0},
    "cpu_percent_each": {"front": 15.0, "clients 0": 20.0, "clients 1": 70.0},
}


def sample(begin: float = 10.0, **fields: Any) -> CallSample:
    return dataclasses.replace(CallSample("websocket", "heard_out", 0, begin), **fields)


def result(*samples: CallSample, window: tuple[float, float] = (10.0, 12.0)) -> ScenarioResult:
    return ScenarioResult(list(samples), window, PROCESSES)


# ---------------------------------------------------------------- scenarios


def test_an_open_loop_is_a_poisson_process_until_its_end() -> None:
    draw, times = random.Random(1), list[float]()
    while (at := (times[-1] if times else 0.0) + draw.expovariate(20)) < 2.0:
        times.append(at)
    calls = list(requests("20/s", rate=20, warmup_s=0.5, duration_s=1.5).calls())
    assert [call.after_s for call in calls] == times
    assert {call.transport for call in calls} == {"websocket"}
    assert {call.text for call in calls} <= set(TEXTS)


def test_a_chain_repeats_its_texts_for_a_seed_and_chains_begin_within_the_ramp() -> None:
    load = requests("4 at once", concurrency=4, ramp_s=2.0, duration_s=9)
    first, again = (list(itertools.islice(load.chain(3), 10)) for _ in range(2))
    assert first == again
    assert [next(load.chain(number)).after_s for number in range(4)] == [0.0, 0.5, 1.0, 1.5]


def test_a_burst_comes_within_a_second_among_the_other_calls() -> None:
    together = burst(512, 3.0, TEXTS)
    assert together == burst(512, 3.0, TEXTS)
    assert 3.0 <= together[0].after_s < 3.02
    assert 3.98 < together[-1].after_s < 4.0
    assert len({call.seed for call in together}) == 512
    load = requests("", rate=5, warmup_s=3, duration_s=10, trace=together, words_every_ms=10)
    calls = list(load.calls())
    assert [call.after_s for call in calls] == sorted(call.after_s for call in calls)
    assert [call for call in calls if call.words_every_ms == 40] == together
    alone = requests("", rate=5, warmup_s=3, duration_s=10, words_every_ms=10)
    assert [call for call in calls if call.words_every_ms == 10] == list(alone.calls())
    assert list(requests("", trace=together).calls()) == together
    assert requests("", trace=together).last_s == together[-1].after_s


def test_callers_in_phase_say_the_same_as_others_and_never_the_same_seed() -> None:
    """Texts of different length would end at different times, and the callers would not begin together again."""
    load = requests("", concurrency=9, in_phase=True, ramp_s=1.0, duration_s=9)
    calls = [list(itertools.islice(load.chain(number), 20)) for number in range(9)]
    assert len({tuple(call.text for call in chain) for chain in calls}) == 1
    assert len({call.text for call in calls[0]}) > 1
    assert len({call.seed for chain in calls for call in chain}) == 180
    assert max(chain[0].after_s for chain in calls) < 1


def test_streams_beside_have_no_pace_and_last_as_long() -> None:
    session = {"voice": "tone-660", "lead_ms": 1_000}
    times = {"warmup_s": 4.0, "duration_s": 9.0}
    load = requests("10/s", rate=10, beside=288, words_every_ms=10, session=session, trace=burst(2, 0, TEXTS), **times)
    beside = load.streams_beside
    assert (beside.name, beside.concurrency, beside.end_s, beside.ramp_s) == ("288 beside", 288, 13, 2)
    assert beside.session == {"voice": "tone-660", "lead_ms": None}
    assert (list(beside.calls()), beside.beside, next(beside.chain(0)).words_every_ms) == ([], 0, 0)


def test_a_mixed_load_has_its_shares() -> None:
    load = Scenario(name="x", count=4_000, rate=10, http=0.2, rtc=0.2, barge_in=0.1, vanish=0.1, chars=(5, 2_000))
    calls = list(load.calls())
    assert calls == list(load.calls())
    assert load.last_s == calls[-1].after_s == pytest.approx(400, rel=0.1)
    transports, leavings = Counter(v.transport for v in calls), Counter(v.leaving for v in calls)
    assert transports["http"] == pytest.approx(800, rel=0.1)
    assert transports["rtc"] == pytest.approx(800, rel=0.1)
    assert leavings["barge_in"] == pytest.approx(400, rel=0.2)
    assert leavings["fin"] + leavings["reset"] == pytest.approx(400, rel=0.2)
    assert {call.language for call in calls} == set(LANGUAGES)
    assert 5 <= min(len(call.text) for call in calls) < 10
    assert 1_800 < max(len(call.text) for call in calls) <= 2_000
    assert all(math.isinf(call.patience_s) for call in calls if call.leaving == "heard_out")


def test_the_table_holds_the_documented_scenarios() -> None:
    voice = {"voice": "tone-660"}
    soak = scenarios.soak(100, 12.0, 0.1, voice)
    assert (soak.count, soak.rate, soak.vanish, soak.session) == (100, 12.0, 0.1, voice)
    sessions = scenarios.sessions(60, voice)
    assert (sessions.count, sessions.rate) == (1_280, 64 / 3)
    good, idle, health = scenarios.storm(voice)
    assert (good.count, idle.concurrency, idle.ramp_s, health.rate) == (100, 900, 2.0, 10.0)


@pytest.mark.parametrize("words", [1, 3, 40])
def test_texts_have_the_requested_number_of_words(words: int) -> None:
    texts = texts_of(words)
    assert {len(text.split()) for text in texts} == {words}
    assert len(texts) > len(TEXTS)


@pytest.mark.parametrize(
    ("load", "cores", "clients"),
    [
        (requests("", rate=1), 16, 1),
        (requests("", rate=40), 16, 1),  # 3 000 messages a second
        (requests("", rate=41), 16, 2),
        (requests("", concurrency=256), 64, 9),
        (requests("", concurrency=256), 16, 8),  # half of the cores are for the node
        (requests("", concurrency=256), 1, 1),
        (requests("", concurrency=1_000, session={"lead_ms": 1_000}), 64, 7),
        (requests("", rate=10, trace=burst(512, 3, TEXTS), session={"lead_ms": 1_000}), 64, 4),
        (requests("", trace=[*burst(60, 3, TEXTS), *burst(60, 30, TEXTS)]), 64, 2),  # one after the other
        (scenarios.rtc_peers(1_000, 20, 40, {}), 32, 16),
        (scenarios.rtc_peers(48, 20, 40, {}), 32, 2),
    ],
)
def test_a_large_load_is_split_over_clients(
    load: Scenario, cores: int, clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert clients_for(load) == clients


def test_clients_with_cores_of_their_own_use_them_all() -> None:
    assert clients_for(scenarios.rtc_peers(1_000, 20, 40, {}), 16) == 16


# ---------------------------------------------------------------- figures


def test_throughput_counts_audio_within_the_measured_window() -> None:
    before = sample(9.0, sent_at=9.0, first_audio_at=9.1, ended_at=11.5, audio_s=4.0, measured_audio_s=1.0)
    within = sample(11.0, sent_at=11.0, first_audio_at=11.02, ended_at=12.0, audio_s=2.0, measured_audio_s=2.0)
    before.caller, before.gaps = 1, [(9.5, 1.0), (10.1, 0.05)]  # the first of them is not measured
    within.gaps = [(11.2, 0.125), (11.3, 0.125)]
    after = sample(12.5, sent_at=12.5, first_audio_at=12.6, ended_at=14.0, audio_s=8.0)
    failed = sample(10.5, ended_at=10.6, error="at_capacity")
    figures = request_figures(requests("1/s", rate=1, duration_s=2), result(before, within, after, failed))
    assert figures["audio_s_per_s"] == 1.5
    assert (figures["load"], figures["requests"], figures["errors"]) == ("1/s", 2, {"at_capacity": 1})
    assert (figures["underruns"], figures["underrun_s"]) == (1, 0.25)
    assert (figures["gaps"], figures["callers_with_gaps"], figures["longest_gap_ms"]) == (3, 2, 125)
    assert (figures["peak_in_flight"], figures["mean_in_flight"]) == (2, 1.3)
    assert figures["ttfa_ms"] == dict.fromkeys(("p50", "p95", "p99", "p100"), 20.0)
    assert figures["us_per_frame"]["front"] == 8_000.0


def test_streams_beside_are_told_apart_with_the_sum_of_both() -> None:
    one = sample(sent_at=10.0, first_audio_at=10.1, ended_at=11.0, measured_audio_s=1.0)
    stream = sample(sent_at=10.0, first_audio_at=10.5, ended_at=11.0, measured_audio_s=20.0, gaps=[(11.0, 0.25)])
    wanted = requests("10/s", rate=10, duration_s=2, beside=4)
    alone, beside = request_runs(wanted, dataclasses.replace(result(one), beside=[result(stream)]))
    assert (alone["load"], alone["ttfa_ms"]["p50"], alone["callers_with_gaps"]) == ("10/s", 100, 0)
    assert (beside["load"], beside["ttfa_ms"]["p50"], beside["longest_gap_ms"]) == ("4 beside", 500, 250)
    assert (alone["audio_s_per_s"], beside["audio_s_per_s"]) == (0.5, 10.0)
    assert alone["sum_audio_s_per_s"] == beside["sum_audio_s_per_s"] == 10.5
    assert alone["us_per_frame"] == beside["us_per_frame"] == us_per_frame(PROCESSES["cpu_percent"], 10.5)
    assert request_runs(wanted, result(one))[0]["sum_audio_s_per_s"] == 0.5


def test_kinds_of_calls_are_told_apart_where_there_are_several() -> None:
    paced = sample(sent_at=10.0, first_audio_at=10.1, measured_audio_s=1.0, kind="websocket")
    unpaced = sample(sent_at=10.0, first_audio_at=10.3, measured_audio_s=2.0, kind="http, no pace", gaps=[(11.0, 0.25)])
    unpaced.caller = 1
    wanted = requests("day", duration_s=2)
    runs = request_runs(wanted, result(paced, unpaced))
    found = [(run["load"], run["requests"], run["ttfa_ms"]["p100"], run["callers_with_gaps"]) for run in runs]
    assert found == [("day", 2, 300, 1), ("http, no pace", 1, 300, 1), ("websocket", 1, 100, 0)]
    assert {run["sum_audio_s_per_s"] for run in runs} == {1.5}
    assert [run["load"] for run in request_runs(wanted, result(paced))] == ["day"]
    packets = sample(sent_at=10.0, late_ms=[1.0] * 98 + [4.0] * 2, kind="rtc")  # whose sound is not looked at
    whole, rtc, _ = request_runs(wanted, result(paced, packets))
    assert (rtc["load"], rtc["late_ms"]["p99"], rtc["silent"], whole["silent"]) == ("rtc", 4, 0, 0)
    assert request_runs(wanted, result(sample(sent_at=10.0)))[0]["silent"] == 1


def test_the_cost_of_a_process_is_its_cpu_time_per_frame() -> None:
    """One core for 1000 s of audio per second, which is 12 500 frames."""
    assert us_per_frame({"front": 100.0, "engine": 50.0}, 1_000.0) == {"front": 80.0, "engine": 40.0}
    assert us_per_frame({"front": 50.0}, 0.0) == {}


def test_a_load_is_clean_without_gaps_errors_and_silence() -> None:
    good = sample(sent_at=10.0, first_audio_at=10.1, least_margin_ms=60.0)
    wanted = requests("3 callers", concurrency=3, duration_s=2)
    assert is_clean(request_figures(wanted, result(good)))
    gap = dataclasses.replace(good, gaps=[(10.5, 0.01)], least_margin_ms=-10.0)
    for bad in (gap, sample(sent_at=10.0), sample(error="at_capacity")):
        assert not is_clean(request_figures(wanted, result(good, bad)))
    assert request_figures(wanted, result(good, gap))["margin_ms"] == {"p50": -10.0, "p1": -10.0, "p0": -10.0}


def test_no_figure_is_a_node_s_when_the_clients_were_the_limit() -> None:
    assert client_limit(PROCESSES, 4.9) is None
    busy = PROCESSES | {"cpu_percent_each": {"front": 99.0, "clients 0": 20.0, "clients 1": 81.0}}
    assert client_limit(busy) == "a client process used 81 % of a core"
    late = PROCESSES | {"client_lag_ms": {"p99": 5.5}}
    said = "their event loops were 5.5 ms late at p99; they sent words 6.0 ms late at p99"
    assert client_limit(late, 6.0) == said
    figures = request_figures(requests("", concurrency=1, duration_s=2), result(sample(sent_at=10.0, send_late_ms=6.0)))
    assert figures["client_limit"] is not None


def test_the_worst_peer_is_reported() -> None:
    peers = [sample(transport="rtc", late_ms=[1.0] * 99 + [9.0]), sample(late_ms=[3.0] * 10, lost=2), sample()]
    figures = rtc_figures(result(*peers))
    assert (figures["peers"], figures["packets"], figures["lost"], figures["silent"]) == (3, 110, 2, 1)
    assert figures["lateness_ms"] == {"p50": 1.0, "p99": 3.0, "p100": 9.0}
    assert figures["worst_p99_ms"] == 3.0


def test_a_missing_or_second_end_is_counted() -> None:
    """`not_one_end` checks that each call gets exactly one terminal event."""
    http_barge_in = sample(transport="http", leaving="barge_in")
    vanished = sample(leaving="reset")
    samples = [sample(ends=1), sample(ends=2), sample(ends=0), sample(leaving="barge_in"), http_barge_in, vanished]
    asked = [dataclasses.replace(each, sent_at=10.0) for each in samples]
    assert session_figures(asked)["not_one_end"] == 3
    refused = sample(sent_at=10.0, error="engine_lost")
    begun = dataclasses.replace(refused, started=True)
    assert session_figures([sample(error="engine_lost"), refused, begun])["not_one_end"] == 1


def test_a_failed_call_has_no_time_to_first_audio() -> None:
    good = sample(sent_at=10.0, first_audio_at=10.5, gaps=[(11.0, 0.25)])
    figures = session_figures([good, sample(sent_at=10.0, first_audio_at=11.0, error="engine_lost")])
    assert figures["ttfa_ms"]["p99"] == 500
    assert (figures["visits"], figures["underruns"], figures["underrun_s"]) == (2, 1, 0.25)
    assert figures["errors"] == {"engine_lost": 1}


# ---------------------------------------------------------------- packets


def arrivals(*packets: tuple[float, int, int]) -> Arrivals:
    found = Arrivals()
    found.packets.extend(packets)
    return found


def test_lateness_is_relative_to_the_earliest_packet() -> None:
    grid = [(1.000 + 0.020 * n, 960 * n, n) for n in range(4)]
    found = arrivals((0.5, 0, 0), *grid, (1.095, 960 * 4, 4), (2.0, 0, 9))
    assert found.between(0.9, 1.9) == ([0, 0, 0, 0, 15], 0)


def test_counters_that_wrap_around_are_unwrapped() -> None:
    found = arrivals((0.0, 2**32 - 960, 65_535), (0.02, 0, 0), (0.06, 1_920, 2))
    assert found.between(0, 1) == ([0, 0, 0], 1)
    assert found.between(5, 6) == ([], 0)


# ---------------------------------------------------------------- promises


@pytest.mark.parametrize(("found", "kept"), [(0, True), (1, True), (1.01, False), (None, False)])
def test_a_promise_without_a_figure_is_broken(found: float | None, kept: bool) -> None:
    assert Promise("something", found, 1).kept is kept


def stats(at: float, rss_mib: float = 0.0, **buckets: float) -> NodeStats:
    samples: MetricSamples = {
        ("agent_tts_loop_lag_seconds_bucket", (("front", front), ("le", le))): count / 2
        for le, count in buckets.items()
        for front in "01"
    }
    return NodeStats(at, ProcessStats(rss_mib, 10, 2), (), samples)


def test_lag_is_the_bound_of_the_bucket_with_the_99th_percentile() -> None:
    before = stats(0, **{"0.005": 5, "0.01": 5, "+Inf": 5})
    after = stats(1, **{"0.005": 103, "0.01": 104, "+Inf": 105})
    assert lag_ms(before, after, 0.99) == 10
    assert lag_ms(after, after, 0.99) is None


def test_growth_is_per_thousand_contexts_after_the_warm_up() -> None:
    samples = [sample(float(number)) for number in range(2_000)]
    looks = [stats(float(at), 100 + (50 if at < 100 else 0) + at * 0.003) for at in range(0, 2_000, 10)]
    assert slope(front_growth(samples, looks)) == pytest.approx(3.0)
    assert slope([]) == slope([(1.0, 5.0)]) == 0


def test_the_first_audible_sound_is_told_beside_the_first_byte() -> None:
    """30 ms of silence, in two chunks, and then a sound: it is heard 30 ms after the first byte, or when it comes."""
    call = sample(9.0, sent_at=10.0)
    listener = CallListener(call, 0.0, (0.0, 100.0))
    listener.heard(10.1, bytes(480))
    listener.heard(10.101, bytes(960) + b"\x00\x10" * 240)
    assert call.ttfa_ms == pytest.approx(100)
    assert call.audible_ms == pytest.approx(130)
    late = sample(9.0, sent_at=10.0)
    listener = CallListener(late, 0.0, (0.0, 100.0))
    listener.heard(10.1, bytes(480))
    listener.heard(10.5, b"\x00\x10" * 240)
    assert late.audible_ms == pytest.approx(500)
