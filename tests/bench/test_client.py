"""Calls of every kind to a real node, most of them from this process."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import Counter
from typing import Any

import pytest

from agent_tts.bench import scenario as scenarios
from agent_tts.bench.client import Caller
from agent_tts.bench.connection import RawConnection
from agent_tts.bench.load import settled
from agent_tts.bench.node import MeasuredNode, watched
from agent_tts.bench.runner import (
    ScenarioResult,
    is_clean,
    measure,
    request_figures,
    request_runs,
    session_figures,
)
from agent_tts.bench.scenario import Scenario, ScenarioCall, burst, requests
from agent_tts.errors import SpeechError
from tests.support import RunningNode, running_node, until

pytestmark = pytest.mark.node
in_processes = pytest.mark.real_time  # client processes measure in real time

SHORT = ["one two three four five", "six seven eight nine"]
UNPACED = {"lead_ms": None}
ALL = ["websocket", "http", "rtc", "health", "idle"]
PROCESSES: dict[str, Any] = {"clients": 1, "client_lag_ms": {}, "cpu_percent": {}, "cpu_percent_each": {}}


def at(node: RunningNode) -> MeasuredNode:
    return MeasuredNode(node.url, pids={"front": os.getpid()})


async def made(node: RunningNode, scenario: Scenario) -> ScenarioResult:
    """Run a scenario's calls with a client in this process."""
    caller = Caller(node.url, None, scenario)
    try:
        await caller.connect(scenario.peers)
        start = time.monotonic()
        await caller.run(start, ALL, 0, 1)
    finally:
        await caller.close()
    return ScenarioResult(caller.samples, (start + scenario.warmup_s, start + scenario.end_s), PROCESSES)


@in_processes
@pytest.mark.slow
async def test_client_processes_share_an_open_loop_and_are_monitored() -> None:
    load = requests("20/s", rate=20, warmup_s=0.5, duration_s=1.5, session={"voice": "tone-660"}, texts=SHORT)
    async with running_node(slots=64) as node:
        found = await measure(at(node), load, clients=2, cores=[0])
    figures = request_figures(load, found)
    arrivals = [call.after_s for call in load.calls()]
    assert [one.begin - found.samples[0].begin for one in found.samples] == pytest.approx(
        [after_s - arrivals[0] for after_s in arrivals]
    )
    assert figures["requests"] == sum(after_s >= 0.5 for after_s in arrivals)
    assert (figures["errors"], figures["silent"], figures["clients"]) == ({}, 0, 2)
    assert 0 < figures["ttfa_ms"]["p50"] <= figures["ttfa_ms"]["p100"]
    assert figures["audio_s_per_s"] > 0
    assert 1 < figures["peak_in_flight"] <= 40
    assert figures["client_lag_ms"]["p99"] is not None
    assert figures["cpu_percent"].keys() == {"front", "clients"}
    assert figures["cpu_percent_each"].keys() == {"front", "clients 0", "clients 1"}
    assert figures["us_per_frame"]["front"] > 0
    assert 0 < figures["connect_ms"]["p50"] <= figures["connect_ms"]["p100"]


async def test_a_closed_loop_keeps_its_number_of_concurrent_requests() -> None:
    """Each request starts as soon as the previous one has left: with more requests than slots, no slot waits."""
    load = requests("3", concurrency=3, warmup_s=0.5, duration_s=1, ramp_s=0.2, texts=SHORT, session=UNPACED)
    async with running_node(slots=2) as node:
        figures = request_figures(load, await made(node, load))
    assert (figures["errors"], figures["peak_in_flight"]) == ({}, 3)
    assert figures["requests"] > 15
    assert figures["mean_in_flight"] > 2


async def test_callers_in_phase_begin_again_when_their_speech_has_been_played() -> None:
    """Audio comes as far ahead as it can: whoever began again when it has come would not be in phase."""
    load = requests("2", concurrency=2, in_phase=True, ramp_s=0.2, duration_s=3, texts=["one two"], session=UNPACED)
    async with running_node(slots=2) as node:
        found = await made(node, load)
    for caller in (0, 1):
        chain = [one for one in found.samples if one.caller == caller]
        assert len(chain) > 2
        for one, following in itertools.pairwise(chain):
            assert 0 <= following.begin - one.begin - one.audio_s < 0.1


