"""Loads that a node must hold, each with what it promises under them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_tts.bench.clients import start_time
from agent_tts.bench.promises import Promise
from agent_tts.bench.statistics import percentile, percentiles
from agent_tts.bench.storm import Aftermath, Storm, gathered
from agent_tts.bench.visits import TAIL_S, Plan, Sample, by_carrier, figures_of, visitors
from agent_tts.bench.vitals import Vitals, Watch, lag_p99_ms, watched
from agent_tts.config.settings import Timeouts

SESSIONS = 64  # at once, on average
VISIT_S = 3.0  # that one of them takes, with what agents say
LOOK_S = 0.5
STORM_LOOK_S = 0.1
PROBE_S = 1.5  # a node looks at its tasks twice a second, at its engines each second
QUIET_S = 15.0  # for a node to forget its last visitor
STORM_AFTER_S = 0.5  # after the first stranger, the first of the good ones
GOOD = 100  # in the storm
GOOD_PER_S = 25.0

TTFA_P95_MS = 60.0
LAG_P99_MS = 10.0
LATE_P99_MS = 15.0  # of WebRTC packets
LATER_MS = 30.0  # to first audio, at the 95th percentile, than without a storm
GONE_S = Timeouts().handshake_s + 0.5  # a stranger: the deadline, and the time to see it
GROWTH_MIB = 100.0  # in a storm
KEPT_MIB = 16.0  # after it


@dataclass(frozen=True, slots=True)
class Node:
    """The node that is loaded: one of our own."""

    ws_url: str
    http_url: str
    key: str | None
    front_pid: int
    session: Mapping[str, Any]  # asked of it: voice, lead_ms and the like

    @property
    def urls(self) -> dict[str, str]:
        return {"ws": self.ws_url, "http": self.http_url}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a load came to."""

    figures: dict[str, Any]
    promises: list[Promise]

    def as_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        return {**self.figures, "promises": [promise.as_dict() for promise in self.promises]}


async def sessions(node: Node, seconds: float) -> Outcome:
    """L1: so many WebSocket sessions at once, as agents hold them. Cancelling it ends them.

    Raises:
        SpeechError: the node, or a process of its visitors, has failed.
    """
    rate = SESSIONS / VISIT_S
    plan = Plan(count=round(rate * seconds), rate=rate, session=dict(node.session))
    samples, before, after, figures = await _paid("sessions", node, plan)
    figures["ttfa_p95_ms"] = figures["ttfa_ms"]["p95"]
    return Outcome(figures, [*_orderly(samples, before, after), *_punctual(figures)])


async def mixed(node: Node, seconds: float) -> Outcome:
    """L4: all carriers, short and long texts in eight languages, and visitors who interrupt. Cancelling it ends them.

    Raises:
        SpeechError: the node, or a process of its visitors, has failed.
    """
    plan = Plan(
        count=round(2.0 * seconds),
        rate=2.0,
        http=0.2,
        rtc=0.2,
        barge_in=0.1,
        chars=(5, 2_000),
        session=dict(node.session),
    )
    samples, before, after, figures = await _paid("mixed", node, plan)
    for carrier, some in by_carrier(samples).items():
        figures[carrier] = figures_of(some)
    streamed = [sample for sample in samples if sample.carrier == "websocket"]
    figures["ttfa_p95_ms"] = figures_of(streamed)["ttfa_ms"]["p95"]
    return Outcome(
        figures,
        [
            *_orderly(samples, before, after),
            *_punctual(figures),
            Promise("WebRTC packets lost", figures["lost_packets"], 0),
            Promise("WebRTC packets late, ms, p99 of the median visit", figures["late_ms"]["p50"], LATE_P99_MS),
        ],
    )


async def storm(node: Node) -> Outcome:
    """L5: strangers come in hundreds while others want to speak; first without them. Cancelling it ends all.

    Raises:
        SpeechError: the node, or a process of its visitors, has failed.
    """
    plan = Plan(count=GOOD, rate=GOOD_PER_S, http=0.2, session=dict(node.session))
    calm, _, _, _ = await _paid("calm", node, plan)
    blown = Storm()
    async with (
        gathered(node.http_url, blown) as blow,
        visitors(node.urls, node.key, plan) as pay,
        watched(node.http_url, node.front_pid, STORM_LOOK_S) as watch,
    ):
        start = start_time()
        aftermath, paid = await asyncio.gather(blow(start), pay(start + STORM_AFTER_S))
        after = await settled(watch)
    figures = {"load": "storm", **figures_of(paid.samples), "client_lag_ms": paid.client_lag_ms}
    figures["strangers"] = {
        "connected": aftermath.connected,
        "stayed_s": percentiles(aftermath.stayed_s, 0, 50, 100),
        "health_ms": percentiles(aftermath.probe_ms, 50, 99, 100),
    }
    figures["front_rss_mib"] = _rss(watch)
    later_ms = _later_ms(paid.samples, calm)
    return Outcome(
        figures, [*_orderly(paid.samples, watch.looks[0], after), *_unmoved(aftermath, blown, watch, later_ms)]
    )


