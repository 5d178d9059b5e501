"""Loads that a node must handle, with limits for their figures; and the soak test for leaks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_tts.bench import scenario as scenarios
from agent_tts.bench.node import MeasuredNode, NodeStats, NodeWatch, lag_ms, processes_of, slope, watched
from agent_tts.bench.runner import ScenarioResult, measure, prepared, session_figures, start_time
from agent_tts.bench.scenario import CallSample, Scenario
from agent_tts.bench.statistics import background, percentile, percentiles
from agent_tts.config.settings import Timeouts

LOOK_S = 0.5
STORM_LOOK_S = 0.1
PROBE_S = 1.5  # a node counts its tasks every 0.5 s and pings its engines every second
QUIET_S = 15.0  # timeout for the node's last client to end
STORM_AFTER_S = 0.5  # from the first idle connection to the first session

TTFA_P95_MS = 60.0
LAG_P99_MS = 10.0
LATE_P99_MS = 15.0  # of WebRTC packets
LATER_MS = 30.0  # more ms to first audio (p95) than without a storm
GONE_S = Timeouts().handshake_s + 0.5  # deadline of an idle connection, plus time to detect it
GROWTH_MIB = 100.0  # during a storm
KEPT_MIB = 16.0  # after a storm
SOAK_WARMUP = 0.1  # share of all contexts before memory is measured
SLOPE_MIB = 1.0  # per 1000 contexts
LOST = "engine_lost"


@dataclass(frozen=True, slots=True)
class Promise:
    what: str  # with its unit
    found: float | None  # None: not measured, so the promise is broken
    most: float

    @property
    def kept(self) -> bool:
        return self.found is not None and self.found <= self.most


Outcome = tuple[dict[str, Any], list[Promise]]  # figures of a load, and what was promised under it


async def sessions(node: MeasuredNode, seconds: float) -> Outcome:
    """64 WebSocket sessions at once. Raises SpeechError."""
    result, before, after, figures = await _held(node, scenarios.sessions(seconds, node.session))
    figures["ttfa_p95_ms"] = figures["ttfa_ms"]["p95"]
    return figures, [*_orderly(result.samples, before, after), *_punctual(figures)]


async def mixed(node: MeasuredNode, seconds: float) -> Outcome:
    """All transports, short and long texts in eight languages, and interruptions."""
    result, before, after, figures = await _held(node, scenarios.mixed(seconds, node.session))
    for transport in ("websocket", "http", "rtc"):
        if some := [sample for sample in result.samples if sample.transport == transport]:
            figures[transport] = session_figures(some)
    figures["ttfa_p95_ms"] = figures["websocket"]["ttfa_ms"]["p95"] if "websocket" in figures else None
    return figures, [
        *_orderly(result.samples, before, after),
        *_punctual(figures),
        Promise("WebRTC packets lost", figures["lost_packets"], 0),
        Promise("WebRTC packets late, ms, p99 of the median visit", figures["late_ms"]["p50"], LATE_P99_MS),
    ]


async def storm(node: MeasuredNode) -> Outcome:
    """Hundreds of idle connections beside speaking sessions; compared to the same sessions without them."""
    good, idle, health = scenarios.storm(node.session)
    calm, *_ = await _held(node, good)
    async with (
        prepared(node, idle) as connect,
        prepared(node, health) as probe,
        prepared(node, good) as speak,
        watched(node.url, node.pid, STORM_LOOK_S) as watch,
    ):
        start = start_time()
        idled, probed, result = await asyncio.gather(connect(start), probe(start), speak(start + STORM_AFTER_S))
        after = await settled(watch)
    connected = [sample for sample in idled.samples if sample.sent_at is not None]
    stayed_s = [round(sample.stay_s, 3) for sample in connected if sample.ends and sample.stay_s is not None]
    probe_ms = [1_000 * sample.stay_s for sample in probed.samples if sample.stay_s is not None]
    rss = [look.front.rss_mib for look in watch.looks]
    now, then = (percentile([call.ttfa_ms for call in some.samples], 95) for some in (result, calm))
    later_ms = None if now is None or then is None else round(now - then, 1)
    figures = {
        "load": "storm",
        **_figures(result),
        "strangers": {
            "connected": len(connected),
            "stayed_s": percentiles(stayed_s, 0, 50, 100),
            "health_ms": percentiles(probe_ms, 50, 99, 100),
        },
        "front_rss_mib": {"first": rss[0], "most": max(rss), "last": rss[-1]},
    }
    return figures, [
        *_orderly(result.samples, watch.looks[0], after),
        Promise("strangers who could not connect", len(idled.samples) - len(connected), 0),
        Promise("strangers who were still there in the end", len(connected) - len(stayed_s), 0),
        Promise("longest stay of a stranger, s", max(stayed_s, default=None), GONE_S),
        Promise("probes of /health that failed", sum(sample.error is not None for sample in probed.samples), 0),
        Promise("first audio later than without the storm, ms, p95", later_ms, LATER_MS),
        Promise("memory of the front, most, MiB more", round(max(rss) - rss[0], 1), GROWTH_MIB),
        Promise("memory of the front, after it, MiB more", round(rss[-1] - rss[0], 1), KEPT_MIB),
        Promise("file descriptors of the front, after it, more", after.front.fds - watch.looks[0].front.fds, 0),
    ]


async def soak(node: MeasuredNode, scenario: Scenario, kill_every_s: float) -> Outcome:
    """Thousands of short contexts, while the engine is killed repeatedly."""
    kills: list[int] = []
    async with (
        watched(node.url, node.pid, LOOK_S) as watch,
        prepared(node, scenario) as run,
    ):
        before = await settled(watch)
        async with background(_kill_every(node.pid, kill_every_s, kills), "killer of engines"):
            result = await run(start_time())
        after = await settled(watch)
    return soak_outcome(result, watch, before, after, len(kills))


async def _kill_every(pid: int, seconds: float, kills: list[int]) -> None:
    while True:
        await asyncio.sleep(seconds)
        for name, child in processes_of(pid).items():
            if name.startswith("engine"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                    kills.append(child)


def soak_outcome(result: ScenarioResult, watch: NodeWatch, before: NodeStats, after: NodeStats, kills: int) -> Outcome:
    """Figures and promises of a soak between `before` and `after`."""
    samples, looks = result.samples, watch.looks
    growth = round(slope(front_growth(samples, looks)), 3)
    starts = after.total("agent_tts_engine_starts_total") - before.total("agent_tts_engine_starts_total")
    tasks = after.total("agent_tts_tasks") - before.total("agent_tts_tasks")
    engine_rss = [process.rss_mib for look in looks for process in look.engines]
    quarter = max(1, len(samples) // 4)
    quarters = {"first quarter": samples[:quarter], "last quarter": samples[-quarter:]}
    figures: dict[str, Any] = {
        **_figures(result),
        "kills": kills,
        "front_rss_mib": {"first": before.front.rss_mib, "last": after.front.rss_mib},
        "front_mib_per_1000": growth,
        "engine_rss_mib": {"least": min(engine_rss, default=None), "most": max(engine_rss, default=None)},
        "ttfa_p95_ms": {
            name: percentiles([call.ttfa_ms for call in some], 95)["p95"] for name, some in quarters.items()
        },
        "looks": [_short(look, looks[0].at) for look in looks[:: max(1, len(looks) // 200)]],
    }
    failed = sum(sample.error not in (None, LOST) for sample in samples)
    promises = [
        Promise("visits that failed, but for those of a killed engine", failed, 0),
        *_ends(samples, before, after),
        Promise("engines that did not come back", kills - starts, 0),
        Promise("memory of the front, MiB more for 1000 contexts", growth, SLOPE_MIB),
        Promise("file descriptors of the front, more", after.front.fds - before.front.fds, 0),
        Promise("threads of the front, more", after.front.threads - before.front.threads, 0),
        Promise("tasks of the front, more", tasks, 0),
        Promise("engine processes, more", len(after.engines) - len(before.engines), 0),
    ]
    if before.engines and after.engines:  # compare the last engine with the first, both after their start
        then, now = before.engines[0], after.engines[0]
        promises += [
            Promise("memory of the engine, MiB more than the first had", round(now.rss_mib - then.rss_mib, 1), 16.0),
            Promise("file descriptors of the engine, more", now.fds - then.fds, 0),
            Promise("threads of the engine, more", now.threads - then.threads, 0),
        ]
    return figures, promises


def front_growth(samples: Sequence[CallSample], looks: Sequence[NodeStats]) -> list[tuple[float, float]]:
    """(thousands of contexts begun, MiB of the front) for each look after the warm-up."""
    begun = [sample.begin for sample in samples]
    numbers = [bisect_right(begun, look.at) for look in looks]
    points = zip(numbers, (look.front.rss_mib for look in looks), strict=True)
    return [(number / 1_000, mib) for number, mib in points if SOAK_WARMUP * len(begun) <= number < len(begun)]


def _short(look: NodeStats, start: float) -> dict[str, Any]:
    return {
        "s": round(look.at - start, 1),
        "front_mib": look.front.rss_mib,
        "engine_mib": [process.rss_mib for process in look.engines],
        "fds": look.front.fds,
        "threads": look.front.threads,
        "tasks": look.total("agent_tts_tasks"),
        "slots_used": look.total("agent_tts_slots_used"),
    }


async def _held(node: MeasuredNode, scenario: Scenario) -> tuple[ScenarioResult, NodeStats, NodeStats, dict[str, Any]]:
    """Run a scenario; returns its result, the node before and after, and figures."""
    async with watched(node.url, node.pid, LOOK_S) as watch:
        before = watch.looks[0]
        result = await measure(node, scenario)
        after = await settled(watch)
    figures = {"load": scenario.name, **_figures(result), "loop_lag_ms": lag_ms(before, after, 0.99)}
    return result, before, after, figures


def _figures(result: ScenarioResult) -> dict[str, Any]:
    return {**session_figures(result.samples), "client_lag_ms": result.processes["client_lag_ms"]}


async def settled(watch: NodeWatch) -> NodeStats:
    """The node's state once no client is left, or after `QUIET_S`."""
    end = time.monotonic() + QUIET_S
    while not (await watch.look()).is_quiet and time.monotonic() < end:  # noqa: ASYNC110 - it is another process
        await asyncio.sleep(LOOK_S)
    await asyncio.sleep(PROBE_S)
    return await watch.look()


