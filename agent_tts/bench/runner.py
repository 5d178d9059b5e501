"""Runs a scenario: client processes, the CPU time of all processes meanwhile; what came of every call, and figures."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from agent_tts.bench.node import MeasuredNode, by_kind, cpu_percent, pin
from agent_tts.bench.scenario import CallSample, Scenario
from agent_tts.bench.statistics import mean_at_once, most_at_once, percentiles, together, worst
from agent_tts.bench.workers import Worker, answers, workers
from agent_tts.engine_info import FRAME_MS

MODULE = "agent_tts.bench.client"
READY_S = 90.0  # for a process to start and to connect
HEAD_START_S = 0.2  # between the word to go and the first call
MARGIN_S = 30.0  # for a process to answer, beyond its calls
PEERS_A_CLIENT = 24  # WebRTC
MESSAGES_A_CLIENT = 3_000  # a second: about a tenth of what keeps a core busy

# Messages of a load, at most nearly.
MESSAGES_A_CALL = 75  # six seconds of speech
MESSAGES_PER_S_PACED, MESSAGES_PER_S_UNPACED = 20, 100  # of each of many callers at once


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """What came of a scenario."""

    samples: list[CallSample]  # by the time that they were to begin
    window: tuple[float, float]  # when it was measured, on the monotonic clock
    # Figures: `clients`, `client_lag_ms`, `cpu_percent` by kind of process, `cpu_percent_each` by process.
    processes: dict[str, Any]
    beside: Sequence[ScenarioResult] = ()  # of the streams beside it, if any, made by processes of their own


@asynccontextmanager
async def prepared(
    node: MeasuredNode, scenario: Scenario, *, clients: int | None = None, cores: Sequence[int] = ()
) -> AsyncIterator[Callable[[float], Coroutine[Any, Any, ScenarioResult]]]:
    """Client processes that are ready for a scenario; ended with the block. Cancelling it ends all calls.

    What it yields runs the scenario once, from a time of the monotonic clock on.

    Args:
        clients: processes for WebSockets and HTTP, and for many WebRTC peers; None: as many as the load needs.
        cores: one for each process, in turn; empty: any.
    Raises:
        SpeechError: one of them cannot do its job, or the node refuses the WebRTC peers.
        SettingsError: the machine has no such core.
    """
    job = {"url": node.url, "scenario": asdict(scenario)}
    async with AsyncExitStack() as stack:
        found: list[Worker] = []
        for transports, parts in _groups(scenario, clients, len(cores)):
            jobs = [{**job, "transports": transports, "part": part, "parts": parts} for part in range(parts)]
            found += await stack.enter_async_context(workers(MODULE, jobs, key=node.key, ready_s=READY_S))
        pids = {f"clients {number}": worker.pid for number, worker in enumerate(found)}
        if cores:
            pin(pids, "clients", cores)

        async def run(start: float) -> ScenarioResult:
            end_s = max(scenario.end_s, scenario.last_s + (scenario.tail_s or 0)) + (scenario.timeout_s or 0)
            window = (start + scenario.warmup_s, start + (scenario.end_s or end_s))
            within_s = start - time.monotonic() + end_s + MARGIN_S
            asked, cpu = await asyncio.gather(
                answers(found, {"start": start}, within_s),
                cpu_percent({**node.pids, **pids}, *window) if scenario.duration_s else asyncio.sleep(0, {}),
            )
            samples = [CallSample(**sample) for answer in asked for sample in answer["samples"]]
            samples.sort(key=lambda sample: sample.begin)
            processes = {
                "clients": len(found),
                "client_lag_ms": worst([answer["lag_ms"] for answer in asked]),
                "cpu_percent": by_kind(cpu),
                "cpu_percent_each": cpu,
            }
            return ScenarioResult(samples, window, processes)

        yield run


async def measure(
    node: MeasuredNode, scenario: Scenario, *, clients: int | None = None, cores: Sequence[int] = ()
) -> ScenarioResult:
    """Run a scenario now; see `prepared`."""
    async with AsyncExitStack() as stack:
        wanted = [(scenario, cores), (scenario.streams_beside, cores[::-1])][: 1 + bool(scenario.beside)]
        runs = [await stack.enter_async_context(prepared(node, one, clients=clients, cores=on)) for one, on in wanted]
        start = start_time()
        results: list[ScenarioResult] = await together(run(start) for run in runs)
        return replace(results[0], beside=results[1:])


def start_time() -> float:
    """When all processes begin, on the monotonic clock, which the processes of a machine share."""
    return time.monotonic() + HEAD_START_S


def _groups(scenario: Scenario, clients: int | None, cores: int) -> list[tuple[list[str], int]]:
    """Groups of processes: the transports of their calls, and how many.

    WebRTC is apart, because its handshakes would make other calls late: one costs more than a minute of speech.
    """
    if scenario.transport in ("health", "idle"):
        return [([scenario.transport], 1)]
    wanted = clients or clients_for(scenario, cores)
    parts = min(wanted, scenario.concurrency or wanted)
    if scenario.transport == "rtc":
        return [(["rtc"], parts)]
    streamed = [(["websocket", "http"], parts)]
    return [*streamed, (["rtc"], 1)] if any(call.transport == "rtc" for call in scenario.calls()) else streamed


def clients_for(scenario: Scenario, cores: int = 0) -> int:
    """Processes that take the messages of a scenario without being late, at most one for each core.

    Without `cores` of their own, half of the machine's are the node's.
    """
    room = cores or max(1, (os.cpu_count() or 1) // 2)
    if scenario.peers:
        return min(math.ceil(scenario.peers / PEERS_A_CLIENT), room)
    rate, paced = scenario.rate or 0, scenario.session.get("lead_ms") is not None
    at_once = (scenario.concurrency or 0) + scenario.most_traced
    messages_per_s = rate * MESSAGES_A_CALL + at_once * (MESSAGES_PER_S_PACED if paced else MESSAGES_PER_S_UNPACED)
    return max(1, min(math.ceil(messages_per_s / MESSAGES_A_CLIENT), round(rate) + at_once, room))


# ---------------------------------------------------------------- figures
# By their names in JSON files. Percentiles are of the samples of all processes together.

# Above these the client is the limit: it would add to what it measures, or ask for less than it should.
CLIENT_CPU_PERCENT = 80.0  # of a core, of one process
CLIENT_LATE_MS = 5.0  # p99 of its event loop, and of the words that it sends


def call_figures(
    calls: Sequence[CallSample], everything: Sequence[CallSample], begin: float, end: float
) -> dict[str, Any]:
    """Figures of some calls; and how many of all were going on at once between two times."""
    good = [call for call in calls if call.ttfa_ms is not None]
    spans = [(call.begin, call.ended_at) for call in everything if call.ended_at is not None]
    return {
        "errors": dict(Counter(call.error for call in calls if call.error is not None)),
        "ttfa_ms": percentiles([call.ttfa_ms for call in calls], 50, 95, 99, 100),
        "audible_ms": percentiles([call.audible_ms for call in calls], 50, 95),
        "underruns": sum(bool(call.gaps) for call in good),
        "underrun_s": round(sum(seconds for call in good for _, seconds in call.gaps), 3),
        "peak_in_flight": most_at_once(spans, begin, end),
        "mean_in_flight": round(mean_at_once(spans, begin, end), 2) if end > begin else 0.0,
    }


def measured_calls(result: ScenarioResult) -> list[CallSample]:
    """Calls that were to begin during the measurement."""
    begin, end = result.window
    return [sample for sample in result.samples if begin <= sample.begin < end]


def request_figures(scenario: Scenario, result: ScenarioResult) -> dict[str, Any]:
    """`bench serve` and `bench streams`: of the requests that were to begin during the measurement.

    Throughput, requests at once and gaps are of all that was going on meanwhile, whenever it began.
    """
    calls, (begin, _) = measured_calls(result), result.window
    good = [call for call in calls if call.ttfa_ms is not None]
    gaps = [(call.caller, 1_000 * seconds) for call in result.samples for when, seconds in call.gaps if when >= begin]
    audio_s_per_s = round(sum(sample.measured_audio_s for sample in result.samples) / scenario.duration_s, 2)
    connects_ms = [(call.connected_at - call.begin) * 1_000 for call in calls if call.connected_at is not None]
    send_late_ms = percentiles([call.send_late_ms for call in calls if call.sent_at is not None], 50, 99, 100)
    return {
        "load": scenario.name,
        "requests": len(calls),
        **call_figures(calls, result.samples, *result.window),
        "silent": sum(call.error is None and call.first_audio_at is None and not call.late_ms for call in calls),
        "late_ms": percentiles([ms for call in calls for ms in call.late_ms], 50, 99, 100),  # packets of WebRTC
        "gaps": len(gaps),
        "callers_with_gaps": len({caller for caller, _ in gaps}),
        "longest_gap_ms": round(max((ms for _, ms in gaps), default=0.0), 1),
        # The chunk counts that came last before its play time.
        "margin_ms": percentiles([call.least_margin_ms for call in good], 50, 1, 0, digits=1),
        "audio_s_per_s": audio_s_per_s,
        "frames_per_s": round(audio_s_per_s * 1_000 / FRAME_MS),
        "request_audio_s": percentiles([call.audio_s for call in good], 0, 50, 100),
        # They last from when a request was to begin until the node greeted it, and until its context was opened.
        "connect_ms": percentiles(connects_ms, 50, 99, 100),
        "send_late_ms": send_late_ms,
        **result.processes,
        "us_per_frame": us_per_frame(result.processes["cpu_percent"], audio_s_per_s),
        "client_limit": client_limit(result.processes, send_late_ms["p99"]),
    }


def request_runs(scenario: Scenario, result: ScenarioResult) -> list[dict[str, Any]]:
    """`request_figures`, also of each kind of call, and of the streams beside it, with the sum of their audio."""
    parts = [(scenario, result), *((scenario.streams_beside, beside) for beside in result.beside)]
    kinds = sorted({sample.kind for sample in result.samples})
    for kind in kinds if len(kinds) > 1 else ():
        some = replace(result, samples=[sample for sample in result.samples if sample.kind == kind])
        parts.append((replace(scenario, name=kind), some))
    runs = [request_figures(*part) for part in parts]
    total = round(sum(run["audio_s_per_s"] for run in runs[: 1 + len(result.beside)]), 2)
    return [one | {"sum_audio_s_per_s": total, "us_per_frame": us_per_frame(one["cpu_percent"], total)} for one in runs]


def us_per_frame(percent: Mapping[str, float], audio_s_per_s: float) -> dict[str, float]:
    """CPU time for 80 ms of audio, in µs, of processes that use these shares of a core; empty without audio."""
    if not audio_s_per_s:
        return {}
    return {name: round(share / 100 * FRAME_MS * 1_000 / audio_s_per_s, 1) for name, share in percent.items()}


def client_limit(processes: Mapping[str, Any], send_late_ms: float | None = None) -> str | None:
    """Why the clients were too slow for a load, so that its figures are not the node's; None where they were not."""
    each, lag_ms = processes["cpu_percent_each"], processes["client_lag_ms"].get("p99")
    busiest = max((percent for name, percent in each.items() if name.startswith("clients")), default=0.0)
    found = [
        (busiest, CLIENT_CPU_PERCENT, f"a client process used {busiest:.0f} % of a core"),
        (lag_ms, CLIENT_LATE_MS, f"their event loops were {lag_ms} ms late at p99"),
        (send_late_ms, CLIENT_LATE_MS, f"they sent words {send_late_ms} ms late at p99"),
    ]
    return "; ".join(said for value, most, said in found if value is not None and value > most) or None