def _later_ms(samples: Sequence[Sample], calm: Sequence[Sample]) -> float | None:
    """By how many ms the 95th percentile of the time to first audio is beyond that of a calm day."""
    now, then = (percentile([s.ttfa_ms for s in some if s.ttfa_ms is not None], 95) for some in (samples, calm))
    return None if now is None or then is None else round(now - then, 1)


def _unmoved(aftermath: Aftermath, blown: Storm, watch: Watch, later_ms: float | None) -> list[Promise]:
    rss = [look.front.rss_mib for look in watch.looks]
    fds = [look.front.fds for look in watch.looks]
    return [
        Promise("strangers who could not connect", blown.strangers - aftermath.connected, 0),
        Promise("strangers who were still there in the end", aftermath.left, 0),
        Promise("longest stay of a stranger, s", max(aftermath.stayed_s, default=None), GONE_S),
        Promise("probes of /health that failed", aftermath.unhealthy, 0),
        Promise("first audio later than without the storm, ms, p95", later_ms, LATER_MS),
        Promise("memory of the front, most, MiB more", round(max(rss) - rss[0], 1), GROWTH_MIB),
        Promise("memory of the front, after it, MiB more", round(rss[-1] - rss[0], 1), KEPT_MIB),
        Promise("file descriptors of the front, after it, more", fds[-1] - fds[0], 0),
    ]


def _rss(watch: Watch) -> dict[str, float]:
    rss = [look.front.rss_mib for look in watch.looks]
    return {"first": rss[0], "most": max(rss), "last": rss[-1]}


async def _paid(name: str, node: Node, plan: Plan) -> tuple[list[Sample], Vitals, Vitals, dict[str, Any]]:
    """Pay the plan's visits: what was seen, the node before and after them, and figures."""
    async with watched(node.http_url, node.front_pid, LOOK_S) as watch:
        before = watch.looks[0]
        async with visitors(node.urls, node.key, plan) as pay:
            paid = await pay(start_time())
        after = await settled(watch)
    figures = {"load": name, **figures_of(paid.samples), "client_lag_ms": paid.client_lag_ms}
    figures["loop_lag_p99_ms"] = lag_p99_ms(before, after)
    return paid.samples, before, after, figures


async def settled(watch: Watch) -> Vitals:
    """The node once nobody is there any more, or as it is after `QUIET_S`; then with its own last probes."""
    end = time.monotonic() + QUIET_S
    while not is_quiet(await watch.look()) and time.monotonic() < end:  # noqa: ASYNC110 - it is another process
        await asyncio.sleep(LOOK_S)
    await asyncio.sleep(PROBE_S)
    return await watch.look()


def is_quiet(look: Vitals) -> bool:
    """Whether nobody speaks, waits or is connected."""
    names = ("agent_tts_contexts_active", "agent_tts_sessions", "agent_tts_slots_used", "agent_tts_contexts_queued")
    return not any(look.total(name) for name in names)


def _orderly(samples: Sequence[Sample], before: Vitals, after: Vitals) -> list[Promise]:
    """Nobody is refused, nobody waits for ever, and nothing is left of anybody."""
    return [
        Promise("visits that failed", sum(sample.error is not None for sample in samples), 0),
        *ends(samples, before, after),
    ]


def ends(samples: Sequence[Sample], before: Vitals, after: Vitals) -> list[Promise]:
    """Every context ends once, as its visitor sees it and as the node counts it, and nothing is left of it."""
    ended = after.total("agent_tts_contexts_total") - before.total("agent_tts_contexts_total")
    asked = sum(sample.sent_at is not None for sample in samples)
    started = sum(sample.started for sample in samples)
    return [
        Promise("visitors who were not told exactly once that it is over", figures_of(samples)["not_one_end"], 0),
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
        Promise("event loop of the front late, ms, p99", figures["loop_lag_p99_ms"], LAG_P99_MS),
    ]


def expected_s(seconds: float) -> float:
    """About how long a load of so many seconds takes."""
    return seconds + TAIL_S
