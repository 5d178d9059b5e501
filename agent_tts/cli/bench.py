"""`agent-tts bench`: its commands. What a command does is imported when it runs, so that help is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from agent_tts.cli.bench_options import (
    Frames,
    Json,
    ModelOptions,
    NodeOptions,
    Outputs,
    OwnNodeOptions,
    PacedVoiceOptions,
    ProcessOptions,
    VoiceOptions,
    Words,
    WordsEveryMs,
    counts,
)
from agent_tts.cli.options import command
from agent_tts.errors import SettingsError

bench = typer.Typer(
    help="Measure a node from outside: a running one (--url), or one that is started on a free port.",
    no_args_is_help=True,
)

ESPEAK, TONE = NodeOptions(engine="espeak"), NodeOptions(engine="tone")
OWN, MODEL, VOICE, PACED, FILES = OwnNodeOptions(), ModelOptions(), VoiceOptions(), PacedVoiceOptions(), Outputs()
OWN_TONE, PROCESSES = OwnNodeOptions(engine="tone"), ProcessOptions()
LoadVoice = Annotated[str | None, typer.Option(help="A voice of the node.")]


@bench.command()
@command
def serve(
    node: NodeOptions = ESPEAK,
    rate: Annotated[str | None, typer.Option(help="Requests per second at random times: 1,10,20.")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Instead: requests at once, 1,64.")] = None,
    saturate: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Instead: this many slots, all busy: unpaced, whole texts, an eighth more requests than slots.",
        ),
    ] = None,
    duration: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds measured, for each load.")] = 60,
    warmup: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds before, not measured.")] = 10,
    words_every_ms: WordsEveryMs = 10,
    words: Words = None,
    frames: Frames = None,
    voice: PacedVoiceOptions = PACED,
    processes: ProcessOptions = PROCESSES,
    outputs: Outputs = FILES,
) -> None:
    """Time to first audio, gaps and throughput under load.

    Each request is a stranger's: a new connection, `context.open`, the text, its end, a closing handshake. Time to
    first audio is from the first text sent to the first byte of audio received; with --saturate it includes the wait
    for a slot. A gap is a chunk that came after its play time, for a player that starts on the first chunk. Random
    weights do not know when to end: --frames 60 makes requests of the usual length.
    """
    from agent_tts.bench.figures import first_audio_ms, measured_calls, request_figures
    from agent_tts.bench.scenario import TEXTS, texts_of
    from agent_tts.cli.bench_runs import measured, print_memory, print_requests, refuse_frames, serve_scenarios

    refuse_frames(node, frames)
    loads, settings = serve_scenarios(
        *(rate, concurrency, saturate, warmup, frames),
        duration_s=duration,
        words_every_ms=words_every_ms,
        session=voice.session,
        texts=TEXTS if words is None else texts_of(words),
    )
    info, found = measured(node, loads, settings, request_figures, processes)
    runs = [figures for _, _, figures in found]
    every_ms = loads[0].words_every_ms
    pace = f"a word every {every_ms:g} ms" if every_ms else "text at once"
    print_requests(f"{info['engine']}, {info['model']}: time to first audio and gaps in ms, {pace}", runs)
    print_memory(info)
    times = [(load.name, first_audio_ms(measured_calls(result))) for load, result, _ in found]
    outputs.write("serve", info, runs, lambda plot: plot.times(f"{info['engine']} engine", times))


@bench.command()
@command
def trace(
    node: OwnNodeOptions = OWN,
    rate: Annotated[str, typer.Option(help="Requests per second at random times, one run for each: 1,20.")] = "2",
    duration: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds measured, for each load.")] = 20,
    warmup: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds before, not measured.")] = 4,
    words_every_ms: WordsEveryMs = 10,
    words: Words = None,
    frames: Frames = None,
    voice: PacedVoiceOptions = PACED,
    processes: ProcessOptions = PROCESSES,
    json: Json = None,
) -> None:
    """Where the time to first audio goes: p50 and p95 of each stage, and a picture (needs agent-tts\\[otel]).

    A node is started here that sends its spans to this command. Each request is a new connection. `prompt` holds the
    steps before the one that makes the first frame: also those that wait for more text. `compute` is the engine's, on a
    GPU by its own events, on a CPU and in the other engines with all that a step does.
    """
    from agent_tts.bench.figures import measured_calls, request_figures
    from agent_tts.bench.scenario import TEXTS, texts_of
    from agent_tts.cli.bench_runs import measured, print_processes, serve_scenarios

    try:
        from agent_tts.bench import report, trace
        from agent_tts.bench.collector import collector
    except ImportError as error:
        raise SettingsError("bench trace needs OpenTelemetry: pip install 'agent-tts[otel]'") from error
    loads, settings = serve_scenarios(
        *(rate, None, None, warmup, frames),
        duration_s=duration,
        words_every_ms=words_every_ms,
        session=voice.session,
        texts=TEXTS if words is None else texts_of(words),
        traced=True,
    )
    with collector() as spans:
        settings |= {"telemetry__endpoint": spans.url, "telemetry__stages": True}
        info, found = measured(node, loads, settings, request_figures, processes)
    points = spans.events("context")
    runs = []
    for load, result, figures in found:
        run = trace.figures(load.name, measured_calls(result), points)
        runs.append(run)
        counts = f"{run['requests']} requests, {run['untraced']} untraced, errors {report.counted(run['errors'])}"
        title = f"{info['engine']}, {info['model']}: {load.name}, {counts}"
        if run["untraced"] < run["requests"]:
            trace.show(title, run)
        else:
            print(f"{title}: NO FIGURES")
        print_processes(load.name, figures)
    Outputs(json=json).write("trace", info, runs)


@bench.command()
@command
def streams(
    node: NodeOptions = TONE,
    streams: Annotated[str, typer.Option(help="Callers at once, one run for each number.")] = "64,128,256,500",
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="Measured, for each run.")] = 30,
    ramp: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds in which the callers begin.")] = 4,
    words_every_ms: WordsEveryMs = 40,
    words: Words = None,
    frames: Frames = None,
    voice: PacedVoiceOptions = PACED,
    processes: ProcessOptions = PROCESSES,
    outputs: Outputs = FILES,
) -> None:
    """The largest number of callers without a gap, and its cost.

    A caller makes one request after the other, each on a new connection, with text at the pace of a language model.
    """
    from agent_tts.bench.figures import is_clean, request_figures
    from agent_tts.bench.scenario import TEXTS, requests, texts_of
    from agent_tts.cli.bench_runs import limits, measured, print_memory, print_requests, refuse_frames

    refuse_frames(node, frames)
    sizes = counts("--streams", streams)
    fields = {
        "ramp_s": ramp,
        "warmup_s": ramp,
        "duration_s": seconds,
        "words_every_ms": words_every_ms,
        "texts": TEXTS if words is None else texts_of(words),
        "session": voice.session,
    }
    loads = [requests(f"{size} callers", concurrency=size, **fields) for size in sizes]
    info, found = measured(node, loads, {"slots": max(sizes), **limits(max(sizes), frames)}, request_figures, processes)
    runs = [figures for _, _, figures in found]
    title = f"{info['engine']}, {info['model']}: a word every {words_every_ms:g} ms, audio {voice.lead_ms} ms ahead"
    print_requests(title, runs)
    clean = max((size for size, run in zip(sizes, runs, strict=True) if is_clean(run)), default=0)
    print(f"largest number without a gap: {clean}")
    print_memory(info)
    series = {name: [run["cpu_percent"][name] for run in runs] for name in runs[0]["cpu_percent"]}
    title = f"{info['engine']} engine, {clean} callers without a gap"
    outputs.write("streams", info, runs, lambda plot: plot.lines(title, sizes, series, ("callers", "CPU, %")))


@bench.command()
@command
def rtc(
    node: NodeOptions = TONE,
    peers: Annotated[str, typer.Option(help="Peers at once, one run for each number.")] = "1,16,32,48",
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="Measured, for each run.")] = 20,
    words_every_ms: WordsEveryMs = 40,
    voice: VoiceOptions = VOICE,
    processes: ProcessOptions = PROCESSES,
    outputs: Outputs = FILES,
) -> None:
    """Lateness of WebRTC packets against the 20 ms grid of their timestamps, while all peers are spoken to."""
    from agent_tts.bench import report
    from agent_tts.bench.figures import rtc_figures
    from agent_tts.bench.scenario import rtc_peers
    from agent_tts.cli.bench_runs import cpu_columns, limits, measured, print_memory, print_processes

    sizes = counts("--peers", peers)
    settings = {"slots": max(sizes), "limits__rtc_peers": 2 * max(sizes), **limits(2 * max(sizes))}
    wanted = [rtc_peers(size, seconds, words_every_ms, voice.session) for size in sizes]
    info, found = measured(node, wanted, settings, rtc_figures, processes)
    runs = [figures for _, _, figures in found]
    rows = [
        (
            *(run["peers"], run["packets"], run["lost"], *run["lateness_ms"].values(), run["worst_p99_ms"]),
            *(*run["cpu_percent"].values(), report.counted(run["errors"])),
        )
        for run in runs
    ]
    columns = (
        *("peers", "packets", "lost", "late ms p50", "p99", "most", "p99 of the worst", *cpu_columns(runs)),
        "errors",
    )
    report.table(f"{info['engine']}, {info['model']}: WebRTC packets against their 20 ms grid", columns, rows)
    for run in runs:
        print_processes(f"{run['peers']} peers", run)
    print_memory(info)
    series = {name: [run["lateness_ms"][name] for run in runs] for name in ("p50", "p99")}
    title, labels = f"{info['engine']} engine", ("WebRTC peers", "lateness of packets, ms")
    outputs.write("rtc", info, runs, lambda plot: plot.lines(title, sizes, series, labels))


@bench.command()
@command
def fronts(
    node: OwnNodeOptions = OWN_TONE,
    fronts: Annotated[str, typer.Option(help="Front processes, one run on a new node for each number.")] = "1,2,4,8",
    slots: Annotated[int, typer.Option(min=1, max=10_000, help="Busy slots for each front.")] = 64,
    duration: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds measured, for each run.")] = 15,
    warmup: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds before, not measured.")] = 4,
    frames: Frames = 60,
    voice: PacedVoiceOptions = PACED,
    processes: ProcessOptions = PROCESSES,
    outputs: Outputs = FILES,
) -> None:
    """Frames a second by the number of front processes, each as busy as it can be: is it linear?

    Each front has an engine process beside it (`--set engines=2` is for another number) and as many busy slots. Fronts
    and clients that share cores limit one another: give them their own by --front-cores and --client-cores.
    """
    from agent_tts.bench import report
    from agent_tts.bench.figures import request_figures
    from agent_tts.cli.bench_runs import measured, print_processes, serve_scenarios

    sizes = counts("--fronts", fronts)
    info: dict[str, Any] = {}
    runs: list[dict[str, Any]] = []
    for size in sizes:
        loads, settings = serve_scenarios(
            *(None, None, slots * size, warmup, frames), duration_s=duration, session=voice.session
        )
        settings |= {"slots": slots, "engines": size, "fronts": size}
        info, ((_, _, figures),) = measured(node, loads, settings, request_figures, processes)
        runs.append({"fronts": size, **figures})
    kinds = list(runs[-1]["us_per_frame"])
    rows = [
        (
            *(run["fronts"], run["frames_per_s"], round(run["frames_per_s"] / runs[0]["frames_per_s"], 2)),
            *(*(run["us_per_frame"].get(kind) for kind in kinds), report.counted(run["errors"])),
        )
        for run in runs
    ]
    columns = ("fronts", "frames/s", "times the first", *(f"{kind} us/frame" for kind in kinds), "errors")
    report.table(f"{info['engine']}: {slots} busy slots a front", columns, rows)
    for run in runs:
        print_processes(f"{run['fronts']} fronts", run)
    found = [run["frames_per_s"] for run in runs]
    series = {"measured": found, "in proportion to the first": [found[0] * size / sizes[0] for size in sizes]}
    labels = ("front processes", "frames a second")
    outputs.write("fronts", info, runs, lambda plot: plot.lines(f"{info['engine']} engine", sizes, series, labels))


@bench.command()
@command
def peers(
    model: ModelOptions = MODEL,
    peers: Annotated[str, typer.Option(help="Packages that are compared with this one.")] = "qwen-tts,faster-qwen3-tts",
    device: Annotated[str, typer.Option(help="Of every engine: auto, cpu, cuda or cuda:1.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Of every engine: auto, float32 or bfloat16.")] = "auto",
    words: Annotated[int, typer.Option(min=1, max=1_000, help="Of the text.")] = 20,
    frames: Annotated[int, typer.Option(min=2, max=2_000, help="Most 80 ms frames of a request.")] = 60,
    requests: Annotated[int, typer.Option(min=1, max=1_000, help="One after the other, to each engine.")] = 5,
    warmups: Annotated[int, typer.Option(min=0, max=1_000, help="Requests before, not measured.")] = 2,
    voice: VoiceOptions = VOICE,
    outputs: Outputs = FILES,
) -> None:
    """Compare with qwen-tts and faster-qwen3-tts, where they are installed: one request at a time.

    Every engine has the same checkpoint, text and number of frames, and the machine for itself. This package is
    measured as a node over a WebSocket; the others are called in their process. "ms a frame" is the time of the whole
    request over its frames. qwen-tts does not stream: its first audio is the whole request.
    """
    from agent_tts.bench.scenario import texts_of
    from agent_tts.cli.bench_peers import PeerTask, chosen, run_peers

    task = PeerTask("", device, dtype, texts_of(words)[0], frames, voice.voice, voice.instructions, requests, warmups)
    run_peers(model, chosen(peers), task, outputs)


@bench.command()
@command
def load(
    node: OwnNodeOptions = OWN,
    only: Annotated[str, typer.Option(help="Some of the loads.")] = "sessions,mixed,storm",
    minutes: Annotated[float, typer.Option(min=0.05, max=1_440, help="Of sessions, and of mixed.")] = 1,
    voice: LoadVoice = None,
    json: Json = None,
) -> None:
    """Loads that a node must hold, and its promises under them: exit code 1 if it breaks one.

    sessions: 64 WebSocket sessions at once, on average. mixed: 60 % WebSockets, 20 % HTTP, 20 % WebRTC, texts of 5 to
    2000 characters in 8 languages, 10 % barge-in. storm: 900 connections in 2 s that never send a byte, and 100
    sessions among them. All begin at random times, in client processes, each on a connection of its own.
    """
    from agent_tts.bench import load
    from agent_tts.bench.scenario import TAIL_S
    from agent_tts.cli.bench_runs import Loads, hold

    loads: Loads = {
        "sessions": lambda node: load.sessions(node, 60 * minutes),
        "mixed": lambda node: load.mixed(node, 60 * minutes),
        "storm": load.storm,
    }
    wanted = [name.strip() for name in only.split(",")]
    for name in wanted:
        if name not in loads:
            raise SettingsError(f"--only {name}: loads are {', '.join(loads)}")
    seconds = len(wanted) * (60 * minutes + TAIL_S)
    hold("load", node, {name: loads[name] for name in wanted}, voice, json, seconds)


@bench.command()
@command
def soak(
    node: OwnNodeOptions = OWN,
    contexts: Annotated[int, typer.Option(min=10, max=10_000_000, help="How many.")] = 5_000,
    rate: Annotated[float, typer.Option(min=0.1, max=1_000, help="A second, at random times.")] = 12,
    vanish: Annotated[float, typer.Option(min=0, max=1, help="Share of clients that leave without a message.")] = 0.1,
    kill_every: Annotated[float, typer.Option(min=5, max=86_400, help="Seconds between kills of the engine.")] = 60,
    voice: LoadVoice = None,
    json: Json = None,
) -> None:
    """Leaks over thousands of short contexts: exit code 1 if memory, descriptors, tasks or slots leak.

    Some clients vanish, by a reset or by closing the connection; the engine process is killed every minute, and its
    contexts fail. Every context must still end exactly once.
    """
    from agent_tts.bench import load, scenario
    from agent_tts.cli.bench_runs import Loads, hold

    loads: Loads = {
        "soak": lambda node: load.soak(node, scenario.soak(contexts, rate, vanish, node.session), kill_every)
    }
    hold("soak", node, loads, voice, json, contexts / rate + scenario.TAIL_S)


# What `bench frame` has in 8 bits: weights, cache.
FP8 = {"nothing": (False, False), "cache": (False, True), "weights": (True, False), "both": (True, True)}


@bench.command()
@command
def frame(
    synthetic: Annotated[str | None, typer.Option(help="Random weights of a size: 1.7B or 0.6B.")] = None,
    model: Annotated[Path | None, typer.Option(help="Instead: a checkpoint folder.")] = None,
    batches: Annotated[str, typer.Option(help="Rows of a frame, one run for each.")] = "1,2,4,8,16,32,64,128,256",
    context: Annotated[int, typer.Option(min=0, max=2_000, help="Positions before the frame.")] = 300,
    fused: Annotated[bool, typer.Option(help="Fused kernels, or the modules as they are.")] = True,
    fp8: Annotated[
        str, typer.Option(help="What is in 8 bits, one run for each: nothing,cache,weights,both.")
    ] = "nothing",
    json: Json = None,
) -> None:
    """Time of one 80 ms frame on the GPU, whole and by its parts (needs agent-tts\\[qwen])."""
    from agent_tts.bench import report
    from agent_tts.cli.bench_runs import missing_package

    if (synthetic is None) == (model is None):
        raise SettingsError("--synthetic 1.7B and --model FOLDER are two ways to have a model: choose one")
    kinds = fp8.split(",")
    if kinds != [kind for kind in FP8 if kind in kinds]:  # weights in 8 bits replace the others
        raise SettingsError(f"--fp8 {fp8}: must be of {','.join(FP8)}, in this order")
    if kinds != ["nothing"] and not fused:
        raise SettingsError("--fp8 is for fused kernels alone: leave --no-fused out")
    sizes, outputs = counts("--batches", batches), Outputs(json=json)
    try:
        from agent_tts.bench import frame
        from agent_tts.model.quantised import EightBits
    except ImportError as error:
        raise missing_package(error) from error
    speech = frame.synthetic(synthetic) if synthetic is not None else frame.load(model or Path())
    runs = [run for kind in kinds for run in frame.measure(speech, sizes, context, EightBits(*FP8[kind]), fused=fused)]
    versions = frame.versions()
    rows = [
        (
            " ".join(run["fp8"]),
            run["batch"],
            *(f"{run['ms'][part]:.2f}" if part in run["ms"] else None for part in frame.PARTS),
            run["audio_s_per_s"],
        )
        for run in runs
    ]
    title = f"{versions['gpu']}, torch {versions['torch']}: ms a frame, context {context}"
    report.table(title, ("fp8", "batch", *frame.PARTS, "audio s/s"), rows)
    name = f"synthetic {synthetic}" if synthetic is not None else "checkpoint"
    outputs.write("frame", {"model": name, **versions}, runs)
