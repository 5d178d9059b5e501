"""`agent-tts bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from agent_tts.cli.options import Key, Set, Url
from agent_tts.cli.reporting import reported
from agent_tts.errors import SettingsError

if TYPE_CHECKING:
    from agent_tts.model.config import ModelType

bench = typer.Typer(
    help="Measure a node from outside: a running one (--url), or one of our own on a free port.", no_args_is_help=True
)

OwnEngine = Annotated[str, typer.Option("--engine", help="Of a node of our own: tone, espeak or qwen3.")]
Synthetic = Annotated[
    str | None, typer.Option(help="Of a node of our own: qwen3 with random weights, 0.6B or 1.7B; no download.")
]
Voice = Annotated[str | None, typer.Option(help="The voice that is asked for.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")]
PlotFile = Annotated[Path | None, typer.Option("--plot", help="Draw them: png, svg or pdf (needs matplotlib).")]
LeadMs = Annotated[int, typer.Option(min=120, help="How far audio may run ahead of its playback.")]


@bench.command()
def serve(
    url: Url = None,
    key: Key = None,
    engine: OwnEngine = "espeak",
    synthetic: Synthetic = None,
    set_: Set = None,
    rate: Annotated[str | None, typer.Option(help="Requests per second at random times: 1,10,20.")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Instead: requests at once, 1,64.")] = None,
    duration: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds that are measured, for each load.")] = 60,
    warmup: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds before, that are not.")] = 10,
    words_every_ms: Annotated[
        float, typer.Option(min=0, max=60_000, help="How fast text comes; 0 is all at once.")
    ] = 10,
    lead_ms: LeadMs = 1_000,
    voice: Voice = None,
    json: Json = None,
    plot: PlotFile = None,
) -> None:
    """Time to first audio, underruns and throughput under load.

    Time to first audio is from the first text sent to the first byte of audio received. An underrun is a request with a
    chunk that came after its play time, for a player that starts on the first chunk.
    """
    from agent_tts.bench.serve import Load
    from agent_tts.cli.bench_runs import Outputs, Source, own, run_serve

    session = {"voice": voice, "lead_ms": lead_ms}
    load = Load(warmup_s=warmup, duration_s=duration, words_every_ms=words_every_ms, session=session)
    with reported():
        run_serve(Source(url, key, **own(engine, set_, synthetic)), load, rate, concurrency, Outputs(json, plot))


@bench.command()
def streams(
    url: Url = None,
    key: Key = None,
    engine: OwnEngine = "tone",
    synthetic: Synthetic = None,
    set_: Set = None,
    streams: Annotated[str, typer.Option(help="How many at once, one run for each.")] = "64,128,256,500",
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="Measured, for each run.")] = 30,
    ramp: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds in which the streams begin.")] = 2,
    per_connection: Annotated[int, typer.Option(min=1, help="Contexts on one connection.")] = 16,
    lead_ms: LeadMs = 1_000,
    voice: Voice = None,
    json: Json = None,
    plot: PlotFile = None,
) -> None:
    """The largest number of paced streams without a gap at their listeners', and what it costs."""
    from agent_tts.bench.streams import Plan
    from agent_tts.cli.bench_runs import Outputs, Source, own, run_streams

    plan = Plan(seconds, ramp, per_connection, lead_ms, voice)
    with reported():
        run_streams(Source(url, key, **own(engine, set_, synthetic)), streams, plan, Outputs(json, plot))


@bench.command()
def rtc(
    url: Url = None,
    key: Key = None,
    engine: OwnEngine = "tone",
    synthetic: Synthetic = None,
    set_: Set = None,
    peers: Annotated[str, typer.Option(help="How many at once, one run for each.")] = "1,16,32,48",
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="Measured, for each run.")] = 20,
    voice: Voice = None,
    json: Json = None,
    plot: PlotFile = None,
) -> None:
    """How late WebRTC packets come, against the 20 ms grid of their timestamps."""
    from agent_tts.cli.bench_runs import Outputs, Source, own, run_rtc

    with reported():
        run_rtc(Source(url, key, **own(engine, set_, synthetic)), peers, seconds, voice, Outputs(json, plot))


