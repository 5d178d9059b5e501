"""Runs of `agent-tts bench`: from options to a node, its load, and a report."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from agent_tts.bench import report
from agent_tts.bench.connection import dial
from agent_tts.bench.node import own_node
from agent_tts.bench.rtc import listen
from agent_tts.bench.serve import Load, measure
from agent_tts.bench.streams import Plan, hold, is_clean
from agent_tts.cli.reporting import overrides
from agent_tts.client import http_url, stream_url
from agent_tts.errors import SettingsError
from agent_tts.serve.run import event_loop_factory

TICK_S = 0.2  # between movements of the bar
DEFAULT_RATES = "1,10,20"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Source:
    """Which node is to be measured."""

    url: str | None  # a running one; None is one of our own
    key: str | None
    engine: str  # of our own
    settings: Mapping[str, str] = field(default_factory=dict)  # of our own, by keys with dots
    synthetic: str | None = None  # of our own: a size of checkpoint with random weights, to speak with


def own(engine: str, assignments: list[str] | None, synthetic: str | None) -> dict[str, Any]:
    """What of a `Source` concerns a node of our own.

    Raises:
        SettingsError: an assignment without "=".
    """
    if synthetic is not None:
        engine = "qwen3"
    return {"engine": engine, "settings": overrides({}, assignments or []), "synthetic": synthetic}


@dataclass(frozen=True, slots=True)
class Target:
    """The node that is measured."""

    url: str  # of its WebSocket
    http_url: str
    key: str | None
    pids: dict[str, int]  # of its processes by name, where they are ours
    info: dict[str, Any]  # what it says of itself


class Outputs:
    """Files that the figures go to, besides the table; made before the measurement.

    Raises:
        SettingsError: one of them cannot be written.
    """

    def __init__(self, json: Path | None, plot: Path | None) -> None:
        if json is not None:
            report.check_output("--json", json)
        self.json = json
        self.picture = None if plot is None else report.Plot(plot)


def run_serve(source: Source, load: Load, rates: str | None, concurrencies: str | None, outputs: Outputs) -> None:
    """`agent-tts bench serve`: `load` at each of the rates, or of the concurrencies.

    Raises:
        SettingsError: the options make no sense.
        SpeechError: the node cannot be measured.
    """
    if rates is not None and concurrencies is not None:
        raise SettingsError("--rate and --concurrency are two ways to load a node: choose one")
    if concurrencies is not None:
        loads = [replace(load, concurrency=count) for count in counts("--concurrency", concurrencies)]
    else:
        loads = [replace(load, rate=value) for value in numbers("--rate", rates or DEFAULT_RATES)]

    async def main() -> tuple[dict[str, Any], list[tuple[dict[str, Any], list[float]]]]:
        async with target(source) as node:
            with Bar(len(loads) * (load.warmup_s + load.duration_s)) as bar:
                return node.info, [await bar.during(each.name, measure(node.url, node.key, each)) for each in loads]

    info, found = run(main())
    rows = [
        (
            *(figures["load"], figures["requests"], *figures["ttfa_ms"].values()),
            *(figures["underruns"], figures["audio_s_per_s"], figures["peak_in_flight"]),
            *(figures["client_lag_ms"]["p99"], report.counted(figures["errors"])),
        )
        for figures, _ in found
    ]
    title = f"{info['engine']}: time to first audio in ms, a word every {load.words_every_ms:g} ms"
    columns = ("load", "requests", "p50", "p95", "p99", "underruns", "audio s/s", "peak", "client lag p99", "errors")
    report.table(title, columns, rows)

    def draw(picture: report.Plot) -> None:
        picture.ttfa(f"{info['engine']} engine", [(figures["load"], ttfa) for figures, ttfa in found if ttfa])

    _write("serve", info, [figures for figures, _ in found], outputs, draw)


def run_streams(source: Source, streams: str, plan: Plan, outputs: Outputs) -> None:
    """`agent-tts bench streams`.

    Raises:
        SettingsError: the options make no sense.
        SpeechError: the node cannot be measured.
    """
    sizes = counts("--streams", streams)
    settings = {
        "slots": max(sizes),
        "limits__connections": max(sizes) + 16,
        "limits__contexts_per_session": plan.per_connection,
    }

    async def main() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        async with target(source, **settings) as node:
            with Bar(len(sizes) * (plan.seconds + plan.ramp_s)) as bar:
                return node.info, [
                    await bar.during(f"{size} streams", hold(node.url, node.key, size, plan, node.pids))
                    for size in sizes
                ]

    info, runs = run(main())
    processes = list(runs[0]["cpu_percent"])
    rows = [
        (
            *(run["streams"], run["underruns"], run["gaps_s"]),
            *(run["margin_ms"].get(name) for name in ("p50", "p1", "p0")),
            *(run["cpu_percent"][name] for name in processes),
            report.counted(run["ended"]),
        )
        for run in runs
    ]
    title = f"{info['engine']}: streams of {plan.seconds:g} s, paced {plan.lead_ms} ms ahead"
    columns = (
        *("streams", "with gaps", "gaps s", "margin ms p50", "p1", "least"),
        *(f"cpu % {name}" for name in processes),
        "ended early",
    )
    report.table(title, columns, rows)
    clean = max((run["streams"] for run in runs if is_clean(run)), default=0)
    print(f"largest number without a gap: {clean}")

    def draw(picture: report.Plot) -> None:
        series: dict[str, Sequence[float]] = {name: [run["cpu_percent"][name] for run in runs] for name in processes}
        picture.lines(f"{info['engine']} engine, {clean} streams without a gap", sizes, series, ("streams", "CPU, %"))

    _write("streams", info, runs, outputs, draw)


def run_rtc(source: Source, peers: str, seconds: float, voice: str | None, outputs: Outputs) -> None:
    """`agent-tts bench rtc`.

    Raises:
        SettingsError: the options make no sense.
        SpeechError: the node cannot be measured.
    """
    sizes = counts("--peers", peers)

    async def main() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        async with target(source, slots=max(sizes), limits__rtc_peers=2 * max(sizes)) as node:
            with Bar(len(sizes) * seconds) as bar:
                return node.info, [
                    await bar.during(f"{size} peers", listen(node.http_url, node.key, size, seconds, voice, node.pids))
                    for size in sizes
                ]

    info, runs = run(main())
    processes = list(runs[0]["cpu_percent"])
    rows = [
        (
            *(run["peers"], run["packets"], run["lost"], *run["lateness_ms"].values(), run["worst_p99_ms"]),
            *(run["cpu_percent"][name] for name in processes),
            report.counted(run["errors"]),
        )
        for run in runs
    ]
    columns = (
        *("peers", "packets", "lost", "late ms p50", "p99", "most", "p99 of the worst"),
        *(f"cpu % {name}" for name in processes),
        "errors",
    )
    report.table(f"{info['engine']}: WebRTC packets against their 20 ms grid", columns, rows)

    def draw(picture: report.Plot) -> None:
        series: dict[str, Sequence[float]] = {
            name: [run["lateness_ms"][name] for run in runs] for name in ("p50", "p99")
        }
        picture.lines(f"{info['engine']} engine", sizes, series, ("WebRTC peers", "lateness of packets, ms"))

    _write("rtc", info, runs, outputs, draw)


# ---------------------------------------------------------------- shared


def numbers(option: str, text: str) -> list[float]:
    """Positive numbers, separated by commas.

    Raises:
        SettingsError: they are not.
    """
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        raise SettingsError(f"{option} {text}: must be positive numbers with commas between them, like 0.5,1,10")
    return values


def counts(option: str, text: str) -> list[int]:
    """Whole numbers from 1, separated by commas.

    Raises:
        SettingsError: they are not.
    """
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise SettingsError(f"{option} {text}: must be whole numbers from 1 with commas between them, like 1,10,20")
    return values


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop that nodes use."""
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        return runner.run(main)


