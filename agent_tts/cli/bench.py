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
Type = Annotated[
    str | None,
    typer.Option("--type", help="Of --synthetic: custom_voice, voice_design, or base with the voices xvector and icl."),
]
ModelFolder = Annotated[Path | None, typer.Option("--model", help="Instead of --synthetic: a checkpoint folder.")]
Voice = Annotated[str | None, typer.Option(help="The voice that is asked for.")]
Instructions = Annotated[str | None, typer.Option(help="How to speak, or who; voice_design has some by itself.")]
Clients = Annotated[
    int | None, typer.Option(min=1, max=256, help="Processes that listen; default: as many as the load takes.")
]
Json = Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")]
PlotFile = Annotated[Path | None, typer.Option("--plot", help="Draw them: png, svg or pdf (needs matplotlib).")]
Timestamps = Annotated[str, typer.Option(help="Whether clients are told of words: word or none.")]
LeadMs = Annotated[int, typer.Option(min=120, help="How far audio may run ahead of its playback.")]


@bench.command()
def serve(
    url: Url = None,
    key: Key = None,
    engine: OwnEngine = "espeak",
    synthetic: Synthetic = None,
    type_: Type = None,
    model: ModelFolder = None,
    set_: Set = None,
    rate: Annotated[str | None, typer.Option(help="Requests per second at random times: 1,10,20.")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Instead: requests at once, 1,64.")] = None,
    saturate: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Instead: so many slots, all of them busy: unpaced, text at once, some requests more.",
        ),
    ] = None,
    duration: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds that are measured, for each load.")] = 60,
    warmup: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds before, that are not.")] = 10,
    words_every_ms: Annotated[
        float, typer.Option(min=0, max=60_000, help="How fast text comes; 0 is all at once.")
    ] = 10,
    words: Annotated[int | None, typer.Option(min=1, max=1_000, help="Of each text; default: what agents say.")] = None,
    frames: Annotated[
        int | None, typer.Option(min=1, max=3_000, help="Of a node of our own: most 80 ms frames of a request.")
    ] = None,
    lead_ms: LeadMs = 1_000,
    timestamps: Timestamps = "none",
    voice: Voice = None,
    instructions: Instructions = None,
    clients: Clients = None,
    json: Json = None,
    plot: PlotFile = None,
) -> None:
    """Time to first audio, underruns and throughput under load.

    Time to first audio is from the first text sent to the first byte of audio received; with --saturate it holds the
    wait for a slot. An underrun is a request with a chunk that came after its play time, for a player that starts on
    the first chunk. Random weights do not know when to end: --frames 60 makes requests as long as what agents say.
    """
    from agent_tts.bench.serve import TEXTS, Load, texts_of
    from agent_tts.cli.bench_runs import loads_of, run_serve
    from agent_tts.cli.bench_shared import Outputs
    from agent_tts.cli.bench_target import Source, own

    session = {"voice": voice, "instructions": instructions, "lead_ms": lead_ms, "timestamps": timestamps}
    texts = TEXTS if words is None else texts_of(words)
    load = Load(warmup_s=warmup, duration_s=duration, words_every_ms=words_every_ms, session=session, texts=list(texts))
    with reported():
        if frames is not None and url is not None:
            raise SettingsError("--frames is for a node of our own: a running one has its own limits.max_frames")
        loads, settings = loads_of(load, rate, concurrency, saturate)
        source = Source(url, key, **own(url, engine, set_, synthetic, model, type_))
        limit: dict[str, object] = {} if frames is None else {"limits__max_frames": frames}
        run_serve(source, loads, settings | limit, clients, Outputs(json, plot))


@bench.command()
def streams(
    url: Url = None,
    key: Key = None,
    engine: OwnEngine = "tone",
    synthetic: Synthetic = None,
    type_: Type = None,
    model: ModelFolder = None,
    set_: Set = None,
    streams: Annotated[str, typer.Option(help="How many at once, one run for each.")] = "64,128,256,500",
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="Measured, for each run.")] = 30,
    ramp: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds in which the streams begin.")] = 2,
    per_connection: Annotated[int, typer.Option(min=1, help="Contexts on one connection.")] = 16,
    lead_ms: LeadMs = 1_000,
    timestamps: Timestamps = "none",
    voice: Voice = None,
    instructions: Instructions = None,
    clients: Clients = None,
    json: Json = None,
    plot: PlotFile = None,
) -> None:
    """The largest number of paced streams without a gap at their listeners', and what it costs."""
    from agent_tts.bench.streams import Plan
    from agent_tts.cli.bench_runs import run_streams
    from agent_tts.cli.bench_shared import Outputs
    from agent_tts.cli.bench_target import Source, own

    session = {"voice": voice, "instructions": instructions, "lead_ms": lead_ms, "timestamps": timestamps}
    plan = Plan(seconds, ramp, per_connection, session)
    with reported():
        source = Source(url, key, **own(url, engine, set_, synthetic, model, type_))
        run_streams(source, streams, plan, clients, Outputs(json, plot))


