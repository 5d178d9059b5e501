"""Thousands of short contexts, visitors who vanish, an engine that is killed: what a node keeps of all that."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_tts.bench.clients import start_time
from agent_tts.bench.load import LOOK_S, Node, Outcome, ends, settled
from agent_tts.bench.node import children_of
from agent_tts.bench.promises import Promise
from agent_tts.bench.statistics import percentile
from agent_tts.bench.visits import Paid, Plan, Sample, figures_of, visitors
from agent_tts.bench.vitals import Vitals, Watch, slope, watched

TEXTS = ("Sure, one moment.", "Yes, that works.", "Could you say that again?", "It is half past nine.")
WARMUP = 0.1  # of all contexts, before memory is looked at
SLOPE_MIB = 1.0  # for every 1000 contexts
LOST = "engine_lost"


@dataclass(frozen=True, slots=True)
class Soak:
    """What a node has to go through."""

    contexts: int = 5_000
    rate: float = 12.0  # a second, at random times
    vanish: float = 0.1  # share of visitors who leave without a word
    kill_every_s: float = 60.0

    def plan(self, node: Node) -> Plan:
        """The visits of it."""
        return Plan(count=self.contexts, rate=self.rate, vanish=self.vanish, texts=TEXTS, session=dict(node.session))


async def soak(node: Node, wanted: Soak) -> Outcome:
    """Go through all of it. Cancelling it ends it.

    Raises:
        SpeechError: the node, or a process of its visitors, has failed.
    """
    plan = wanted.plan(node)
    kills: list[int] = []
    async with (
        watched(node.http_url, node.front_pid, LOOK_S) as watch,
        visitors(node.urls, node.key, plan) as pay,
    ):
        before = await settled(watch)
        killer = asyncio.create_task(_kill_every(node.front_pid, wanted.kill_every_s, kills), name="killer of engines")
        try:
            paid = await pay(start_time())
        finally:
            killer.cancel()
            await asyncio.gather(killer, return_exceptions=True)
        after = await settled(watch)
    return outcome(paid, watch, before, after, len(kills))


async def _kill_every(front_pid: int, seconds: float, kills: list[int]) -> None:
    while True:
        await asyncio.sleep(seconds)
        for pid in children_of(front_pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                kills.append(pid)


def outcome(paid: Paid, watch: Watch, before: Vitals, after: Vitals, kills: int) -> Outcome:
    """Figures and promises of a soak that was looked at from `before` to `after`."""
    samples = paid.samples
    failed = [sample for sample in samples if sample.error is not None]
    growth = round(slope(front_growth(samples, watch.looks)), 3)
    starts = after.total("agent_tts_engine_starts_total") - before.total("agent_tts_engine_starts_total")
    engine_rss = [process.rss_mib for look in watch.looks for process in look.engines]
    quarter = max(1, len(samples) // 4)
    figures: dict[str, Any] = {
        **figures_of(samples),
        "client_lag_ms": paid.client_lag_ms,
        "kills": kills,
        "front_rss_mib": {"first": before.front.rss_mib, "last": after.front.rss_mib},
        "front_mib_per_1000": growth,
        "engine_rss_mib": {"least": min(engine_rss, default=None), "most": max(engine_rss, default=None)},
        "ttfa_p95_ms": {"first quarter": _p95(samples[:quarter]), "last quarter": _p95(samples[-quarter:])},
        "looks": [_short(look, watch.looks[0].at) for look in watch.looks[:: max(1, len(watch.looks) // 200)]],
    }
    return Outcome(
        figures,
        [
            Promise("visits that failed, but for those of a killed engine", sum(s.error != LOST for s in failed), 0),
            *ends(samples, before, after),
            Promise("engines that did not come back", kills - starts, 0),
            Promise("memory of the front, MiB more for 1000 contexts", growth, SLOPE_MIB),
            Promise("file descriptors of the front, more", after.front.fds - before.front.fds, 0),
            Promise("threads of the front, more", after.front.threads - before.front.threads, 0),
            Promise("tasks of the front, more", after.total("agent_tts_tasks") - before.total("agent_tts_tasks"), 0),
            Promise("engine processes, more", len(after.engines) - len(before.engines), 0),
            *_engine(before, after),
        ],
    )


def _engine(before: Vitals, after: Vitals) -> list[Promise]:
    """What an engine has after all that, against the first one after its start."""
    if not (before.engines and after.engines):
        return []
    then, now = before.engines[0], after.engines[0]
    return [
        Promise("memory of the engine, MiB more than the first had", round(now.rss_mib - then.rss_mib, 1), 16.0),
        Promise("file descriptors of the engine, more", now.fds - then.fds, 0),
        Promise("threads of the engine, more", now.threads - then.threads, 0),
    ]


def front_growth(samples: Sequence[Sample], looks: Sequence[Vitals]) -> list[tuple[float, float]]:
    """Memory of the front, in MiB, over thousands of contexts that had begun; without the warm-up."""
    begun = [sample.begin for sample in samples]
    points, number = [], 0
    for look in looks:
        while number < len(begun) and begun[number] <= look.at:
            number += 1
        if WARMUP * len(begun) <= number < len(begun):
            points.append((number / 1_000, look.front.rss_mib))
    return points


def _p95(samples: Sequence[Sample]) -> float | None:
    found = percentile([ms for sample in samples if (ms := sample.ttfa_ms) is not None], 95)
    return None if found is None else round(found, 2)


def _short(look: Vitals, start: float) -> dict[str, Any]:
    return {
        "s": round(look.at - start, 1),
        "front_mib": look.front.rss_mib,
        "engine_mib": [process.rss_mib for process in look.engines],
        "fds": look.front.fds,
        "threads": look.front.threads,
        "tasks": look.total("agent_tts_tasks"),
        "slots_used": look.total("agent_tts_slots_used"),
    }
