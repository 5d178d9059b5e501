"""What the commands of `agent-tts bench` do: the node that is measured, running or started here, and each measurement.

A command raises `SettingsError` for options that do not go together.
"""

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

from agent_tts.bench import load as loads
from agent_tts.bench import mix as mixes
from agent_tts.bench import report, scenario
from agent_tts.bench.load import Outcome
from agent_tts.bench.node import MeasuredNode, own_node, pin
from agent_tts.bench.runner import (
    ScenarioResult,
    is_clean,
    measure,
    measured_calls,
    request_figures,
    request_runs,
    rtc_figures,
)
from agent_tts.bench.scenario import LLM_MS, MIX_S, REQUEST_S, SPOKEN_S, Scenario
from agent_tts.bench.statistics import serving
from agent_tts.cli import bench as cli
from agent_tts.cli.options import TERMINATED, complain
from agent_tts.cli.progress import progress
from agent_tts.client.connection import http_url
from agent_tts.client.moving import connect
from agent_tts.doctor.gpu import gpus
from agent_tts.errors import SettingsError, needing
from agent_tts.serve.fronts import FEWEST_CONNECTIONS

if TYPE_CHECKING:
    from agent_tts.model.config import ModelConfig, ModelType

T = TypeVar("T")
# What a node tells of itself, figures of runs, and every time to first audio of each load, ms.
Told = tuple[dict[str, Any], list[dict[str, Any]], list[tuple[str, list[float | None]]]]

# What `bench frame` has in 8 bits: weights, cache.
FP8 = {"nothing": (False, False), "cache": (False, True), "weights": (True, False), "both": (True, True)}

DEFAULT_RATES = "1,10,20"
SPARE_CONNECTIONS = 16
REQUESTS_PER_S = 10_000.0  # handshakes from the address of the clients
IN_PHASE_S = 1.0  # within which callers begin
OVER_SLOTS = 8  # with a request for each slot and one more for each so many, no slot waits for a client

# Columns of tables, see `report.table_of`.
ERRORS = ("errors", "errors")
REQUESTS = [
    *(("load", "load"), ("requests", "requests"), ("connect ms", "connect_ms.p50")),
    *(("first audio p50", "ttfa_ms.p50"), ("p95", "ttfa_ms.p95"), ("p99", "ttfa_ms.p99"), ("most", "ttfa_ms.p100")),
    *(("audible p50", "audible_ms.p50"), ("p95", "audible_ms.p95"), ("packets late p99", "late_ms.p99")),
    *(("gaps", "gaps"), ("callers", "callers_with_gaps"), ("longest", "longest_gap_ms")),
    *(("audio s/s", "audio_s_per_s"), ("in all", "sum_audio_s_per_s")),
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
    options: cli.OwnNodeOptions, session: Mapping[str, Any], **settings: object
) -> AsyncIterator[tuple[MeasuredNode, dict[str, Any]]]:
    """The running node that the options name, or a new one with these settings; and what it tells of itself.

    With the end of the block, that also has the GPUs that a new one ran on. The node is asked for the session, fields
    of `session.update`, before anything is measured. Raises SpeechError: it cannot be reached, does not come up, or
    refuses the session.
    """
    if isinstance(options, cli.NodeOptions) and options.url is not None:
        if "limits__max_frames" in settings:
            raise SettingsError("--frames is for a node of our own: a running one has its own limits.max_frames")
        if options.openai:
            asked = {"model": "tts-1", "voice": session.get("voice") or "alloy"}
            url = http_url(options.url.rstrip("/").removesuffix("/v1"))
            yield MeasuredNode(url, key=options.key, session=asked), {"engine": options.url, **asked}
            return
        node = MeasuredNode(http_url(options.url), key=options.key, session=dict(session))
        yield node, await _info(node)
        return
    settings |= options.settings
    with checkpoint(options) as model:
        asked = model.session(session) if model else dict(session)
        async with own_node(**settings, **(model.settings if model else {})) as own:
            node = replace(own, session=asked)
            info = {**await _info(node), "settings": settings, "session": asked}
            if model:
                info["model_type"] = model.config.tts_model_type
            yield node, info
            if present := await asyncio.to_thread(gpus):  # while its memory is still taken
                info["gpus"] = present


