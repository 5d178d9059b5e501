"""Runs of `agent-tts bench`: the node that is measured, running or started here, and what is asked of it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from agent_tts.bench import report, scenario
from agent_tts.bench.load import Outcome
from agent_tts.bench.node import own_node, pin
from agent_tts.bench.runner import MeasuredNode, ScenarioResult, measure
from agent_tts.bench.scenario import REQUEST_S, Scenario
from agent_tts.cli.bench_options import (
    ModelOptions,
    NodeOptions,
    Outputs,
    OwnNodeOptions,
    ProcessOptions,
    cores,
    counts,
    numbers,
)
from agent_tts.cli.options import TERMINATED, complain
from agent_tts.client.connection import http_url, stream_url
from agent_tts.client.moving import connect
from agent_tts.doctor.gpu import gpus
from agent_tts.errors import SettingsError
from agent_tts.serve.fronts import FEWEST_CONNECTIONS

if TYPE_CHECKING:
    from agent_tts.model.config import ModelConfig, ModelType

T = TypeVar("T")

DEFAULT_RATES = "1,10,20"
SPARE_CONNECTIONS = 16
REQUESTS_PER_S = 10_000.0  # handshakes from the address of the clients
SPOKEN_S = 10.0  # no request takes longer, and each has a connection for itself
OVER_SLOTS = 8  # with a request for each slot and one more for each so many, no slot waits for a client

# Columns of tables, see `report.table_of`.
ERRORS = ("errors", "errors")
REQUESTS = [
    *(("load", "load"), ("requests", "requests"), ("connect ms", "connect_ms.p50")),
    *(("first audio p50", "ttfa_ms.p50"), ("p95", "ttfa_ms.p95"), ("p99", "ttfa_ms.p99"), ("most", "ttfa_ms.p100")),
    *(("audible p50", "audible_ms.p50"), ("p95", "audible_ms.p95")),
    *(
        ("gaps", "gaps"),
        ("callers", "callers_with_gaps"),
        ("longest", "longest_gap_ms"),
        ("audio s/s", "audio_s_per_s"),
    ),
]


@dataclass(frozen=True, slots=True)
class BenchCheckpoint:
    """The checkpoint of a node that was started here."""

    folder: Path
    config: ModelConfig
    settings: Mapping[str, str]  # of the node, keys with "__" for the dots

    def session(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The session that is asked for; without a voice in it, one that this type of checkpoint has."""
        from agent_tts.bench.checkpoint import INSTRUCTIONS, XVECTOR

        usual: dict[str, dict[str, Any]] = {"base": {"voice": XVECTOR}, "voice_design": {"instructions": INSTRUCTIONS}}
        given = {name: value for name, value in wanted.items() if value is not None or name == "lead_ms"}
        return usual.get(self.config.tts_model_type, {}) | given


@asynccontextmanager
async def target(
    options: ModelOptions, session: Mapping[str, Any], **settings: object
) -> AsyncIterator[tuple[MeasuredNode, dict[str, Any]]]:
    """The running node that the options name, or a new one with these settings; and what it tells of itself.

    With the end of the block, that also has the GPUs that a new one ran on.

    Args:
        session: fields of `session.update`; the node is asked for them before anything is measured.
    Raises:
        SpeechError: the node cannot be reached, does not come up, or refuses the session.
    """
    if isinstance(options, NodeOptions) and options.url is not None:
        node = MeasuredNode(stream_url(options.url), http_url(options.url), options.key, session=dict(session))
        yield node, await _info(node)
        return
    settings |= options.settings
    with checkpoint(options) as model:
        asked = model.session(session) if model else dict(session)
        async with own_node(**settings, **(model.settings if model else {})) as own:
            node = MeasuredNode(stream_url(own.url), own.url, None, own.pid, own.pids, asked)
            info = {**await _info(node), "settings": settings, "session": asked}
            if model:
                info["model_type"] = model.config.tts_model_type
            yield node, info
            if present := await asyncio.to_thread(gpus):  # while its memory is still taken
                info["gpus"] = present


@contextmanager
def checkpoint(options: ModelOptions) -> Iterator[BenchCheckpoint | None]:
    """The checkpoint that the options ask for, None without one; a synthetic one is removed with the block."""
    if not options.has_model:
        yield None
        return
    try:
        from agent_tts.bench.checkpoint import SyntheticClone, add_clones, write
        from agent_tts.model.config import ModelConfig
    except ImportError as error:
        raise missing_package(error) from error
    with ExitStack() as stack:
        made = Path(stack.enter_context(TemporaryDirectory(prefix="agent-tts-")))
        if options.model is not None:
            folder = options.model.absolute()
            config = ModelConfig.read(folder)
        else:
            size, model_type = options.synthetic or "", options.type_ or "custom_voice"
            folder = made / f"synthetic-{size}"
            print(f"writing a {size} {model_type} checkpoint with random weights", file=sys.stderr)
            config = write(folder, size=size, model_type=cast("ModelType", model_type))
        settings = {"qwen3__models": str(folder)}
        if config.tts_model_type == "base":
            add_clones(made / "voices", SyntheticClone.synthetic(config.talker.hidden_size, config.codec.codebook_size))
            settings["voices__folder"] = str(made / "voices")
        yield BenchCheckpoint(folder, config, settings)


