"""The load of nodes by their metrics, and how many a cluster should have. Pure; Ray Serve calls the last function."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

RESERVE = 0.25  # of all slots that may be in use: those stay free for callers who come while a machine starts
BUCKETS = "agent_tts_ttfa_seconds_bucket"
SLOW_S = 0.3  # first audio, at p95, above which nodes are too busy whatever their slots say


@dataclass(frozen=True, slots=True)
class Load:
    """Of one node that takes callers."""

    used: float  # slots
    slots: float
    waiting: float = 0.0  # contexts without a slot
    first_audio_s: float = 0.0  # p95 of the last seconds; 0 without any


class Figures:
    """The load of one node by its pages of metrics, one after the other."""

    def __init__(self) -> None:
        # Requests by the upper bound of their first audio, in seconds, as of the last page.
        self._before: defaultdict[float, float] = defaultdict(float)

    def read(self, page: str) -> Load:
        """The load by a page in Prometheus' format; first audio is of the requests since the page before."""
        sums: defaultdict[str, float] = defaultdict(float)
        buckets: defaultdict[float, float] = defaultdict(float)
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                sums[sample.name] += sample.value
                if sample.name == BUCKETS:
                    buckets[float(sample.labels["le"])] += sample.value
        grown = {bound: count - self._before[bound] for bound, count in sorted(buckets.items())}
        self._before = buckets
        all_requests = max(grown.values(), default=0.0)
        p95 = next((bound for bound, count in grown.items() if count >= 0.95 * all_requests > 0), 0.0)
        used, slots, waiting = (sums[f"agent_tts_{name}"] for name in ("slots_used", "slots", "contexts_queued"))
        return Load(used, slots, waiting, p95)


def nodes_wanted(loads: Sequence[Load], now: int) -> int:
    """The number of nodes that these loads need.

    Args:
        loads: of the nodes that have told theirs.
        now: nodes that there are or that were asked for. Without any load to go by, they are enough.
    """
    slots = sum(load.slots for load in loads)
    if not slots:
        return max(now, 1)
    used = sum(load.used + load.waiting for load in loads)
    wanted = max(1, math.ceil(used / (slots / len(loads)) / (1 - RESERVE) - 1e-9))
    if any(load.first_audio_s > SLOW_S for load in loads):
        wanted = max(wanted, len(loads) + 1)
    return wanted


def decide(ctx: Any) -> tuple[int, dict[str, Any]]:
    """Ray Serve's policy: the nodes that are wanted, and no state of its own. `ctx` is an `AutoscalingContext`."""
    told: dict[str, dict[Any, float]] = ctx.aggregated_metrics or {}
    replicas = set(told.get("slots", {}))
    loads = [
        Load(*(told.get(name, {}).get(replica, 0.0) for name in ("used", "slots", "waiting", "first_audio_s")))
        for replica in replicas
    ]
    return nodes_wanted([load for load in loads if load.slots], ctx.target_num_replicas), {}