@contextmanager
def checkpoint(options: cli.OwnNodeOptions) -> Iterator[BenchCheckpoint | None]:
    """The checkpoint that the options ask for, None without one; a synthetic one is removed with the block."""
    if not options.has_model:
        yield None
        return
    with needing("qwen"):
        from agent_tts.bench.checkpoint import SyntheticClone, add_clones, write
        from agent_tts.model.config import ModelConfig
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


async def _info(node: MeasuredNode) -> dict[str, Any]:
    """What a node tells of itself; it has accepted the session, too."""
    async with connect(node.url, api_key=node.key, **node.session) as connection:
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


def measured(
    options: Any, scenarios: Sequence[Scenario], settings: Mapping[str, object]
) -> tuple[dict[str, Any], list[ScenarioResult]]:
    """Run scenarios with the same session on the node of a command's options, one after the other: what it tells of
    itself, and the results. A node that is started has these settings, whose keys have "__" for dots.
    """
    node_options: cli.OwnNodeOptions = options.node
    processes: cli.ProcessOptions = options.processes
    front_cores = cli.cores("--front-cores", processes.front_cores)
    how: dict[str, Any] = {"clients": processes.clients, "cores": cli.cores("--client-cores", processes.client_cores)}
    if front_cores and isinstance(node_options, cli.NodeOptions) and node_options.url is not None:
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


def room(wanted: Sequence[Scenario], frames: int | None, slots: int | None = None) -> dict[str, object]:
    """Settings of a node that is started: connections for whoever may come at once, and slots, or so many of them."""
    most = max(one.concurrency or math.ceil((one.rate or 0) * SPOKEN_S) for one in wanted)
    more = wanted[0].most_traced + wanted[0].beside
    settings = limits(most + more, frames)
    if slots is not None:
        return settings | {"slots": slots, "timeouts__queue_s": REQUEST_S}
    return settings | ({"slots": most + more} if wanted[0].concurrency or more else {})


def at_random(rates: Sequence[float], **fields: Any) -> list[Scenario]:
    """Requests at random times, so many a second in each run."""
    return [scenario.requests(f"{rate:g}/s", rate=rate, **fields) for rate in rates]


def at_once(sizes: Sequence[int], name: str = "at once", **fields: Any) -> list[Scenario]:
    """So many requests at once in each run, which begin in the first half of the warm-up, or within a second."""
    if fields.get("in_phase"):
        name, fields = "in phase", fields | {"ramp_s": IN_PHASE_S}
    fields = {"ramp_s": fields["warmup_s"] / 2} | fields
    return [scenario.requests(f"{size} {name}", concurrency=size, **fields) for size in sizes]


def saturated(slots: int, **fields: Any) -> list[Scenario]:
    """So many slots, all busy, with whole texts and unpaced audio: no slot waits for a client."""
    fields |= {"words_every_ms": 0, "session": fields["session"] | {"lead_ms": None}}
    return at_once([slots + math.ceil(slots / OVER_SLOTS)], **fields)