@asynccontextmanager
async def target(source: Source, **settings: object) -> AsyncIterator[Target]:
    """The node at the source's url, or one of our own with these settings.

    Raises:
        SettingsError: the url names no node.
        SpeechError: it cannot be reached, or does not come up.
    """
    key = source.key
    if source.url is not None:
        address = stream_url(source.url)
        yield Target(address, http_url(source.url), key, {}, await _info(address, key))
        return
    settings = {"engine": source.engine} | settings
    settings |= {name.replace(".", "__"): value for name, value in source.settings.items()}
    with _synthetic(source.synthetic) as model:
        async with own_node(**settings, **model) as node:
            address = stream_url(node.url)
            yield Target(address, node.url, key, node.pids, {**await _info(address, key), "settings": settings})


@contextmanager
def _synthetic(size: str | None) -> Iterator[dict[str, str]]:
    """The setting of a model with random weights, which is removed with the block; nothing for no size."""
    if size is None:
        yield {}
        return
    from agent_tts.bench.checkpoint import write

    with TemporaryDirectory(prefix="agent-tts-") as folder:
        checkpoint = Path(folder) / f"synthetic-{size}"
        print(f"writing a {size} checkpoint with random weights", file=sys.stderr)
        write(checkpoint, size=size)
        yield {"qwen3__models": str(checkpoint)}


async def _info(url: str, key: str | None) -> dict[str, Any]:
    connection, greeting = await dial(url, key)
    await connection.close()
    return {name: greeting[name] for name in ("engine", "model", "limits")}


def _write(
    kind: str, info: dict[str, Any], runs: list[dict[str, Any]], outputs: Outputs, draw: Callable[[report.Plot], None]
) -> None:
    """The files that were asked for."""
    if outputs.json is not None:
        report.write_json(outputs.json, report.document(kind, info, runs))
    if outputs.picture is not None:
        draw(outputs.picture)
        outputs.picture.save()


class Bar:
    """A progress bar on stderr over so many seconds of runs."""

    def __init__(self, seconds: float) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        # Refreshed by hand, so it has no thread.
        console = Console(stderr=True)
        self._progress = Progress(
            *columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal
        )
        self._task = self._progress.add_task("", total=seconds)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    async def during(self, name: str, measuring: Coroutine[Any, Any, T]) -> T:
        """Await a run while the bar moves. Cancelling it cancels the run."""
        self._progress.update(self._task, description=name)
        mover = asyncio.create_task(self._move(), name="progress bar")
        try:
            return await measuring
        finally:
            mover.cancel()
            await asyncio.gather(mover, return_exceptions=True)

    async def _move(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._progress.update(self._task, advance=TICK_S)
            self._progress.refresh()
