"""What the commands of `agent-tts bench` do. Each raises `SettingsError` for options that do not go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_tts.bench import load as loads
from agent_tts.bench import report, scenario
from agent_tts.bench.figures import first_audio_ms, is_clean, measured_calls, request_figures, rtc_figures
from agent_tts.cli import bench as cli
from agent_tts.cli import bench_runs
from agent_tts.cli.bench_options import Outputs, counts
from agent_tts.errors import SettingsError

# What `bench frame` has in 8 bits: weights, cache.
FP8 = {"nothing": (False, False), "cache": (False, True), "weights": (True, False), "both": (True, True)}


def _requests(
    options: cli.ServeOptions | cli.TraceOptions,
    concurrency: str | None = None,
    saturate: int | None = None,
    **fields: Any,
) -> tuple[list[scenario.Scenario], dict[str, object]]:
    """The loads of a command with texts, and the settings that a node needs for them."""
    return bench_runs.serve_scenarios(
        *(options.rate, concurrency, saturate, options.warmup, options.text.frames),
        duration_s=options.duration,
        words_every_ms=options.text.words_every_ms,
        session=options.voice.session,
        texts=options.text.texts,
        **fields,
    )


def serve(options: cli.ServeOptions) -> None:
    bench_runs.refuse_frames(options.node, options.text.frames)
    wanted, settings = _requests(options, options.concurrency, options.saturate)
    info, results = bench_runs.measured(options, wanted, settings)
    runs = list(map(request_figures, wanted, results))
    every_ms = wanted[0].words_every_ms
    pace = f"a word every {every_ms:g} ms" if every_ms else "text at once"
    bench_runs.print_requests(f"{info['engine']}, {info['model']}: time to first audio and gaps in ms, {pace}", runs)
    bench_runs.print_memory(info)
    times = [(one.name, first_audio_ms(measured_calls(result))) for one, result in zip(wanted, results, strict=True)]
    options.outputs.write("serve", info, runs, lambda plot: plot.times(f"{info['engine']} engine", times))


def trace(options: cli.TraceOptions) -> None:
    try:
        from agent_tts.bench import trace as stages
    except ImportError as error:
        raise SettingsError("bench trace needs OpenTelemetry: pip install 'agent-tts[otel]'") from error
    wanted, settings = _requests(options, traced=True)
    with stages.collector() as spans:
        settings |= {"telemetry__endpoint": spans.url, "telemetry__stages": True}
        info, results = bench_runs.measured(options, wanted, settings)
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
        bench_runs.print_processes(one.name, request_figures(one, result))
    Outputs(json=options.json).write("trace", info, runs)


def streams(options: cli.StreamsOptions) -> None:
    bench_runs.refuse_frames(options.node, options.text.frames)
    sizes, every_ms = counts("--streams", options.streams), options.text.words_every_ms
    fields: dict[str, Any] = {"words_every_ms": every_ms, "texts": options.text.texts, "session": options.voice.session}
    fields |= {"ramp_s": options.ramp, "warmup_s": options.ramp, "duration_s": options.seconds}
    wanted = [scenario.requests(f"{size} callers", concurrency=size, **fields) for size in sizes]
    settings = {"slots": max(sizes), **bench_runs.limits(max(sizes), options.text.frames)}
    info, results = bench_runs.measured(options, wanted, settings)
    runs = list(map(request_figures, wanted, results))
    ahead = f"a word every {every_ms:g} ms, audio {options.voice.lead_ms} ms ahead"
    bench_runs.print_requests(f"{info['engine']}, {info['model']}: {ahead}", runs)
    clean = max((size for size, run in zip(sizes, runs, strict=True) if is_clean(run)), default=0)
    print(f"largest number without a gap: {clean}")
    bench_runs.print_memory(info)
    series = {name: [run["cpu_percent"][name] for run in runs] for name in runs[0]["cpu_percent"]}
    title = f"{info['engine']} engine, {clean} callers without a gap"
    options.outputs.write("streams", info, runs, lambda plot: plot.lines(title, sizes, series, ("callers", "CPU, %")))


def rtc(options: cli.RtcOptions) -> None:
    sizes = counts("--peers", options.peers)
    settings = {"slots": max(sizes), "limits__rtc_peers": 2 * max(sizes), **bench_runs.limits(2 * max(sizes))}
    session = options.voice.session
    wanted = [scenario.rtc_peers(size, options.seconds, options.words_every_ms, session) for size in sizes]
    info, results = bench_runs.measured(options, wanted, settings)
    runs = list(map(rtc_figures, results))
    packets = [(name, name) for name in ("peers", "packets", "lost")]
    packets += [("late ms p50", "lateness_ms.p50"), ("p99", "lateness_ms.p99"), ("most", "lateness_ms.p100")]
    packets += [("p99 of the worst", "worst_p99_ms")]
    title = f"{info['engine']}, {info['model']}: WebRTC packets against their 20 ms grid"
    bench_runs.print_runs(title, [*packets, *bench_runs.cpu_columns(runs), bench_runs.ERRORS], runs, "{peers} peers")
    bench_runs.print_memory(info)
    series = {name: [run["lateness_ms"][name] for run in runs] for name in ("p50", "p99")}
    title, labels = f"{info['engine']} engine", ("WebRTC peers", "lateness of packets, ms")
    options.outputs.write("rtc", info, runs, lambda plot: plot.lines(title, sizes, series, labels))


def fronts(options: cli.FrontsOptions) -> None:
    sizes, slots = counts("--fronts", options.fronts), options.slots
    info: dict[str, Any] = {}
    runs: list[dict[str, Any]] = []
    for size in sizes:
        wanted, settings = bench_runs.serve_scenarios(
            *(None, None, slots * size, options.warmup, options.frames),
            duration_s=options.duration,
            session=options.voice.session,
        )
        settings |= {"slots": slots, "engines": size, "fronts": size}
        info, (result,) = bench_runs.measured(options, wanted, settings)
        runs.append({"fronts": size, **request_figures(wanted[0], result)})
    found = [run["frames_per_s"] for run in runs]
    shown = [run | {"times": round(run["frames_per_s"] / found[0], 2)} for run in runs]
    columns = [("fronts", "fronts"), ("frames/s", "frames_per_s"), ("times the first", "times")]
    columns += [(f"{kind} us/frame", f"us_per_frame.{kind}") for kind in runs[-1]["us_per_frame"]]
    bench_runs.print_runs(
        f"{info['engine']}: {slots} busy slots a front", [*columns, bench_runs.ERRORS], shown, "{fronts} fronts"
    )
    series = {"measured": found, "in proportion to the first": [found[0] * size / sizes[0] for size in sizes]}
    title, labels = f"{info['engine']} engine", ("front processes", "frames a second")
    options.outputs.write("fronts", info, runs, lambda plot: plot.lines(title, sizes, series, labels))


def load(options: cli.LoadOptions) -> None:
    seconds = 60 * options.minutes
    known: bench_runs.Loads = {
        "sessions": lambda node: loads.sessions(node, seconds),
        "mixed": lambda node: loads.mixed(node, seconds),
        "storm": loads.storm,
    }
    wanted = [name.strip() for name in options.only.split(",")]
    for name in wanted:
        if name not in known:
            raise SettingsError(f"--only {name}: loads are {', '.join(known)}")
    about_s = len(wanted) * (seconds + scenario.TAIL_S)
    bench_runs.hold("load", options.node, {name: known[name] for name in wanted}, options.voice, options.json, about_s)


def soak(options: cli.SoakOptions) -> None:
    contexts, rate, kill_every = options.contexts, options.rate, options.kill_every
    wanted: bench_runs.Loads = {
        "soak": lambda node: loads.soak(node, scenario.soak(contexts, rate, options.vanish, node.session), kill_every)
    }
    bench_runs.hold("soak", options.node, wanted, options.voice, options.json, contexts / rate + scenario.TAIL_S)


def frame(options: cli.FrameOptions) -> None:
    if (options.synthetic is None) == (options.model is None):
        raise SettingsError("--synthetic 1.7B and --model FOLDER are two ways to have a model: choose one")
    kinds = options.fp8.split(",")
    if kinds != [kind for kind in FP8 if kind in kinds]:  # weights in 8 bits replace the others
        raise SettingsError(f"--fp8 {options.fp8}: must be of {','.join(FP8)}, in this order")
    if kinds != ["nothing"] and not options.fused:
        raise SettingsError("--fp8 is for fused kernels alone: leave --no-fused out")
    sizes, outputs = counts("--batches", options.batches), Outputs(json=options.json)
    try:
        from agent_tts.bench import frame as frames
        from agent_tts.model.quantised import EightBits
    except ImportError as error:
        raise bench_runs.missing_package(error) from error
    name = f"synthetic {options.synthetic}" if options.synthetic is not None else "checkpoint"
    speech = frames.synthetic(options.synthetic) if options.synthetic else frames.load(options.model or Path())
    runs = [
        run
        for kind in kinds
        for run in frames.measure(speech, sizes, options.context, EightBits(*FP8[kind]), fused=options.fused)
    ]
    versions = frames.versions()
    rows = [
        (
            " ".join(run["fp8"]),
            run["batch"],
            *(f"{run['ms'][part]:.2f}" if part in run["ms"] else None for part in frames.PARTS),
            run["audio_s_per_s"],
        )
        for run in runs
    ]
    title = f"{versions['gpu']}, torch {versions['torch']}: ms a frame, context {options.context}"
    report.table(title, ("fp8", "batch", *frames.PARTS, "audio s/s"), rows)
    outputs.write("frame", {"model": name, **versions}, runs)
