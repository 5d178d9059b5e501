"""`agent-tts bench`: the table of its commands, a class each: its options, and its help as the docstring.

What a command does is imported when it runs, so that help is quick.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform

import typer

from agent_tts.cli import bench_options as shared
from agent_tts.cli.bench_options import ModelOptions, NodeOptions, OwnNodeOptions, PacedVoiceOptions, ProcessOptions
from agent_tts.cli.options import command_of

T = TypeVar("T")

ESPEAK, TONE = NodeOptions(engine="espeak"), NodeOptions(engine="tone")
OWN, OWN_TONE, MODEL, FILES = OwnNodeOptions(), OwnNodeOptions(engine="tone"), ModelOptions(), shared.Outputs()
VOICE, PACED, PROCESSES = shared.VoiceOptions(), PacedVoiceOptions(), ProcessOptions()
TEXT, SLOW = shared.TextOptions(), shared.TextOptions(words_every_ms=40)

bench = typer.Typer(
    help="Measure a node from outside: a running one (--url), or one that is started on a free port.",
    no_args_is_help=True,
)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def _run_by(place: str) -> Callable[[type[T]], type[T]]:
    """Make a command of a class of options; the function at `place`, `module:name`, runs it, and names it."""

    def declare(kind: type[T]) -> type[T]:
        kind = dataclass(frozen=True, kw_only=True)(kind)
        defaults = kind()

        @command_of(bench, place.partition(":")[2], run=place, help=inspect.getdoc(kind))
        def _(options: Any = defaults) -> None: ...

        return kind

    return declare


@_run_by("agent_tts.cli.bench_measurements:serve")
class ServeOptions:
    """Time to first audio, gaps and throughput under load.

    Each request is a stranger's: a new connection, `context.open`, the text, its end, a closing handshake. Time to
    first audio is from the first text sent to the first byte of audio received; with --saturate it includes the wait
    for a slot. A gap is a chunk that came after its play time, for a player that starts on the first chunk. Random
    weights do not know when to end: --frames 60 makes requests of the usual length.
    """

    node: NodeOptions = ESPEAK
    rate: Annotated[str | None, typer.Option(help="Requests per second at random times: 1,10,20.")] = None
    concurrency: Annotated[str | None, typer.Option(help="Instead: requests at once, 1,64.")] = None
    saturate: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Instead: this many slots, all busy: unpaced, whole texts, an eighth more requests than slots.",
        ),
    ] = None
    duration: shared.LoadSeconds = 60
    warmup: shared.Warmup = 10
    text: shared.TextOptions = TEXT
    voice: PacedVoiceOptions = PACED
    processes: ProcessOptions = PROCESSES
    outputs: shared.Outputs = FILES


@_run_by("agent_tts.cli.bench_measurements:trace")
class TraceOptions:
    """Where the time to first audio goes: p50 and p95 of each stage, and a picture (needs agent-tts\\[otel]).

    A node is started here that sends its spans to this command. Each request is a new connection. `prompt` holds the
    steps before the one that makes the first frame: also those that wait for more text. `compute` is the engine's, on a
    GPU by its own events, on a CPU and in the other engines with all that a step does.
    """

    node: OwnNodeOptions = OWN
    rate: Annotated[str, typer.Option(help="Requests per second at random times, one run for each: 1,20.")] = "2"
    duration: shared.LoadSeconds = 20
    warmup: shared.Warmup = 4
    text: shared.TextOptions = TEXT
    voice: PacedVoiceOptions = PACED
    processes: ProcessOptions = PROCESSES
    json: shared.Json = None


@_run_by("agent_tts.cli.bench_measurements:streams")
class StreamsOptions:
    """The largest number of callers without a gap, and its cost.

    A caller makes one request after the other, each on a new connection, with text at the pace of a language model.
    """

    node: NodeOptions = TONE
    streams: Annotated[str, typer.Option(help="Callers at once, one run for each number.")] = "64,128,256,500"
    seconds: shared.RunSeconds = 30
    ramp: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds in which the callers begin.")] = 4
    text: shared.TextOptions = SLOW
    voice: PacedVoiceOptions = PACED
    processes: ProcessOptions = PROCESSES
    outputs: shared.Outputs = FILES


@_run_by("agent_tts.cli.bench_measurements:rtc")
class RtcOptions:
    """Lateness of WebRTC packets against the 20 ms grid of their timestamps, while all peers are spoken to."""

    node: NodeOptions = TONE
    peers: Annotated[str, typer.Option(help="Peers at once, one run for each number.")] = "1,16,32,48"
    seconds: shared.RunSeconds = 20
    words_every_ms: shared.WordsEveryMs = 40
    voice: shared.VoiceOptions = VOICE
    processes: ProcessOptions = PROCESSES
    outputs: shared.Outputs = FILES


@_run_by("agent_tts.cli.bench_measurements:fronts")
class FrontsOptions:
    """Frames a second by the number of front processes, each as busy as it can be: is it linear?

    Each front has an engine process beside it (`--set engines=2` is for another number) and as many busy slots. Fronts
    and clients that share cores limit one another: give them their own by --front-cores and --client-cores.
    """

    node: OwnNodeOptions = OWN_TONE
    fronts: Annotated[str, typer.Option(help="Front processes, one run on a new node for each number.")] = "1,2,4,8"
    slots: Annotated[int, typer.Option(min=1, max=10_000, help="Busy slots for each front.")] = 64
    duration: Annotated[float, typer.Option(min=1, max=86_400, help="Seconds measured, for each run.")] = 15
    warmup: shared.Warmup = 4
    frames: shared.Frames = 60
    voice: PacedVoiceOptions = PACED
    processes: ProcessOptions = PROCESSES
    outputs: shared.Outputs = FILES


@_run_by("agent_tts.cli.bench_peers:peers")
class PeersOptions:
    """Compare with qwen-tts and faster-qwen3-tts, where they are installed: one request at a time.

    Every engine has the same checkpoint, text and number of frames, and the machine for itself. This package is
    measured as a node over a WebSocket; the others are called in their process. "ms a frame" is the time of the whole
    request over its frames. qwen-tts does not stream: its first audio is the whole request.
    """

    model: ModelOptions = MODEL
    peers: Annotated[str, typer.Option(help="Packages that are compared with this one.")] = "qwen-tts,faster-qwen3-tts"
    device: Annotated[str, typer.Option(help="Of every engine: auto, cpu, cuda or cuda:1.")] = "auto"
    dtype: Annotated[str, typer.Option(help="Of every engine: auto, float32 or bfloat16.")] = "auto"
    words: Annotated[int, typer.Option(min=1, max=1_000, help="Of the text.")] = 20
    frames: Annotated[int, typer.Option(min=2, max=2_000, help="Most 80 ms frames of a request.")] = 60
    requests: Annotated[int, typer.Option(min=1, max=1_000, help="One after the other, to each engine.")] = 5
    warmups: Annotated[int, typer.Option(min=0, max=1_000, help="Requests before, not measured.")] = 2
    voice: shared.VoiceOptions = VOICE
    outputs: shared.Outputs = FILES


@_run_by("agent_tts.cli.bench_measurements:load")
class LoadOptions:
    """Loads that a node must hold, and its promises under them: exit code 1 if it breaks one.

    sessions: 64 WebSocket sessions at once, on average. mixed: 60 % WebSockets, 20 % HTTP, 20 % WebRTC, texts of 5 to
    2000 characters in 8 languages, 10 % barge-in. storm: 900 connections in 2 s that never send a byte, and 100
    sessions among them. All begin at random times, in client processes, each on a connection of its own.
    """

    node: OwnNodeOptions = OWN
    only: Annotated[str, typer.Option(help="Some of the loads.")] = "sessions,mixed,storm"
    minutes: Annotated[float, typer.Option(min=0.05, max=1_440, help="Of sessions, and of mixed.")] = 1
    voice: shared.Voice = None
    json: shared.Json = None


@_run_by("agent_tts.cli.bench_measurements:soak")
class SoakOptions:
    """Leaks over thousands of short contexts: exit code 1 if memory, descriptors, tasks or slots leak.

    Some clients vanish, by a reset or by closing the connection; the engine process is killed every minute, and its
    contexts fail. Every context must still end exactly once.
    """

    node: OwnNodeOptions = OWN
    contexts: Annotated[int, typer.Option(min=10, max=10_000_000, help="How many.")] = 5_000
    rate: Annotated[float, typer.Option(min=0.1, max=1_000, help="A second, at random times.")] = 12
    vanish: Annotated[float, typer.Option(min=0, max=1, help="Share of clients that leave without a message.")] = 0.1
    kill_every: Annotated[float, typer.Option(min=5, max=86_400, help="Seconds between kills of the engine.")] = 60
    voice: shared.Voice = None
    json: shared.Json = None


@_run_by("agent_tts.cli.bench_measurements:frame")
class FrameOptions:
    """Time of one 80 ms frame on the GPU, whole and by its parts (needs agent-tts\\[qwen])."""

    synthetic: Annotated[str | None, typer.Option(help="Random weights of a size: 1.7B or 0.6B.")] = None
    model: Annotated[Path | None, typer.Option(help="Instead: a checkpoint folder.")] = None
    batches: Annotated[str, typer.Option(help="Rows of a frame, one run for each.")] = "1,2,4,8,16,32,64,128,256"
    context: Annotated[int, typer.Option(min=0, max=2_000, help="Positions before the frame.")] = 300
    fused: Annotated[bool, typer.Option(help="Fused kernels, or the modules as they are.")] = True
    fp8: Annotated[str, typer.Option(help="What is in 8 bits, one run for each: nothing,cache,weights,both.")] = (
        "nothing"
    )
    json: shared.Json = None