def is_clean(figures: dict[str, Any]) -> bool:
    """Whether every caller heard all of its speech without a gap, and the clients had time for it."""
    return not (figures["gaps"] or figures["silent"] or figures["errors"] or figures["client_limit"])


def rtc_figures(result: ScenarioResult) -> dict[str, Any]:
    """`bench rtc`."""
    samples = result.samples
    late_ms = [ms for sample in samples for ms in sample.late_ms]
    return {
        "peers": len(samples),
        "packets": len(late_ms),
        "lost": sum(sample.lost for sample in samples),
        "silent": sum(not sample.late_ms for sample in samples),
        "lateness_ms": percentiles(late_ms, 50, 99, 100),
        "worst_p99_ms": max((ms for sample in samples if (ms := sample.late_p99_ms) is not None), default=None),
        "errors": dict(Counter(sample.error for sample in samples if sample.error is not None)),
        **result.processes,
        "client_limit": client_limit(result.processes),
    }


def session_figures(samples: Sequence[CallSample]) -> dict[str, Any]:
    """`bench load` and `bench soak`: of all sessions."""
    begin, end = (pick((sample.begin for sample in samples), default=0.0) for pick in (min, max))
    return {
        "visits": len(samples),
        **call_figures(samples, samples, begin, end),
        "not_one_end": sum(not sample.ended_once for sample in samples),
        "lost_packets": sum(sample.lost for sample in samples),
        "late_ms": percentiles([sample.late_p99_ms for sample in samples], 50, 100),
    }
