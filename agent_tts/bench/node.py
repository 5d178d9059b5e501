"""Starts a node process to measure; reads its memory, CPU, descriptors and threads from /proc, and its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import linear_regression
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from agent_tts.bench.statistics import background
from agent_tts.config.settings import is_of_environment
from agent_tts.errors import EngineLost, SettingsError
from agent_tts.system.in_child import die_with
from agent_tts.system.processes import ends, stat_of

START_S = 300.0  # a large model is read from disk
STOP_S = 15.0
DRAIN_S = 0.5  # no client is left when the node is stopped
POLL_S = 0.05
WELCOME = "agent-tts: http"  # start of the line with the node's address
MIB = 1 << 20
ANSWER_S = 10.0  # for the node to answer with its metrics
LAG = "agent_tts_loop_lag_seconds"
FRONT, ENGINE = "agent_tts.serve.processes.front", "agent_tts.ipc.child"  # modules of a node's child processes

MetricSamples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@dataclass(frozen=True, slots=True)
class MeasuredNode:
    url: str  # http://127.0.0.1:port
    pid: int = 0  # of `agent-tts serve`; 0 of a running node
    pids: Mapping[str, int] = field(default_factory=dict)  # of all its processes, see `processes_of`; none likewise
    key: str | None = None
    session: dict[str, Any] = field(default_factory=dict)  # that it has accepted: voice, lead_ms and the like


@asynccontextmanager
async def own_node(command: str = "serve", /, **settings: object) -> AsyncIterator[MeasuredNode]:
    """Start a node process with these settings ("__" for the dots of keys); ready when entered, stopped with the block.

    Args:
        command: subcommand of `agent-tts`: serve or agent; or the file of a pipeline that takes --set.
    Raises:
        EngineLost: the node does not start; the message holds its last log lines.
    """
    settings = {"port": 0, "log_level": "warning", "timeouts__drain_s": DRAIN_S} | settings
    flags = [part for key, value in settings.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]
    program = (command,) if command.endswith(".py") else ("-m", "agent_tts", command)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *program, *flags),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if not is_of_environment(name)},
        start_new_session=sys.platform != "win32",  # Ctrl-C reaches only this process, which stops the node
        # A process that is killed stops nothing.
        preexec_fn=None if sys.platform == "win32" else partial(die_with, os.getpid()),
    )
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with background(_read(process, url), "log of the node"):
        try:
            async with asyncio.timeout(START_S), httpx.AsyncClient() as client:
                address = await url
                while (await client.get(f"{address}/ready")).status_code != 200:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(POLL_S)
            yield MeasuredNode(address, process.pid, processes_of(process.pid))
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            if not await ends(process, STOP_S):
                raise TimeoutError


async def _read(process: asyncio.subprocess.Process, url: asyncio.Future[str]) -> None:
    """Set `url` from the node's log, and print all later lines, because errors explain the figures."""
    assert process.stderr is not None
    said: deque[str] = deque(maxlen=5)
    async for raw in process.stderr:
        line = raw.decode(errors="replace").rstrip()
        said.append(line)
        if line.startswith(WELCOME) and not url.done():
            url.set_result(line.removeprefix("agent-tts: "))
        elif url.done():
            print(f"node: {line}", file=sys.stderr)
    if not url.done():
        url.set_exception(EngineLost(f"the node did not start: {' / '.join(said) or 'it said nothing'}"))


def children_of(pid: int) -> list[int]:
    """Child processes of `pid`; empty without /proc."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError):  # the process has just ended
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # or a thread of it
                found += map(int, task.read_text().split())
    return found


def processes_of(pid: int) -> dict[str, int]:
    """Processes of the node whose first process is `pid`, by name.

    `front`, then `engine`; of several `front 0`, `front 1`, which have a `supervisor` before them.
    """
    children = {child: _command(child) for child in children_of(pid)}
    fronts, engines = ([child for child, words in children.items() if module in words] for module in (FRONT, ENGINE))
    first = {"supervisor": pid, **_numbered("front", fronts)} if fronts else {"front": pid}
    return first | _numbered("engine", engines)


def _numbered(name: str, pids: Sequence[int]) -> dict[str, int]:
    return {name: pids[0]} if len(pids) == 1 else {f"{name} {number}": pid for number, pid in enumerate(pids)}


def _command(pid: int) -> list[str]:
    """Its program and arguments; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def pin(pids: Mapping[str, int], name: str, cores: Sequence[int]) -> None:
    """Give each process of this name one of the cores, in turn; on Linux. Raises SettingsError: no such core."""
    found = [pid for one, pid in pids.items() if one.partition(" ")[0] == name]
    for pid, core in zip(found, itertools.cycle(cores), strict=False):
        for thread in os.listdir(f"/proc/{pid}/task"):
            try:
                os.sched_setaffinity(int(thread), {core})
            except ProcessLookupError:  # it has just ended
                continue
            except OSError:
                raise SettingsError(f"this machine has no core {core} for a process") from None