@pytest.mark.slow
@in_processes
async def test_a_burst_and_streams_beside_it_are_told_apart() -> None:
    """The streams have processes of their own, so that they do not make the measured callers' clients late."""
    strangers = burst(6, 0.5, SHORT)
    load = requests("", trace=strangers, warmup_s=0.5, duration_s=3, beside=2, session={"lead_ms": 1_000})
    async with running_node(slots=8) as node:
        found = await measure(at(node), load, clients=1)
    alone, beside = request_runs(load, found)
    begun = [one.begin - found.window[0] + 0.5 for one in found.samples]
    assert begun == pytest.approx([call.after_s for call in strangers])
    assert (alone["requests"], alone["errors"], beside["errors"]) == (6, {}, {})
    assert (alone["clients"], beside["clients"], beside["peak_in_flight"]) == (1, 1, 2)
    assert beside["requests"] > 6
    assert beside["audio_s_per_s"] > alone["audio_s_per_s"] > 0
    assert alone["cpu_percent_each"].keys() == {"front", "clients 0"}


async def test_refusals_are_counted_by_code_and_excluded_from_time_to_first_audio() -> None:
    load = requests("20/s", rate=20, duration_s=1, texts=SHORT)
    async with running_node(slots=1, queue=0) as node:
        found = await made(node, load)
        figures = request_figures(load, found)
        sessions = session_figures((await made(node, Scenario(name="", rate=100, count=6, http=0.5, tail_s=9))).samples)
    assert (figures["errors"].keys(), is_clean(figures)) == ({"at_capacity"}, False)
    heard = [call for call in found.samples if call.ttfa_ms is not None]
    assert figures["requests"] == figures["errors"]["at_capacity"] + len(heard)
    assert sessions["errors"].keys() == {"at_capacity"}
    assert sessions["not_one_end"] == 0
    gone = request_figures(load, await made(node, load))  # the node has stopped
    assert gone["errors"] == {"connection_lost": gone["requests"]}


async def test_paced_words_are_spoken_before_the_text_is_complete() -> None:
    """The first words of a text are spoken before its last ones are sent."""
    async with running_node() as node:
        found = await made(node, requests("1", concurrency=1, duration_s=1, words_every_ms=100, texts=SHORT))
    times = [call.ttfa_ms for call in found.samples]
    assert times
    assert all(ms is not None and ms < 100 * 4 for ms in times)
    assert all(0 <= call.send_late_ms < 100 for call in found.samples)


