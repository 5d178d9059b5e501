"""Memory, descriptors, threads and metrics of a node that was started here, from /proc and /metrics."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from agent_tts.bench.node import children_of
from agent_tts.bench.statistics import background
from agent_tts.errors import EngineLost

MIB = 1 << 20
ANSWER_S = 10.0  # for the node to answer with its metrics
LAG = "agent_tts_loop_lag_seconds"

MetricSamples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@dataclass(frozen=True, slots=True)
class ProcessStats:
    """One process at one time."""

    rss_mib: float
    fds: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> ProcessStats:
        """The process now. Raises OSError: it is gone."""
        folder = Path("/proc") / str(pid)
        pages = int((folder / "statm").read_text().split()[1])
        fds, threads = (len(os.listdir(folder / name)) for name in ("fd", "task"))
        return cls(round(pages * os.sysconf("SC_PAGE_SIZE") / MIB, 2), fds, threads)


@dataclass(frozen=True, slots=True)
class NodeStats:
    """A node at one time."""

    at: float  # on the monotonic clock
    front: ProcessStats
    engines: tuple[ProcessStats, ...]  # none while they are being replaced
    samples: MetricSamples = field(repr=False)  # of its metrics, by name and labels

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric over all labels but those that are given."""
        wanted = set(labels.items())
        return sum(value for (found, has), value in self.samples.items() if found == name and wanted <= set(has))

    @property
    def is_quiet(self) -> bool:
        """Whether no client is connected, speaks or waits."""
        names = ("contexts_active", "sessions", "slots_used", "contexts_queued")
        return not any(self.total(f"agent_tts_{name}") for name in names)


class NodeWatch:
    """Reads the stats of a node. Made by `watched`."""

    def __init__(self, client: httpx.AsyncClient, front_pid: int) -> None:
        self._client = client
        self._front_pid = front_pid
        # All stats, in their order.
        self.looks: list[NodeStats] = []

    async def look(self) -> NodeStats:
        """Read them now, and keep them. Raises EngineLost: the node does not answer."""
        try:
            answer = await self._client.get("/metrics")
            answer.raise_for_status()
            front = ProcessStats.of(self._front_pid)
        except (httpx.HTTPError, OSError) as error:
            raise EngineLost(f"the node does not answer with its metrics: {type(error).__name__}") from error
        engines = []
        for pid in children_of(self._front_pid):
            with contextlib.suppress(OSError):  # it has just been replaced
                engines.append(ProcessStats.of(pid))
        samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }
        self.looks.append(NodeStats(time.monotonic(), front, tuple(engines), samples))
        return self.looks[-1]


@asynccontextmanager
async def watched(http_url: str, front_pid: int, every_s: float) -> AsyncIterator[NodeWatch]:
    """Read the stats of a node so often while the block runs; the first time is before it."""
    one = httpx.Limits(max_connections=1)  # the watch takes a single descriptor of the node
    async with httpx.AsyncClient(base_url=http_url, timeout=ANSWER_S, limits=one) as client:
        watch = NodeWatch(client, front_pid)
        await watch.look()

        async def look_again() -> None:
            while True:
                await watch.look()
                await asyncio.sleep(every_s)

        async with background(look_again(), "process stats"):
            yield watch


def lag_p99_ms(before: NodeStats, after: NodeStats) -> float | None:
    """The 99th percentile of the lag of the node's event loop between two times, in ms: a bound of its histogram.

    None without a probe.
    """
    counts = {
        float(dict(labels)["le"]): value - before.samples.get((name, labels), 0.0)
        for (name, labels), value in after.samples.items()
        if name == f"{LAG}_bucket"
    }
    probes = counts.get(float("inf"), 0.0)
    if not probes:
        return None
    return 1_000 * min(bound for bound, count in counts.items() if count >= 0.99 * probes)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line nearest to points (x, y) by least squares; 0 where there is none."""
    if not points:
        return 0.0
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
