"""Runs of `agent-tts bench`: from options to a node, its load, and a report."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_tts.bench import load, report, scenario
from agent_tts.bench.figures import is_clean, measured_calls, rtc_figures, serve_figures, stream_figures
from agent_tts.bench.load import LoadOutcome
from agent_tts.bench.runner import MeasuredNode, ScenarioResult, measure
from agent_tts.bench.scenario import REQUEST_S, TAIL_S, Scenario
from agent_tts.cli.bench_options import NodeOptions, Outputs, OwnNodeOptions, counts, numbers
from agent_tts.cli.bench_target import missing_package, progress, run, target
from agent_tts.cli.reporting import complain
from agent_tts.config.settings import Limits
from agent_tts.errors import SettingsError

DEFAULT_RATES = "1,10,20"
SPARE_CONNECTIONS = 16
SPOKEN_S = 10.0  # no request takes longer, and each has a connection for itself
OVER_SLOTS = 8  # with a request for each slot and one more for each so many, no slot waits for a client

Measured = tuple[Scenario, ScenarioResult, dict[str, Any]]


def measured(
    node: NodeOptions,
    scenarios: Sequence[Scenario],
    settings: Mapping[str, object],
    figures: Callable[[Scenario, ScenarioResult], dict[str, Any]],
    clients: int | None = None,
) -> tuple[dict[str, Any], list[Measured]]:
    """Run scenarios with the same session on one node, one after the other: what it tells of itself, and figures.

    Args:
        settings: of a node that is started, keys with "__" for the dots.

    Raises:
        SpeechError: the node cannot be measured.
    """

    async def main() -> tuple[dict[str, Any], list[Measured]]:
        async with target(node, scenarios[0].session, **settings) as found:
            runs = []
            for wanted in scenarios:
                asked = replace(wanted, session=found.node.session)
                with progress(f"{asked.name}, {asked.end_s:g} s"):
                    result = await measure(found.node, asked, clients=clients)
                runs.append((asked, result, figures(asked, result)))
            return found.info, runs

    return run(main())


def connections(least: int) -> int:
    """Setting for so many connections and some to spare."""
    return max(Limits().connections, least + SPARE_CONNECTIONS)


def serve_scenarios(
    rates: str | None, concurrencies: str | None, saturate: int | None, warmup_s: float, **fields: Any
) -> tuple[list[Scenario], dict[str, object]]:
    """The loads that the options ask for, and the settings that a node needs for them.

    Raises:
        SettingsError: the options make no sense.
    """
    if sum(option is not None for option in (rates, concurrencies, saturate)) > 1:
        raise SettingsError("--rate, --concurrency and --saturate are ways to load a node: choose one")
    fields["warmup_s"] = warmup_s
    if concurrencies is None and saturate is None:
        found = numbers("--rate", rates or DEFAULT_RATES)
        most = max(Limits().connections, math.ceil(max(found) * SPOKEN_S))
        return [scenario.requests(f"{rate:g}/s", rate=rate, **fields) for rate in found], {"limits__connections": most}
    if saturate is not None:
        sizes = [saturate + math.ceil(saturate / OVER_SLOTS)]
        fields |= {"words_every_ms": 0, "session": fields["session"] | {"lead_ms": None}}
        settings: dict[str, object] = {"slots": saturate, "timeouts__queue_s": REQUEST_S}
    else:
        sizes = counts("--concurrency", concurrencies or "")
        settings = {"slots": max(sizes)}
    loads = [scenario.requests(f"{size} at once", concurrency=size, ramp_s=warmup_s / 2, **fields) for size in sizes]
    return loads, settings | {"limits__connections": connections(max(sizes))}


def run_serve(
    node: NodeOptions,
    loads: Sequence[Scenario],
    settings: Mapping[str, object],
    clients: int | None,
    outputs: Outputs,
) -> None:
    """`agent-tts bench serve`; raises `SettingsError` for its options, `SpeechError` of the node."""
    info, found = measured(node, loads, settings, serve_figures, clients)
    rows = [
        (
            *(figures["load"], figures["requests"], *figures["ttfa_ms"].values()),
            *(figures["underruns"], figures["audio_s_per_s"], figures["peak_in_flight"], figures["front_us_per_frame"]),
            *(figures["clients"], figures["client_lag_ms"]["p99"], report.counted(figures["errors"])),
        )
        for _, _, figures in found
    ]
    every_ms = loads[0].words_every_ms
    pace = f"a word every {every_ms:g} ms" if every_ms else "text at once"
    columns = (
        *("load", "requests", "p50", "p95", "p99", "most", "underruns", "audio s/s", "peak", "front us/frame"),
        *("clients", "lag p99", "errors"),
    )
    report.table(f"{info['engine']}, {info['model']}: time to first audio in ms, {pace}", columns, rows)
    print_memory(info)

    def draw(picture: report.Plot) -> None:
        times = ((load.name, load_times(result)) for load, result, _ in found)
        picture.times(f"{info['engine']} engine", [(name, ttfa) for name, ttfa in times if ttfa])

    outputs.write("serve", info, [figures for _, _, figures in found], draw)


def load_times(result: ScenarioResult) -> list[float]:
    """Every time to first audio of a measurement, in ms."""
    return [ms for call in measured_calls(result) if (ms := call.ttfa_ms) is not None]


def run_streams(
    node: NodeOptions,
    numbers_of_streams: str,
    seconds: float,
    ramp_s: float,
    per_connection: int,
    session: dict[str, Any],
    clients: int | None,
    outputs: Outputs,
) -> None:
    """`agent-tts bench streams`; raises `SettingsError` for its options, `SpeechError` of the node."""
    sizes = counts("--streams", numbers_of_streams)
    settings = {
        "slots": max(sizes),
        "limits__connections": connections(max(sizes)),
        "limits__contexts_per_session": per_connection,
    }
    wanted = [scenario.streams(size, seconds, ramp_s, per_connection, session) for size in sizes]
    info, found = measured(node, wanted, settings, stream_figures, clients)
    runs = [figures for _, _, figures in found]
    rows = [
        (
            *(run["streams"], run["underruns"], run["gaps_s"]),
            *(run["margin_ms"].get(name) for name in ("p50", "p1", "p0")),
            *run["cpu_percent"].values(),
            *(run["clients"], run["client_lag_ms"]["p99"], report.counted(run["ended"])),
        )
        for run in runs
    ]
    columns = (
        *("streams", "with gaps", "gaps s", "margin ms p50", "p1", "least", *_cpu_columns(runs)),
        *("clients", "lag p99", "ended early"),
    )
    title = f"{info['engine']}, {info['model']}: streams of {seconds:g} s, paced {session['lead_ms']} ms ahead"
    report.table(title, columns, rows)
    clean = max((run["streams"] for run in runs if is_clean(run)), default=0)
    print(f"largest number without a gap: {clean}")
    print_memory(info)

    def draw(picture: report.Plot) -> None:
        series = {name: [run["cpu_percent"][name] for run in runs] for name in runs[0]["cpu_percent"]}
        picture.lines(f"{info['engine']} engine, {clean} streams without a gap", sizes, series, ("streams", "CPU, %"))

    outputs.write("streams", info, runs, draw)


def run_rtc(node: NodeOptions, peers: str, seconds: float, voice: str | None, outputs: Outputs) -> None:
    """`agent-tts bench rtc`; raises `SettingsError` for its options, `SpeechError` of the node."""
    sizes = counts("--peers", peers)
    settings = {"slots": max(sizes), "limits__rtc_peers": 2 * max(sizes)}
    wanted = [scenario.rtc_peers(size, seconds, {"voice": voice}) for size in sizes]
    info, found = measured(node, wanted, settings, rtc_figures)
    runs = [figures for _, _, figures in found]
    rows = [
        (
            *(run["peers"], run["packets"], run["lost"], *run["lateness_ms"].values(), run["worst_p99_ms"]),
            *(*run["cpu_percent"].values(), run["client_lag_ms"]["p99"], report.counted(run["errors"])),
        )
        for run in runs
    ]
    columns = (
        *("peers", "packets", "lost", "late ms p50", "p99", "most", "p99 of the worst", *_cpu_columns(runs)),
        *("lag p99", "errors"),
    )
    report.table(f"{info['engine']}, {info['model']}: WebRTC packets against their 20 ms grid", columns, rows)

    def draw(picture: report.Plot) -> None:
        series = {name: [run["lateness_ms"][name] for run in runs] for name in ("p50", "p99")}
        picture.lines(f"{info['engine']} engine", sizes, series, ("WebRTC peers", "lateness of packets, ms"))

    outputs.write("rtc", info, runs, draw)


def _cpu_columns(runs: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    return (f"cpu % {name}" for name in runs[0]["cpu_percent"])


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
Loads = Mapping[str, Callable[[MeasuredNode], Awaitable[LoadOutcome]]]


def run_load(options: OwnNodeOptions, names: str, seconds: float, voice: str | None, json: Path | None) -> None:
    """`agent-tts bench load`: the loads that `names` lists, on one node; a table each, and perhaps a file.

    Raises:
        SettingsError: there is no such load, or the file cannot be written.
        SpeechError: the node or a client process has failed.
        typer.Exit: a promise is broken.
    """
    loads: Loads = {
        "sessions": lambda node: load.sessions(node, seconds),
        "mixed": lambda node: load.mixed(node, seconds),
        "storm": load.storm,
    }
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in loads:
            raise SettingsError(f"--only {name}: loads are {', '.join(loads)}")
    _hold("load", options, {name: loads[name] for name in wanted}, voice, json, len(wanted) * (seconds + TAIL_S))


def run_soak(
    options: OwnNodeOptions,
    contexts: int,
    rate: float,
    vanish: float,
    kill_every_s: float,
    voice: str | None,
    json: Path | None,
) -> None:
    """`agent-tts bench soak`; see `run_load`."""

    async def soak(node: MeasuredNode) -> LoadOutcome:
        return await load.soak(node, scenario.soak(contexts, rate, vanish, node.session), kill_every_s)

    _hold("soak", options, {"soak": soak}, voice, json, contexts / rate + TAIL_S)


def _hold(
    kind: str, options: OwnNodeOptions, loads: Loads, voice: str | None, json: Path | None, seconds: float
) -> None:
    outputs = Outputs(json=json)
    # More slots than calls: no call waits for one, and the load is on the front.
    settings = {"slots": 3 * scenario.SESSIONS, "limits__rtc_peers": 48}

    async def main() -> tuple[dict[str, Any], dict[str, LoadOutcome]]:
        async with target(options, {"voice": voice}, **settings) as found:
            with progress(f"{', '.join(loads)}: about {seconds:.0f} s"):
                return found.info, {name: await held(found.node) for name, held in loads.items()}

    info, outcomes = run(main())
    for name, outcome in outcomes.items():
        rows = [
            (one.what, *("-" if n is None else f"{n:g}" for n in (one.found, one.most)), "yes" if one.kept else "NO")
            for one in outcome.promises
        ]
        report.table(f"{name}, {info['engine']}: {TITLES[name]}", ("promise", "found", "at most", "kept"), rows)
        figures = outcome.figures
        print(
            f"{figures['visits']} sessions, {figures['mean_in_flight']} at once on average and"
            f" {figures['peak_in_flight']} at most; first audio p50 {figures['ttfa_ms']['p50']} ms; client lag p99"
            f" {figures['client_lag_ms']['p99']} ms; errors {report.counted(figures['errors'])}\n"
        )
    outputs.write(kind, info, [{"load": name, **outcome.as_dict()} for name, outcome in outcomes.items()])
    if broken := sum(not promise.kept for outcome in outcomes.values() for promise in outcome.promises):
        raise complain(f"{broken} of the promises above are broken", 1)


def run_frame(
    synthetic: str | None, folder: Path | None, batches: str, context: int, fused: bool, json: Path | None
) -> None:
    """`agent-tts bench frame`.

    Raises:
        SettingsError: the options make no sense, there is no GPU, or the checkpoint cannot be used.
    """
    if (synthetic is None) == (folder is None):
        raise SettingsError("--synthetic 1.7B and --model FOLDER are two ways to have a model: choose one")
    sizes, outputs = counts("--batches", batches), Outputs(json=json)
    try:
        from agent_tts.bench import frame
    except ImportError as error:
        raise missing_package(error) from error
    model = frame.synthetic(synthetic) if synthetic is not None else frame.load(folder or Path())
    runs = list(frame.measure(model, sizes, context, fused=fused))
    versions = frame.versions()
    rows = [
        (
            run["batch"],
            *(f"{run['ms'][part]:.2f}" if part in run["ms"] else None for part in frame.PARTS),
            run["audio_s_per_s"],
        )
        for run in runs
    ]
    title = f"{versions['gpu']}, torch {versions['torch']}: ms a frame, context {context}"
    report.table(title, ("batch", *frame.PARTS, "audio s/s"), rows)
    name = f"synthetic {synthetic}" if synthetic is not None else "checkpoint"
    outputs.write("frame", {"model": name, **versions}, runs)