@bench.command()
def cancel(
    url: Url = None,
    key: Key = None,
    engine: OwnEngine = "tone",
    synthetic: Synthetic = None,
    type_: Type = None,
    model: ModelFolder = None,
    set_: Set = None,
    streams: Annotated[int, typer.Option(min=1, max=10_000, help="Slots of the node, all of them speaking.")] = 64,
    cancels: Annotated[int, typer.Option(min=1, max=100_000, help="How many are measured.")] = 200,
    per_connection: Annotated[int, typer.Option(min=1, help="Contexts on one connection.")] = 16,
    lead_ms: LeadMs = 1_000,
    voice: Voice = None,
    instructions: Instructions = None,
    json: Json = None,
    plot: PlotFile = None,
) -> None:
    """How fast a full node gives up speech, and its slot: a context that waits for one starts only when it is free.

    The slot's time holds the step that is running when the cancel comes, and the one in which the waiting context gets
    the slot.
    """
    from agent_tts.bench.cancel import Plan
    from agent_tts.cli.bench_cancel import run_cancel
    from agent_tts.cli.bench_shared import Outputs
    from agent_tts.cli.bench_target import Source, own

    session = {"voice": voice, "instructions": instructions, "lead_ms": lead_ms}
    with reported():
        source = Source(url, key, **own(url, engine, set_, synthetic, model, type_))
        run_cancel(source, Plan(streams, cancels, per_connection, session), Outputs(json, plot))


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
    from agent_tts.cli.bench_runs import run_rtc
    from agent_tts.cli.bench_shared import Outputs
    from agent_tts.cli.bench_target import Source, own

    with reported():
        source = Source(url, key, **own(url, engine, set_, synthetic))
        run_rtc(source, peers, seconds, voice, Outputs(json, plot))


@bench.command()
def peers(
    synthetic: Annotated[str | None, typer.Option(help="Random weights of a size: 1.7B or 0.6B.")] = None,
    type_: Type = None,
    model: ModelFolder = None,
    set_: Set = None,
    peers: Annotated[str, typer.Option(help="Packages that are measured beside us.")] = "qwen-tts,faster-qwen3-tts",
    device: Annotated[str, typer.Option(help="Of every engine: auto, cpu, cuda or cuda:1.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Of every engine: auto, float32 or bfloat16.")] = "auto",
    words: Annotated[int, typer.Option(min=1, max=1_000, help="Of the text.")] = 20,
    frames: Annotated[int, typer.Option(min=2, max=2_000, help="Most 80 ms frames of a request.")] = 60,
    requests: Annotated[int, typer.Option(min=1, max=1_000, help="One after the other, to each engine.")] = 5,
    warmups: Annotated[int, typer.Option(min=0, max=1_000, help="Requests before, that are not measured.")] = 2,
    voice: Voice = None,
    instructions: Instructions = None,
    json: Json = None,
    plot: PlotFile = None,
) -> None:
    """This node beside qwen-tts and faster-qwen3-tts, where they are installed: one request at a time.

    The same checkpoint, text and number of frames for each, one engine after the other, each with the machine for
    itself. Ours is a node over a WebSocket; the others are called in their process. "ms a frame" is the whole request's
    time over its frames. qwen-tts does not stream: its first audio is the whole request.
    """
    from agent_tts.bench.peers import Task
    from agent_tts.bench.serve import texts_of
    from agent_tts.cli.bench_peers import chosen, run_peers
    from agent_tts.cli.bench_shared import Outputs
    from agent_tts.cli.bench_target import Source, own

    with reported():
        source = Source(None, None, **own(None, "qwen3", set_, synthetic, model, type_))
        text = texts_of(words)[0]
        task = Task("", device, dtype, text, frames, voice, instructions, requests, warmups)
        run_peers(source, chosen(peers), task, Outputs(json, plot))


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
    from agent_tts.cli.bench_target import Source, own

    with reported():
        run_agent(Source(url, key, **own(url, engine, set_, None)), calls, turns, json)