def cpu_s(pid: int) -> float | None:
    """CPU time of a process in seconds; None without /proc."""
    fields = stat_of(pid)
    return None if fields is None else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def cpu_percent(pids: Mapping[str, int], begin: float, end: float) -> dict[str, float]:
    """CPU use of processes, in percent of one core, between two times of the monotonic clock, by name.

    Processes that /proc does not show are omitted.
    """
    await asyncio.sleep(begin - time.monotonic())
    before, begun = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
    await asyncio.sleep(end - time.monotonic())
    after, seconds = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic() - begun
    return {
        name: round(100 * (now - then) / seconds, 1)
        for name, then in before.items()
        if then is not None and (now := after[name]) is not None
    }


def by_kind(figures: Mapping[str, float]) -> dict[str, float]:
    """The sums over processes whose names differ only in a number after a space: `front` of `front 0` and `front 1`."""
    found: dict[str, float] = {}
    for name, value in figures.items():
        kind = name.partition(" ")[0]
        found[kind] = round(found.get(kind, 0.0) + value, 1)
    return found


@dataclass(frozen=True, slots=True)
class ProcessStats:
    """One process, or several together, at one time."""

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

    def __add__(self, other: ProcessStats) -> ProcessStats:
        return ProcessStats(self.rss_mib + other.rss_mib, self.fds + other.fds, self.threads + other.threads)


@dataclass(frozen=True, slots=True)
class NodeStats:
    """A node at one time."""

    at: float  # on the monotonic clock
    front: ProcessStats  # all fronts and their supervisor
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


@dataclass(frozen=True, slots=True)
class NodeWatch:
    """Reads the stats of a node. Made by `watched`."""

    client: httpx.AsyncClient
    pid: int  # of `agent-tts serve`
    looks: list[NodeStats] = field(default_factory=list)  # all stats, in their order

    async def look(self) -> NodeStats:
        """Read them now, and keep them. Raises EngineLost: the node does not answer."""
        try:
            answer = await self.client.get("/metrics")
            answer.raise_for_status()
            front = ProcessStats.of(self.pid)
        except (httpx.HTTPError, OSError) as error:
            raise EngineLost(f"the node does not answer with its metrics: {type(error).__name__}") from error
        engines = []
        for name, pid in processes_of(self.pid).items():
            with contextlib.suppress(OSError):  # it has just been replaced
                if name.startswith("engine"):
                    engines.append(ProcessStats.of(pid))
                elif pid != self.pid:
                    front += ProcessStats.of(pid)
        samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }
        self.looks.append(NodeStats(time.monotonic(), front, tuple(engines), samples))
        return self.looks[-1]


@asynccontextmanager
async def watched(http_url: str, pid: int, every_s: float) -> AsyncIterator[NodeWatch]:
    """Read the stats of a node so often while the block runs; the first time is before it."""
    one = httpx.Limits(max_connections=1)  # the watch takes a single descriptor of the node
    async with httpx.AsyncClient(base_url=http_url, timeout=ANSWER_S, limits=one) as client:
        watch = NodeWatch(client, pid)
        await watch.look()

        async def look_again() -> None:
            while True:
                await watch.look()
                await asyncio.sleep(every_s)

        async with background(look_again(), "process stats"):
            yield watch


def lag_ms(before: NodeStats, after: NodeStats, share: float) -> float | None:
    """The lag in ms that this share of the probes of the node's event loops have at most, as a bound of its histogram.

    None without a probe.
    """
    counts: defaultdict[float, float] = defaultdict(float)
    for (name, labels), value in after.samples.items():
        if name == f"{LAG}_bucket":
            counts[float(dict(labels)["le"])] += value - before.samples.get((name, labels), 0.0)
    probes = counts[float("inf")]
    if not probes:
        return None
    return 1_000 * min(bound for bound, count in counts.items() if count >= share * probes)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line nearest to points (x, y) by least squares; 0 where there is none."""
    x, y = [x for x, _ in points], [y for _, y in points]
    return linear_regression(x, y).slope if len(set(x)) > 1 else 0.0
