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
    command,
)
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
    from agent_tts.bench.scenario import TEXTS, texts_of
    from agent_tts.cli.bench_runs import run_serve, serve_scenarios

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
    run_serve(node, loads, settings | limit, clients, outputs)


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
    from agent_tts.cli.bench_runs import run_streams

    run_streams(node, streams, seconds, ramp, per_connection, voice.session, clients, outputs)


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
    from agent_tts.cli.bench_runs import run_rtc

    run_rtc(node, peers, seconds, voice.voice, outputs)


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
    from agent_tts.bench.peers import PeerTask
    from agent_tts.bench.scenario import texts_of
    from agent_tts.cli.bench_peers import chosen, run_peers

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
    from agent_tts.cli.bench_runs import run_load

    run_load(node, only, 60 * minutes, voice, json)


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
    from agent_tts.cli.bench_runs import run_soak

    run_soak(node, contexts, rate, vanish, kill_every, voice, json)


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
    from agent_tts.cli.bench_runs import run_frame

    run_frame(synthetic, model, batches, context, fused, json)


def _moved(name: str) -> Callable[[], None]:
    @command
    def tell() -> None:
        raise SettingsError(f"`bench {name}` is now `python -m tests.measure.{name}`, in the repository of agent-tts")

    return tell


for _name in ("agent", "browser", "cancel", "checkpoint", "parity", "words"):
    _options = {"ignore_unknown_options": True, "allow_extra_args": True}
    bench.command(_name, hidden=True, context_settings=_options)(_moved(_name))
