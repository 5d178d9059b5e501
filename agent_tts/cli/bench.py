"""`agent-tts bench`: its commands. What a command does is imported when it runs, so that help is quick."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from agent_tts.cli.bench_options import (
    Clients,
    Json,
    ModelOptions,
    NodeOptions,
    Outputs,
    OwnNodeOptions,
    PacedVoiceOptions,
    VoiceOptions,
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
    words_every_ms: Annotated[float, typer.Option(min=0, max=60_000, help="Pace of the text; 0 sends it whole.")] = 10,
    words: Annotated[
        int | None, typer.Option(min=1, max=1_000, help="Of each text; default: sentences of voice agents.")
    ] = None,
    frames: Annotated[
        int | None, typer.Option(min=1, max=3_000, help="Of a node that is started: most 80 ms frames of a request.")
    ] = None,
    voice: PacedVoiceOptions = PACED,
    clients: Clients = None,
    outputs: Outputs = FILES,
) -> None:
    """Time to first audio, underruns and throughput under load.

    Time to first audio is from the first text sent to the first byte of audio received; with --saturate it includes the
    wait for a slot. An underrun is a request with a chunk that came after its play time, for a player that starts on
    the first chunk. Random weights do not know when to end: --frames 60 makes requests of the usual length.
    """
    from agent_tts.bench import report
    from agent_tts.bench.figures import first_audio_ms, measured_calls, serve_figures
    from agent_tts.bench.scenario import TEXTS, texts_of
    from agent_tts.cli.bench_runs import measured, print_memory, serve_scenarios

    if frames is not None and node.url is not None:
        raise SettingsError("--frames is for a node of our own: a running one has its own limits.max_frames")
    texts = TEXTS if words is None else texts_of(words)
    loads, settings = serve_scenarios(
        *(rate, concurrency, saturate, warmup),
        duration_s=duration,
        words_every_ms=words_every_ms,
        session=voice.session,
        texts=texts,
    )
    limit: dict[str, object] = {} if frames is None else {"limits__max_frames": frames}
    info, found = measured(node, loads, settings | limit, serve_figures, clients)
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
    times = [(load.name, first_audio_ms(measured_calls(result))) for load, result, _ in found]
    runs = [figures for _, _, figures in found]
    outputs.write("serve", info, runs, lambda plot: plot.times(f"{info['engine']} engine", times))


@bench.command()
@command
def streams(
    node: NodeOptions = TONE,
    streams: Annotated[str, typer.Option(help="Streams at once, one run for each number.")] = "64,128,256,500",
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="Measured, for each run.")] = 30,
    ramp: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds in which the streams begin.")] = 2,
    per_connection: Annotated[int, typer.Option(min=1, help="Contexts on one connection.")] = 16,
    voice: PacedVoiceOptions = PACED,
    clients: Clients = None,
    outputs: Outputs = FILES,
) -> None:
    """The largest number of paced streams without a gap at their listeners, and its cost."""
    from agent_tts.bench import report
    from agent_tts.bench.figures import is_clean, stream_figures
    from agent_tts.bench.scenario import streams as scenario
    from agent_tts.cli.bench_runs import connections, cpu_columns, measured, print_memory

    sizes = counts("--streams", streams)
    settings = {
        "slots": max(sizes),
        "limits__connections": connections(max(sizes)),
        "limits__contexts_per_session": per_connection,
    }
    wanted = [scenario(size, seconds, ramp, per_connection, voice.session) for size in sizes]
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
        *("streams", "with gaps", "gaps s", "margin ms p50", "p1", "least", *cpu_columns(runs)),
        *("clients", "lag p99", "ended early"),
    )
    title = f"{info['engine']}, {info['model']}: streams of {seconds:g} s, paced {voice.lead_ms} ms ahead"
    report.table(title, columns, rows)
    clean = max((run["streams"] for run in runs if is_clean(run)), default=0)
    print(f"largest number without a gap: {clean}")
    print_memory(info)
    series = {name: [run["cpu_percent"][name] for run in runs] for name in runs[0]["cpu_percent"]}
    title = f"{info['engine']} engine, {clean} streams without a gap"
    outputs.write("streams", info, runs, lambda plot: plot.lines(title, sizes, series, ("streams", "CPU, %")))


@bench.command()
@command
def rtc(
    node: NodeOptions = TONE,
    peers: Annotated[str, typer.Option(help="Peers at once, one run for each number.")] = "1,16,32,48",
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="Measured, for each run.")] = 20,
    voice: VoiceOptions = VOICE,
    outputs: Outputs = FILES,
) -> None:
    """Lateness of WebRTC packets against the 20 ms grid of their timestamps."""
    from agent_tts.bench import report
    from agent_tts.bench.figures import rtc_figures
    from agent_tts.bench.scenario import rtc_peers
    from agent_tts.cli.bench_runs import cpu_columns, measured

    sizes = counts("--peers", peers)
    settings = {"slots": max(sizes), "limits__rtc_peers": 2 * max(sizes)}
    wanted = [rtc_peers(size, seconds, voice.session) for size in sizes]
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
        *("peers", "packets", "lost", "late ms p50", "p99", "most", "p99 of the worst", *cpu_columns(runs)),
        *("lag p99", "errors"),
    )
    report.table(f"{info['engine']}, {info['model']}: WebRTC packets against their 20 ms grid", columns, rows)
    series = {name: [run["lateness_ms"][name] for run in runs] for name in ("p50", "p99")}
    title, labels = f"{info['engine']} engine", ("WebRTC peers", "lateness of packets, ms")
    outputs.write("rtc", info, runs, lambda plot: plot.lines(title, sizes, series, labels))


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


@bench.command()
@command
def frame(
    synthetic: Annotated[str | None, typer.Option(help="Random weights of a size: 1.7B or 0.6B.")] = None,
    model: Annotated[Path | None, typer.Option(help="Instead: a checkpoint folder.")] = None,
    batches: Annotated[str, typer.Option(help="Rows of a frame, one run for each.")] = "1,2,4,8,16,32,64,128,256",
    context: Annotated[int, typer.Option(min=0, max=2_000, help="Positions before the frame.")] = 300,
    fused: Annotated[bool, typer.Option(help="Fused kernels, or the modules as they are.")] = True,
    json: Json = None,
) -> None:
    """Time of one 80 ms frame on the GPU, whole and by its parts (needs agent-tts\\[qwen])."""
    from agent_tts.bench import report
    from agent_tts.cli.bench_runs import missing_package

    if (synthetic is None) == (model is None):
        raise SettingsError("--synthetic 1.7B and --model FOLDER are two ways to have a model: choose one")
    sizes, outputs = counts("--batches", batches), Outputs(json=json)
    try:
        from agent_tts.bench import frame
    except ImportError as error:
        raise missing_package(error) from error
    speech = frame.synthetic(synthetic) if synthetic is not None else frame.load(model or Path())
    runs = list(frame.measure(speech, sizes, context, fused=fused))
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


def _moved(name: str) -> Callable[[], None]:
    @command
    def tell() -> None:
        raise SettingsError(f"`bench {name}` is now `python -m tests.measure.{name}`, in the repository of agent-tts")

    return tell


for _name in ("agent", "browser", "cancel", "checkpoint", "parity", "words"):
    _options = {"ignore_unknown_options": True, "allow_extra_args": True}
    bench.command(_name, hidden=True, context_settings=_options)(_moved(_name))