@bench.command()
def browser(
    chromium: Annotated[str | None, typer.Argument(help="The browser; default: the Chromium that is found.")] = None,
    engine: OwnEngine = "espeak",
    synthetic: Synthetic = None,
    type_: Type = None,
    model: ModelFolder = None,
    set_: Set = None,
    calls: Annotated[int, typer.Option(min=1, max=1_000, help="One after the other.")] = 3,
    turns: Annotated[int, typer.Option(min=1, max=100, help="Answers that are interrupted in each call.")] = 10,
    json: Json = None,
) -> None:
    """How soon an agent falls silent, and is heard, in a real browser: spoken questions, interruptions by voice.

    Headless Chromium has the page of a node of our own, and a microphone that speaks with espeak-ng's voice. Voice
    activity and the end of turns are what they always are; all speech is taken for the same words, so that no weights
    are needed, and the time that recognition takes is not in the figures (--set agent.stt.kind=whisper has it).

    "voice to unheard" is from the first of the user's voice at the microphone to the last sound that the page lets
    through, "told to silence" from the page's being told of it to the last sound that arrives. "LLM's first word" is
    when the language model's server sends it. Echo cancellation is off: the microphone hears no loudspeaker.
    """
    from agent_tts.cli.bench_browser import run_browser
    from agent_tts.cli.bench_target import Source, own

    with reported():
        source = Source(None, None, **own(None, engine, set_, synthetic, model, type_))
        run_browser(source, chromium, calls, turns, json)


@bench.command()
def words(
    languages: Annotated[str, typer.Option(help="Codes with commas between them.")] = "en,de,fr,es,ru,hi",
    flush: Annotated[bool, typer.Option("--flush", help="After each sentence, so that its end is known.")] = False,
    json: Json = None,
) -> None:
    """How far estimated word times are off, against those of espeak, which knows its own.

    The estimates see the text as it comes and the audio as it is made. Three times of a word are measured: as told at
    once with its text, as told just before its audio, and as known once all audio has been heard.
    """
    from agent_tts.cli.bench_words import run_words

    with reported():
        run_words(languages, flush, json)


@bench.command()
def load(
    engine: OwnEngine = "espeak",
    synthetic: Synthetic = None,
    type_: Type = None,
    model: ModelFolder = None,
    set_: Set = None,
    only: Annotated[str, typer.Option(help="Some of them.")] = "sessions,mixed,storm",
    minutes: Annotated[float, typer.Option(min=0.05, max=1_440, help="Of sessions, and of mixed.")] = 1,
    voice: Voice = None,
    json: Json = None,
) -> None:
    """What a node must hold, and whether it keeps its promises meanwhile: exit code 1 when it breaks one.

    sessions: 64 WebSocket sessions at once, on average. mixed: 60 % WebSockets, 20 % HTTP, 20 % WebRTC, texts of 5 to
    2000 characters in 8 languages, 10 % barge-in. storm: 900 connections in 2 s that never send a byte, and 100 good
    ones among them. All come at random times, from processes of their own, each with a connection of its own.
    """
    from agent_tts.cli.bench_load import run_load
    from agent_tts.cli.bench_target import Source, own

    with reported():
        source = Source(None, None, **own(None, engine, set_, synthetic, model, type_))
        run_load(source, only, 60 * minutes, {"voice": voice}, json)


@bench.command()
def soak(
    engine: OwnEngine = "espeak",
    synthetic: Synthetic = None,
    type_: Type = None,
    model: ModelFolder = None,
    set_: Set = None,
    contexts: Annotated[int, typer.Option(min=10, max=10_000_000, help="How many.")] = 5_000,
    rate: Annotated[float, typer.Option(min=0.1, max=1_000, help="A second, at random times.")] = 12,
    vanish: Annotated[float, typer.Option(min=0, max=1, help="Share of visitors who leave without a word.")] = 0.1,
    kill_every: Annotated[float, typer.Option(min=5, max=86_400, help="Seconds between kills of the engine.")] = 60,
    voice: Voice = None,
    json: Json = None,
) -> None:
    """What a node keeps of thousands of short contexts: exit code 1 when memory, descriptors, tasks or slots leak.

    Some visitors vanish, by a reset or by closing the connection; the engine process is killed every minute, and what
    it spoke is lost. Every context ends exactly once all the same.
    """
    from agent_tts.bench.soak import Soak
    from agent_tts.cli.bench_load import run_soak
    from agent_tts.cli.bench_target import Source, own

    with reported():
        source = Source(None, None, **own(None, engine, set_, synthetic, model, type_))
        run_soak(source, Soak(contexts, rate, vanish, kill_every), {"voice": voice}, json)


@bench.command()
def frame(
    synthetic: Annotated[str | None, typer.Option(help="Random weights of a size: 1.7B or 0.6B.")] = None,
    model: Annotated[Path | None, typer.Option(help="Instead: a checkpoint folder.")] = None,
    batches: Annotated[str, typer.Option(help="Rows of a frame, one run for each.")] = "1,2,4,8,16,32,64,128,256",
    context: Annotated[int, typer.Option(min=0, max=2_000, help="Positions before the frame.")] = 300,
    fused: Annotated[bool, typer.Option(help="Fused kernels, or the modules as they are.")] = True,
    json: Json = None,
) -> None:
    """How long one 80 ms frame takes on the GPU, whole and by its parts (needs agent-tts\\[qwen])."""
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
    """Write a Qwen3-TTS checkpoint with random weights, in the released layout and sizes (needs agent-tts\\[qwen])."""
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
