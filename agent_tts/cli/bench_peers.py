"""`agent-tts bench peers`: other engines for the same model, one request at a time, same text and number of frames.

The engines run one after the other. Others are called in their own process; ours is a node called over a WebSocket,
which adds its transport to our figures.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from agent_tts import __version__
from agent_tts.bench import report
from agent_tts.bench.client import Caller
from agent_tts.bench.scenario import CallSample, requests, texts_of
from agent_tts.bench.statistics import percentiles
from agent_tts.bench.workers import answers, workers
from agent_tts.cli.bench import MixOptions, NodeOptions, PeersOptions, VoiceOptions, names
from agent_tts.cli.bench_measurements import BenchCheckpoint, checkpoint, played, print_memory, run, target
from agent_tts.cli.progress import progress
from agent_tts.engine_info import FRAME_SAMPLES, SAMPLE_RATE
from agent_tts.errors import SettingsError, SpeechError, needing

MODULE = "agent_tts.bench.peer_process"
LOAD_S = 600.0  # timeout of loading a model and of the warm-up requests
SPEAK_S = 600.0  # timeout of the measured requests
COLUMNS = [
    *(("engine", "engine"), ("first audio ms", "first_audio_ms"), ("audible ms", "audible_ms")),
    *(("ms a frame", "frame_ms"), ("audio s/s", "audio_s_per_s"), ("frames", "frames")),
    *(("GPU MiB", "memory_used_mib"), ("note", "note")),
]
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class PeerEngine:
    name: str  # of the distribution
    module: str
    version: str  # that the benchmark is written for
    note: str

    @property
    def missing(self) -> str | None:
        """How to install the engine; None when it is installed."""
        return None if find_spec(self.module) else f"not installed: pip install {self.name}=={self.version}"

    @property
    def installed_version(self) -> str:
        try:
            return version(self.name)
        except PackageNotFoundError:  # on the path, but not installed
            return "unknown"


QWEN_TTS = PeerEngine("qwen-tts", "qwen_tts", "0.1.1", "does not stream: its first audio is the whole request")
FASTER = PeerEngine("faster-qwen3-tts", "faster_qwen3_tts", "0.2.5", "streams, a chunk for each frame")
PEERS = {peer.name: peer for peer in (QWEN_TTS, FASTER)}


@dataclass(frozen=True, slots=True)
class PeerTask:
    model: str  # folder of a checkpoint
    device: str  # cpu, cuda or cuda:1
    dtype: str  # float32 or bfloat16
    text: str
    frames: int  # of each request, of 80 ms
    voice: str | None
    instructions: str | None
    requests: int = 5
    warmups: int = 2  # requests before, not measured


async def measure_node(url: str, key: str | None, task: PeerTask) -> list[CallSample]:
    """Measure requests to a node, one after the other. Raises SpeechError: one failed."""
    session = {"voice": task.voice, "instructions": task.instructions, "lead_ms": None}
    scenario = requests("agent-tts", concurrency=1, texts=(task.text,), session=session)
    caller, call = Caller(url, key, scenario), next(scenario.chain(0))
    try:
        spoken = [await caller.speak(call, time.monotonic()) for _ in range(task.warmups + task.requests)]
    finally:
        await caller.close()
    for one in spoken[task.warmups :]:
        if one.ttfa_ms is None:
            raise SpeechError(f"a request to the node failed: {one.error or 'it was silent'}")
    return spoken[task.warmups :]


async def measure_peer(peer: PeerEngine, task: PeerTask) -> tuple[list[CallSample], int | None]:
    """Measure another engine; also the MiB of GPU memory in use then. Raises SpeechError, TimeoutError."""
    job = {"engine": peer.name, **asdict(task)}
    async with workers(MODULE, [job], ready_s=LOAD_S) as found:
        (answer,) = await answers(found, {}, SPEAK_S)
    return [CallSample(**one) for one in answer["requests"]], answer["memory_used_mib"]


def figures_of(spoken: Sequence[CallSample]) -> dict[str, Any]:
    """Figures of requests: medians, and the total throughput."""

    def median(values: Sequence[float | None]) -> float | None:
        return percentiles(values, 50, digits=3)["p50"]

    samples = [round(one.audio_s * SAMPLE_RATE) for one in spoken]
    whole_s = [one.stay_s or 0.0 for one in spoken]
    return {
        "requests": len(spoken),
        "frames": median([count / FRAME_SAMPLES for count in samples]),
        "first_audio_ms": median([one.ttfa_ms for one in spoken]),
        "audible_ms": median([one.audible_ms for one in spoken]),
        "frame_ms": median([1_000 * s * FRAME_SAMPLES / n for n, s in zip(samples, whole_s, strict=True) if n]),
        "audio_s_per_s": round(sum(samples) / SAMPLE_RATE / sum(whole_s), 3),
    }


def peers(options: PeersOptions) -> None:
    """Measure, print, and write down. A peer that is not installed, or fails, is named on stderr and left out."""
    if options.mix is not None:
        _on_both(options, options.mix)
        return
    wanted = [PEERS[name] for name in names("--peers", options.peers, PEERS)]
    if not options.node.has_model:
        raise SettingsError("every engine needs the same checkpoint: --synthetic 1.7B or --model FOLDER")
    device, dtype = _where(options.device, options.dtype)
    with checkpoint(options.node) as made:
        assert made is not None
        session = made.session(options.voice.session)
        named = made.config.tts_model_type == "custom_voice"
        task = PeerTask(
            str(made.folder),
            *(device, dtype, texts_of(options.words)[0], options.frames),
            session.get("voice") or (min(made.config.talker.spk_id) if named else None),
            session.get("instructions"),
            *(options.requests, options.warmups),
        )
        info, runs = run(_measure(options.node, made, wanted, task))
    title = f"{task.dtype} on {task.device}, one request at a time, {task.frames} frames"
    report.table_of(title, COLUMNS, runs)
    print_memory(info)
    series = {"first audio": [one["first_audio_ms"] for one in runs], "a frame": [one["frame_ms"] for one in runs]}
    title, engines = f"{task.frames} frames, one request at a time", [one["engine"] for one in runs]
    options.outputs.write("peers", info, runs, lambda plot: plot.bars(title, engines, series, "ms"))


def _on_both(options: PeersOptions, trace: str) -> None:
    """Play a trace on a node of ours, then on another server."""
    if (url := options.other.beside) is None:
        raise SettingsError("--mix is for two servers: add --beside URL")
    frames = options.frames if options.node.has_model else None
    info, runs, ours = played(MixOptions(trace=trace, node=options.node, voice=options.voice, frames=frames))
    node, voice = NodeOptions(url=url, key=options.other.beside_key), VoiceOptions(voice=options.other.beside_voice)
    other, more, theirs = played(MixOptions(trace=trace, node=node, voice=voice))
    runs += [run | {"load": f"{run['load']}, {url}"} for run in more]
    times = [*ours, *((f"{name}, {url}", ms) for name, ms in theirs)]
    options.outputs.write("peers", info | {"beside": other}, runs, lambda plot: plot.times("Both servers", times))


def _where(device: str, dtype: str) -> tuple[str, str]:
    """The device and the dtype, chosen where they are auto. Raises SettingsError: there is no such device or dtype."""
    with needing("qwen"):
        import torch
    cuda = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    known = ["cpu", *(["cuda"] if cuda else []), *cuda]
    if device == "auto":
        device = "cuda" if cuda else "cpu"
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    for option, value, allowed in (("--device", device, known), ("--dtype", dtype, DTYPES)):
        if value not in allowed:
            raise SettingsError(f"{option} {value}: must be one of auto, {', '.join(allowed)}")
    return device, dtype


async def _measure(
    options: NodeOptions, made: BenchCheckpoint, peers: Sequence[PeerEngine], task: PeerTask
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What our node tells of itself, and the figures of every engine that could be measured; ours first."""
    settings = {"qwen3__device": task.device, "qwen3__dtype": task.dtype, "limits__max_frames": task.frames}
    ours = replace(options, synthetic=None, type_=None, model=made.folder)
    session = {"voice": task.voice, "instructions": task.instructions, "lead_ms": None}
    with progress("agent-tts"):
        async with target(ours, session, **settings) as (node, info):
            spoken = await measure_node(node.url, node.key, task)
    gpu = int(task.device.partition(":")[2] or 0)
    memory = info["gpus"][gpu]["memory_used_mib"] if "gpus" in info else None
    about = {"engine": "agent-tts", "version": __version__, "note": "a node, over a WebSocket"}
    runs = [about | figures_of(spoken) | {"memory_used_mib": memory}]
    for peer in peers:
        why = peer.missing
        if why is None:
            try:
                with progress(peer.name):
                    spoken, memory = await measure_peer(peer, task)
            except (SpeechError, TimeoutError) as error:
                why = f"cannot be measured: {error or 'it takes too long'}"
        if why is not None:
            print(f"{peer.name}: {why}", file=sys.stderr)
            continue
        about = {"engine": peer.name, "version": peer.installed_version, "note": peer.note}
        runs.append(about | figures_of(spoken) | {"memory_used_mib": memory})
    return info, runs