@bench.command()
def agent(
    url: Url = None,
    key: Key = None,
    engine: OwnEngine = "espeak",
    set_: Set = None,
    calls: Annotated[str, typer.Option(help="How many at once, one run for each.")] = "1,4,8",
    turns: Annotated[int, typer.Option(min=1, max=10_000, help="Answers that each caller interrupts.")] = 10,
    json: Json = None,
) -> None:
    """How soon an interrupted agent is silent, how soon an answer is heard, and what a call costs.

    Callers type, listen and interrupt over WebRTC. Of our own node the language model is part of the benchmark; a
    running one (--url) should use one that thinks for half a second.
    """
    from agent_tts.cli.bench_agent import run_agent
    from agent_tts.cli.bench_runs import Source, own

    with reported():
        run_agent(Source(url, key, **own(engine, set_, None)), calls, turns, json)


@bench.command()
def frame(
    synthetic: Annotated[str | None, typer.Option(help="Random weights of a size: 1.7B or 0.6B.")] = None,
    model: Annotated[Path | None, typer.Option(help="Instead: a checkpoint folder.")] = None,
    batches: Annotated[str, typer.Option(help="Rows of a frame, one run for each.")] = "1,2,4,8,16,32,64,128,256",
    context: Annotated[int, typer.Option(min=0, max=2_000, help="Positions before the frame.")] = 300,
    fused: Annotated[bool, typer.Option(help="Fused kernels, or the modules as they are.")] = True,
    json: Json = None,
) -> None:
    """How long one 80 ms frame takes on the GPU, whole and by its parts (needs agent-tts[qwen])."""
    from agent_tts.cli.bench_frame import run_frame

    with reported():
        run_frame(synthetic, model, batches, context, fused, json)


@bench.command()
def checkpoint(
    out: Annotated[Path, typer.Option(help="A new or empty folder.")],
    size: Annotated[str, typer.Option(help="tiny, tiny-0.6B, 0.6B or 1.7B.")] = "tiny",
    model_type: Annotated[str, typer.Option("--type", help="custom_voice, voice_design or base.")] = "custom_voice",
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
) -> None:
    """Write a Qwen3-TTS checkpoint with random weights, in the released layout and sizes (needs agent-tts[qwen])."""
    with reported():
        try:
            from agent_tts.bench.checkpoint import write
        except ImportError as error:
            raise SettingsError(f"{error.name} is not installed: pip install 'agent-tts[qwen]'") from error
        write(out, size=size, model_type=cast("ModelType", model_type), seed=seed)  # it checks them
    typer.echo(f"{out}: a {size} {model_type} checkpoint, random weights, seed {seed}", err=True)


@bench.command()
def parity(
    model: Annotated[str, typer.Option(help="A checkpoint folder or a hub id.")],
    device: Annotated[str, typer.Option(help="Of the model that is tested: cpu, cuda or cuda:1.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Of the model that is tested: float32 or bfloat16.")] = "bfloat16",
    frames: Annotated[int, typer.Option(min=1, max=1_000, help="80 ms frames that are compared.")] = 32,
    reference: Annotated[
        str, typer.Option(help="float32: our own model on the CPU; upstream: the package qwen-tts.")
    ] = "float32",
    json: Json = None,
) -> None:
    """How far a computation of the model is from a reference: logits and sound under forced codes.

    Beside the tested one stands the yardstick: what rounding to bfloat16 alone does, in upstream's order of operations.
    """
    with reported():
        try:
            from agent_tts.cli.bench_parity import run_parity
        except ImportError as error:
            raise SettingsError(f"{error.name} is not installed: pip install 'agent-tts[qwen]'") from error
        run_parity(model, device, dtype, frames, reference, json)
