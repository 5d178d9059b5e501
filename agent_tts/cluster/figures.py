"""What a node's metrics say of its load. Pure."""

from __future__ import annotations

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

from agent_tts.cluster.scaling import Load

BUCKETS = "agent_tts_ttfa_seconds_bucket"


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