def _orderly(samples: Sequence[CallSample], before: NodeStats, after: NodeStats) -> list[Promise]:
    failed = sum(sample.error is not None for sample in samples)
    return [Promise("visits that failed", failed, 0), *_ends(samples, before, after)]


def _ends(samples: Sequence[CallSample], before: NodeStats, after: NodeStats) -> list[Promise]:
    """Promises: every context ends once, by the client's and the node's count, and holds no resources afterwards."""
    ended = after.total("agent_tts_contexts_total") - before.total("agent_tts_contexts_total")
    asked = sum(sample.sent_at is not None for sample in samples)
    started = sum(sample.started for sample in samples)
    untold = sum(not sample.ended_once for sample in samples)
    return [
        Promise("visitors who were not told exactly once that it is over", untold, 0),
        Promise("contexts that began and never ended, by the node's count", max(0, started - ended), 0),
        Promise("contexts that ended more than once, by the node's count", max(0, ended - asked), 0),
        Promise("contexts left on the node", after.total("agent_tts_contexts_active"), 0),
        Promise("sessions left on the node", after.total("agent_tts_sessions"), 0),
        Promise("slots left in use", after.total("agent_tts_slots_used"), 0),
    ]


def _punctual(figures: dict[str, Any]) -> list[Promise]:
    return [
        Promise("visits with a gap in their speech", figures["underruns"], 0),
        Promise("first audio of streamed text, ms, p95", figures["ttfa_p95_ms"], TTFA_P95_MS),
        Promise("event loop of the front late, ms, p99", figures["loop_lag_ms"], LAG_P99_MS),
    ]