def cpu_columns(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The columns with the CPU time of each kind of process."""
    return [(f"cpu % {name}", f"cpu_percent.{name}") for name in runs[0]["cpu_percent"]]


def told(options: Any, wanted: Sequence[Scenario], settings: Mapping[str, object], about: str) -> Told:
    """Measure requests, and print the figures of `runner.request_runs`."""
    info, results = measured(options, wanted, settings)
    found = list(zip(wanted, results, strict=True))
    runs = [run for pair in found for run in request_runs(*pair)]
    columns = [*REQUESTS, *cpu_columns(runs), ("front us/frame", "us_per_frame.front"), ERRORS]
    title = f"{info['engine']}, {info['model']}: time to first audio and gaps in ms, {about}"
    print_runs(title, columns, runs, "{load}")
    print_memory(info)
    return info, runs, [(one.name, [call.ttfa_ms for call in measured_calls(result)]) for one, result in found]


def print_runs(title: str, columns: Sequence[tuple[str, str]], runs: Sequence[dict[str, Any]], name: str) -> None:
    """Print runs as `report.table_of` does, and the processes of each, whose `name` is made of its figures."""
    report.table_of(title, columns, runs)
    for before, run in zip([{}, *runs], runs, strict=False):
        if run["cpu_percent_each"] is not before.get("cpu_percent_each"):  # kinds of calls have the same processes
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


def hold(kind: str, options: cli.LoadOptions | cli.SoakOptions, loads: Loads, seconds: float) -> None:
    """Put loads on one node: a table each, and perhaps a file. Raises SpeechError, typer.Exit."""
    outputs = cli.Outputs(json=options.json)
    # More slots than calls: no call waits for one, and the load is on the front.
    settings = {"slots": 3 * scenario.SESSIONS, "limits__rtc_peers": 48}

    async def main() -> tuple[dict[str, Any], dict[str, Outcome]]:
        async with target(options.node, {"voice": options.voice}, **settings) as (node, info):
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


# ---------------------------------------------------------------- the commands


def _fields(options: cli.ServeOptions | cli.TraceOptions | cli.StreamsOptions, **fields: Any) -> dict[str, Any]:
    """What the scenarios of a command with texts share."""
    text = options.text
    return fields | {"words_every_ms": text.words_every_ms, "texts": text.texts, "session": options.voice.session}


def serve(options: cli.ServeOptions) -> None:
    frames, concurrency, saturate = options.text.frames, options.concurrency, options.saturate
    burst, beside, in_phase = options.burst, options.beside, options.in_phase
    if sum(option is not None for option in (options.rate, concurrency, saturate)) > 1:
        raise SettingsError("--rate, --concurrency and --saturate are ways to load a node: choose one")
    if in_phase and concurrency is None:
        raise SettingsError("--in-phase is of requests at once: add --concurrency 496")
    fields = _fields(options, warmup_s=options.warmup, duration_s=options.duration, beside=beside, in_phase=in_phase)
    fields["trace"] = scenario.burst(burst, options.warmup, options.text.texts)
    if saturate is not None:
        wanted = saturated(saturate, **fields)
    elif concurrency is not None:
        wanted = at_once(cli.numbers("--concurrency", concurrency, int), **fields)
    elif burst and options.rate is None:
        wanted = [scenario.requests("burst", **fields)]
    else:
        wanted = at_random(cli.numbers("--rate", options.rate or DEFAULT_RATES, float), **fields)
    every_ms = wanted[0].words_every_ms
    pace = f"a word every {every_ms:g} ms" if every_ms else "text at once"
    pace += f"; {burst} more within 1 s, a word every {LLM_MS:g} ms" if burst else ""
    info, runs, times = told(options, wanted, room(wanted, frames, saturate), pace)
    options.outputs.write("serve", info, runs, lambda plot: plot.times(f"{info['engine']} engine", times))


def mix(options: cli.MixOptions) -> None:
    info, runs, times = played(options)
    options.outputs.write("mix", info, runs, lambda plot: plot.times(f"{info['engine']} engine", times))


def played(options: cli.MixOptions) -> Told:
    """Play a trace to a node, or to a server of OpenAI's API, which gets a text when its last word is there."""
    calls = mixes.calls_of(options.trace, options.conversations, options.seconds, options.seed)
    peers = {"limits__rtc_peers": 1 + sum(call.transport == "rtc" for call in calls)}
    if options.node.openai:
        calls = [replace(call, transport="http", session={}) for call in calls]
    session, end_s = options.voice.session, calls[-1].after_s + SPOKEN_S
    wanted = [Scenario(name=options.trace, trace=calls, session=session, duration_s=end_s, tail_s=MIX_S)]
    return told(options, wanted, room(wanted, options.frames) | peers, "of all calls, and of each kind")


def trace(options: cli.TraceOptions) -> None:
    with needing("otel"):
        from agent_tts.bench import trace as stages
    fields = _fields(options, warmup_s=options.warmup, duration_s=options.duration, traced=True)
    wanted = at_random(cli.numbers("--rate", options.rate, float), **fields)
    with serving(stages.Collector(), "collector") as spans:
        settings = room(wanted, options.text.frames) | {"telemetry__endpoint": spans.url, "telemetry__stages": True}
        info, results = measured(options, wanted, settings)
    points = spans.events("context")
    runs = []
    for one, result in zip(wanted, results, strict=True):
        run = stages.figures(one.name, measured_calls(result), points)
        runs.append(run)
        counted = f"{run['requests']} requests, {run['untraced']} untraced, errors {report.counted(run['errors'])}"
        title = f"{info['engine']}, {info['model']}: {one.name}, {counted}"
        if run["untraced"] < run["requests"]:
            stages.show(title, run)
        else:
            print(f"{title}: NO FIGURES")
        print_processes(one.name, request_figures(one, result))
    cli.Outputs(json=options.json).write("trace", info, runs)


def streams(options: cli.StreamsOptions) -> None:
    sizes = cli.numbers("--streams", options.streams, int)
    fields = _fields(options, ramp_s=options.ramp, warmup_s=options.ramp, duration_s=options.seconds)
    wanted = at_once(sizes, "callers", **fields)
    ahead = f"a word every {options.text.words_every_ms:g} ms, audio {options.voice.lead_ms} ms ahead"
    info, runs, _ = told(options, wanted, room(wanted, options.text.frames), ahead)
    clean = max((size for size, run in zip(sizes, runs, strict=True) if is_clean(run)), default=0)
    print(f"largest number without a gap: {clean}")
    series = {name: [run["cpu_percent"][name] for run in runs] for name in runs[0]["cpu_percent"]}
    title = f"{info['engine']} engine, {clean} callers without a gap"
    options.outputs.write("streams", info, runs, lambda plot: plot.lines(title, sizes, series, ("callers", "CPU, %")))


def rtc(options: cli.RtcOptions) -> None:
    sizes = cli.numbers("--peers", options.peers, int)
    settings = {"slots": max(sizes), "limits__rtc_peers": 2 * max(sizes), **limits(2 * max(sizes))}
    session = options.voice.session
    wanted = [scenario.rtc_peers(size, options.seconds, options.words_every_ms, session) for size in sizes]
    info, results = measured(options, wanted, settings)
    runs = list(map(rtc_figures, results))
    packets = [(name, name) for name in ("peers", "packets", "lost")]
    packets += [("late ms p50", "lateness_ms.p50"), ("p99", "lateness_ms.p99"), ("most", "lateness_ms.p100")]
    packets += [("p99 of the worst", "worst_p99_ms")]
    title = f"{info['engine']}, {info['model']}: WebRTC packets against their 20 ms grid"
    print_runs(title, [*packets, *cpu_columns(runs), ERRORS], runs, "{peers} peers")
    print_memory(info)
    series = {name: [run["lateness_ms"][name] for run in runs] for name in ("p50", "p99")}
    title, labels = f"{info['engine']} engine", ("WebRTC peers", "lateness of packets, ms")
    options.outputs.write("rtc", info, runs, lambda plot: plot.lines(title, sizes, series, labels))


def fronts(options: cli.FrontsOptions) -> None:
    sizes, slots = cli.numbers("--fronts", options.fronts, int), options.slots
    info: dict[str, Any] = {}
    runs: list[dict[str, Any]] = []
    fields = {"warmup_s": options.warmup, "duration_s": options.duration, "session": options.voice.session}
    for size in sizes:
        wanted = saturated(slots * size, **fields)
        settings = room(wanted, options.frames, slots) | {"engines": size, "fronts": size}
        info, (result,) = measured(options, wanted, settings)
        runs.append({"fronts": size, **request_figures(wanted[0], result)})
    found = [run["frames_per_s"] for run in runs]
    shown = [run | {"times": round(run["frames_per_s"] / found[0], 2)} for run in runs]
    columns = [("fronts", "fronts"), ("frames/s", "frames_per_s"), ("times the first", "times")]
    columns += [(f"{kind} us/frame", f"us_per_frame.{kind}") for kind in runs[-1]["us_per_frame"]]
    print_runs(f"{info['engine']}: {slots} busy slots a front", [*columns, ERRORS], shown, "{fronts} fronts")
    series = {"measured": found, "in proportion to the first": [found[0] * size / sizes[0] for size in sizes]}
    title, labels = f"{info['engine']} engine", ("front processes", "frames a second")
    options.outputs.write("fronts", info, runs, lambda plot: plot.lines(title, sizes, series, labels))


def load(options: cli.LoadOptions) -> None:
    seconds = 60 * options.minutes
    known: Loads = {
        "sessions": lambda node: loads.sessions(node, seconds),
        "mixed": lambda node: loads.mixed(node, seconds),
        "storm": loads.storm,
    }
    wanted = cli.names("--only", options.only, known)
    about_s = len(wanted) * (seconds + scenario.TAIL_S)
    hold("load", options, {name: known[name] for name in wanted}, about_s)


def soak(options: cli.SoakOptions) -> None:
    contexts, rate = options.contexts, options.rate

    async def held(node: MeasuredNode) -> Outcome:
        wanted = scenario.soak(contexts, rate, options.vanish, node.session)
        return await loads.soak(node, wanted, options.kill_every)

    hold("soak", options, {"soak": held}, contexts / rate + scenario.TAIL_S)


def frame(options: cli.FrameOptions) -> None:
    if (options.synthetic is None) == (options.model is None):
        raise SettingsError("--synthetic 1.7B and --model FOLDER are two ways to have a model: choose one")
    kinds = options.fp8.split(",")
    if kinds != [kind for kind in FP8 if kind in kinds]:  # weights in 8 bits replace the others
        raise SettingsError(f"--fp8 {options.fp8}: must be of {','.join(FP8)}, in this order")
    if kinds != ["nothing"] and not options.fused:
        raise SettingsError("--fp8 is for fused kernels alone: leave --no-fused out")
    sizes, outputs = cli.numbers("--batches", options.batches, int), cli.Outputs(json=options.json)
    with needing("qwen"):
        from agent_tts.bench import frame as frames
        from agent_tts.model.quantised import EightBits
    name = f"synthetic {options.synthetic}" if options.synthetic is not None else "checkpoint"
    speech = frames.synthetic(options.synthetic) if options.synthetic else frames.load(options.model or Path())
    runs = [
        run
        for kind in kinds
        for run in frames.measure(speech, sizes, options.context, EightBits(*FP8[kind]), fused=options.fused)
    ]
    versions = frames.versions()
    cells = [{part: f"{ms:.2f}" for part, ms in run["ms"].items()} for run in runs]
    shown = [run | row | {"fp8": " ".join(run["fp8"])} for run, row in zip(runs, cells, strict=True)]
    columns = [*((name, name) for name in ("fp8", "batch", *frames.PARTS)), ("audio s/s", "audio_s_per_s")]
    title = f"{versions['gpu']}, torch {versions['torch']}: ms a frame, context {options.context}"
    report.table_of(title, columns, shown)
    outputs.write("frame", {"model": name, **versions}, runs)