async def test_each_request_is_a_stranger_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection; a context with options of its own, opened before there is text; a closing handshake."""
    sent: dict[RawConnection, list[dict[str, Any]]] = {}
    send, hang_up = RawConnection.send, RawConnection.hang_up

    def spy(self: RawConnection, type_: str, **fields: Any) -> None:
        sent.setdefault(self, []).append({"type": type_, **fields})
        send(self, type_, **fields)

    async def leave(self: RawConnection) -> None:
        await hang_up(self)
        sent[self].append({"type": "closed"})

    monkeypatch.setattr(RawConnection, "send", spy)
    monkeypatch.setattr(RawConnection, "hang_up", leave)
    wanted = requests("2", concurrency=2, duration_s=1.0, words_every_ms=5, texts=SHORT, session={"voice": "tone-660"})
    async with running_node() as node:
        found = await made(node, wanted)
    assert [call.error for call in found.samples if call.error or not call.audio_s] == []
    assert len(sent) == len(found.samples) > 2
    for messages in sent.values():
        assert [message["type"] for message in messages] == [
            "context.open",
            *["text.append"] * (len(messages) - 3),
            "context.end",
            "closed",
        ]
        assert (messages[0]["voice"], messages[0]["language"]) == ("tone-660", "en")
    assert len({messages[0]["seed"] for messages in sent.values()}) == len(sent)


async def test_a_node_that_refuses_peers_is_an_error() -> None:
    async with running_node(limits={"rtc_peers": 0}) as node:
        with pytest.raises(SpeechError, match="refuses a WebRTC peer"):
            await made(node, scenarios.rtc_peers(1, 1, 40, {}))


async def test_every_transport_delivers_all_audio_and_one_end() -> None:
    wanted = Scenario(name="", count=12, rate=10, http=0.3, rtc=0.3, texts=SHORT, tail_s=20)
    async with running_node(slots=12) as node:
        found = await made(node, wanted)
        await until(lambda: not (node.node.service.speaking or node.node.peers))
    figures = session_figures(found.samples)
    assert Counter(one.transport for one in found.samples) == Counter(call.transport for call in wanted.calls())
    assert {one.transport for one in found.samples} == {"websocket", "http", "rtc"}
    assert (figures["errors"], figures["not_one_end"]) == ({}, 0)
    assert [one.ends for one in found.samples] == [1] * 12
    assert all(one.started for one in found.samples if one.transport != "http")
    assert figures["ttfa_ms"]["p50"] > 0
    assert figures["late_ms"]["p50"] is not None


async def test_each_call_of_a_trace_has_its_own_way() -> None:
    """Its time, transport, voice, pace of words and of audio, and its end; a request over HTTP waits for its words."""
    text = "one two three four five six seven eight nine ten"
    calls = [
        ScenarioCall(0.0, text, session={"voice": "tone-660"}),
        ScenarioCall(0.1, text, session=UNPACED),
        ScenarioCall(0.2, text, words_every_ms=20),
        ScenarioCall(0.3, text, "http", words_every_ms=20),
        ScenarioCall(0.4, text, "rtc"),
        ScenarioCall(0.5, text, leaving="barge_in", patience_s=0.3),
    ]
    wanted = Scenario(name="", trace=calls, duration_s=5, tail_s=20)
    async with running_node(slots=6) as node:
        found = await made(node, wanted)
    assert [one.error for one in found.samples] == [None] * 6
    start = found.samples[0].begin
    assert [one.begin - start for one in found.samples] == pytest.approx([call.after_s for call in calls])
    paced, unpaced, words, http, rtc, interrupted = found.samples
    assert [one.kind for one in found.samples] == [call.kind for call in calls]
    assert (unpaced.kind, http.kind, rtc.kind) == ("websocket, no pace", "http, no pace", "rtc")
    assert (paced.stay_s or 0) > 1 > (unpaced.stay_s or 9)  # 2.4 s of speech, of which 1 s comes ahead
    assert (words.ttfa_ms or 999) < 20 * 9 < (http.ttfa_ms or 0)
    assert (interrupted.reason, paced.reason) == ("cancelled", "end")
    assert interrupted.audio_s < paced.audio_s


async def test_an_interrupted_call_ends_once_and_a_vanished_one_is_released() -> None:
    long = ["a text that is long enough to be interrupted after two seconds"]
    wanted = Scenario(name="", count=16, rate=10, http=0.25, barge_in=0.4, vanish=0.4, texts=long, tail_s=20)
    async with running_node(slots=16) as node, watched(node.url, os.getpid(), 60) as watch:
        before = watch.looks[0]
        assert before.front.rss_mib > 10
        assert before.total("agent_tts_engine_up") == 1
        samples = (await made(node, wanted)).samples
        after = await settled(watch)
    assert after.is_quiet
    assert after.total("agent_tts_tasks") > 1
    assert {one.leaving for one in samples} >= {"barge_in", "fin", "reset"}
    assert session_figures(samples)["not_one_end"] == 0
    assert not any(one.ends for one in samples if one.transport == "websocket" and one.leaving in ("fin", "reset"))
    ended = after.total("agent_tts_contexts_total") - before.total("agent_tts_contexts_total")
    assert sum(one.started for one in samples) <= ended <= len(samples)


async def test_idle_connections_are_closed_and_health_is_probed() -> None:
    idle = Scenario(name="", concurrency=3, once=True, hang_up=True, ramp_s=0.1, duration_s=2, transport="idle")
    health = Scenario(name="", rate=10, duration_s=1, transport="health")
    async with running_node(timeouts={"handshake_s": 0.5}) as node:
        idled, probed = await asyncio.gather(made(node, idle), made(node, health))
    stays = [one.ended_at - one.sent_at for one in idled.samples if one.ended_at and one.sent_at and one.ends]
    assert len(stays) == 3
    assert all(0.4 < stay < 1.9 for stay in stays)
    assert probed.samples
    assert not any(one.error for one in probed.samples)