def missing_package(error: ImportError) -> SettingsError:
    """The error for a package that comes with agent-tts[qwen]."""
    return SettingsError(f"{error.name} is not installed: pip install 'agent-tts[qwen]'")


async def _info(node: MeasuredNode) -> dict[str, Any]:
    """What a node tells of itself; it has accepted the session, too."""
    async with connect(node.ws_url, api_key=node.key, **node.session) as connection:
        info = connection.info
        return {"engine": info.engine, "model": info.model, "limits": info.limits}


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop that nodes use. SIGTERM cancels it as Ctrl-C does, so that no node is left."""
    from agent_tts.serve.processes.process import event_loop_factory

    async def until_terminated() -> T:
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await main

    try:
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            return runner.run(until_terminated())
    except asyncio.CancelledError:
        raise typer.Exit(TERMINATED) from None


@contextmanager
def progress(name: str) -> Iterator[None]:
    """Show on a terminal's stderr that a run is under way, and how long it has taken."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        shown.add_task(name, total=None)
        yield


def measured(
    options: Any, scenarios: Sequence[Scenario], settings: Mapping[str, object]
) -> tuple[dict[str, Any], list[ScenarioResult]]:
    """Run scenarios with the same session on one node, one after the other: what it tells of itself, and the results.

    Args:
        options: of a command: `node` and `processes`.
        settings: of a node that is started, keys with "__" for the dots.
    """
    node_options: OwnNodeOptions = options.node
    processes: ProcessOptions = options.processes
    front_cores = cores("--front-cores", processes.front_cores)
    how: dict[str, Any] = {"clients": processes.clients, "cores": cores("--client-cores", processes.client_cores)}
    if front_cores and isinstance(node_options, NodeOptions) and node_options.url is not None:
        raise SettingsError("--front-cores is for a node of our own: leave it out with --url, AGENT_TTS_URL")

    async def main() -> tuple[dict[str, Any], list[ScenarioResult]]:
        async with target(node_options, scenarios[0].session, **settings) as (node, info):
            if front_cores:
                pin(node.pids, "front", front_cores)
            results = []
            for wanted in scenarios:
                with progress(f"{wanted.name}, {wanted.end_s:g} s"):
                    results.append(await measure(node, replace(wanted, session=node.session), **how))
            return info, results

    return run(main())


def limits(connections: int, frames: int | None = None) -> dict[str, object]:
    """Settings of a node that is started: room for so many connections, some to spare, and all their handshakes."""
    settings: dict[str, object] = {
        "limits__connections": max(FEWEST_CONNECTIONS, connections + SPARE_CONNECTIONS),
        "limits__requests_per_s": REQUESTS_PER_S,
    }
    return settings if frames is None else settings | {"limits__max_frames": frames}


def refuse_frames(node: NodeOptions, frames: int | None) -> None:
    """Raise SettingsError: --frames is given for a running node."""
    if frames is not None and node.url is not None:
        raise SettingsError("--frames is for a node of our own: a running one has its own limits.max_frames")


def serve_scenarios(
    rates: str | None,
    concurrencies: str | None,
    saturate: int | None,
    warmup_s: float,
    frames: int | None = None,
    **fields: Any,
) -> tuple[list[Scenario], dict[str, object]]:
    """The loads that the options ask for, and the settings that a node needs for them. Raises SettingsError."""
    if sum(option is not None for option in (rates, concurrencies, saturate)) > 1:
        raise SettingsError("--rate, --concurrency and --saturate are ways to load a node: choose one")
    fields["warmup_s"] = warmup_s
    if concurrencies is None and saturate is None:
        found = numbers("--rate", rates or DEFAULT_RATES)
        loads = [scenario.requests(f"{rate:g}/s", rate=rate, **fields) for rate in found]
        return loads, limits(math.ceil(max(found) * SPOKEN_S), frames)
    if saturate is not None:
        sizes = [saturate + math.ceil(saturate / OVER_SLOTS)]
        fields |= {"words_every_ms": 0, "session": fields["session"] | {"lead_ms": None}}
        settings: dict[str, object] = {"slots": saturate, "timeouts__queue_s": REQUEST_S}
    else:
        sizes = counts("--concurrency", concurrencies or "")
        settings = {"slots": max(sizes)}
    loads = [scenario.requests(f"{size} at once", concurrency=size, ramp_s=warmup_s / 2, **fields) for size in sizes]
    return loads, settings | limits(max(sizes), frames)


def cpu_columns(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The columns with the CPU time of each kind of process."""
    return [(f"cpu % {name}", f"cpu_percent.{name}") for name in runs[0]["cpu_percent"]]


def print_requests(title: str, runs: Sequence[dict[str, Any]]) -> None:
    """Print `figures.request_figures` of loads."""
    print_runs(title, [*REQUESTS, *cpu_columns(runs), ("front us/frame", "us_per_frame.front"), ERRORS], runs, "{load}")


def print_runs(title: str, columns: Sequence[tuple[str, str]], runs: Sequence[dict[str, Any]], name: str) -> None:
    """Print runs as `report.table_of` does, and the processes of each, whose `name` is made of its figures."""
    report.table_of(title, columns, runs)
    for run in runs:
        print_processes(name.format_map(run), run)


def print_processes(name: str, run: Mapping[str, Any]) -> None:
    """Print the CPU time of each process where there are several of a kind, and whether the clients were the limit."""
    each = run["cpu_percent_each"]
    kinds = [
        f"{kind} {', '.join(f'{percent:.0f}' for one, percent in each.items() if one.partition(' ')[0] == kind)}"
        for kind in run["cpu_percent"]
    ]
    late = f"loops {run['client_lag_ms'].get('p99')} ms late at p99"
    print(f"{name}: % of a core: {'; '.join(kinds)}; {run['clients']} clients, {late}")
    if run["client_limit"] is not None:
        print(f"{name}: NO FIGURE OF THE NODE: the clients were the limit: {run['client_limit']}")


def print_memory(info: Mapping[str, Any]) -> None:
    """Print the memory in use of each GPU that the node could use."""
    for number, gpu in enumerate(info.get("gpus", ())):
        used, total = gpu["memory_used_mib"], gpu["memory_total_mib"]
        print(f"GPU {number}, {gpu['name']}, driver {gpu['driver']}: {used} of {total} MiB in use")


TITLES = {
    "sessions": f"{scenario.SESSIONS} WebSocket sessions at once, on average",
    "mixed": "WebSockets, HTTP and WebRTC, texts of 5 to 2000 characters in 8 languages, 10 % barge-in",
    "storm": f"{scenario.IDLE_CONNECTIONS} connections in {scenario.IDLE_RAMP_S:g} s that never send a byte, and "
    f"{scenario.STORM_CALLS} sessions",
    "soak": "short contexts, clients that vanish, an engine that is killed",
}
Loads = Mapping[str, Callable[[MeasuredNode], Awaitable[Outcome]]]


def hold(
    kind: str, options: OwnNodeOptions, loads: Loads, voice: str | None, json: Path | None, seconds: float
) -> None:
    """Put loads on one node: a table each, and perhaps a file. Raises SpeechError, typer.Exit."""
    outputs = Outputs(json=json)
    # More slots than calls: no call waits for one, and the load is on the front.
    settings = {"slots": 3 * scenario.SESSIONS, "limits__rtc_peers": 48}

    async def main() -> tuple[dict[str, Any], dict[str, Outcome]]:
        async with target(options, {"voice": voice}, **settings) as (node, info):
            with progress(f"{', '.join(loads)}: about {seconds:.0f} s"):
                return info, {name: await held(node) for name, held in loads.items()}

    info, outcomes = run(main())
    runs = []
    for name, (figures, promises) in outcomes.items():
        rows = [
            (one.what, *("-" if n is None else f"{n:g}" for n in (one.found, one.most)), "yes" if one.kept else "NO")
            for one in promises
        ]
        report.table(f"{name}, {info['engine']}: {TITLES[name]}", ("promise", "found", "at most", "kept"), rows)
        print(
            f"{figures['visits']} sessions, {figures['mean_in_flight']} at once on average and"
            f" {figures['peak_in_flight']} at most; first audio p50 {figures['ttfa_ms']['p50']} ms; client lag p99"
            f" {figures['client_lag_ms']['p99']} ms; errors {report.counted(figures['errors'])}\n"
        )
        runs.append({"load": name, **figures, "promises": [asdict(one) | {"kept": one.kept} for one in promises]})
    outputs.write(kind, info, runs)
    if broken := sum(not promise.kept for _, promises in outcomes.values() for promise in promises):
        raise complain(f"{broken} of the promises above are broken", 1)
