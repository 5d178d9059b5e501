"""Compares this node with other engines for the same model: one request at a time, same text, same number of frames.

The engines run one after the other. Others are called in their own process; ours is a node called over a WebSocket,
which adds its transport to our figures.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from agent_tts.bench.client import Caller
from agent_tts.bench.scenario import requests
from agent_tts.bench.statistics import percentiles
from agent_tts.bench.workers import answers, workers
from agent_tts.errors import SpeechError
from agent_tts.events import FRAME_SAMPLES, SAMPLE_RATE

MODULE = "agent_tts.bench.peer_process"
LOAD_S = 600.0  # timeout of loading a model and of the warm-up requests
SPEAK_S = 600.0  # timeout of the measured requests


@dataclass(frozen=True, slots=True)
class PeerEngine:
    """An engine of another project."""

    name: str  # of the distribution
    module: str
    version: str  # that the benchmark is written for
    note: str

    @property
    def missing(self) -> str | None:
        """How to install the engine; None when it is installed."""
        if find_spec(self.module) is not None:
            return None
        return f"not installed: pip install {self.name}=={self.version}"

    @property
    def installed_version(self) -> str:
        try:
            return version(self.name)
        except PackageNotFoundError:  # on the path, but not installed
            return "unknown"


PEERS = {
    peer.name: peer
    for peer in (
        PeerEngine("qwen-tts", "qwen_tts", "0.1.1", "does not stream: its first audio is the whole request"),
        PeerEngine("faster-qwen3-tts", "faster_qwen3_tts", "0.2.5", "streams, a chunk for each frame"),
    )
}


@dataclass(frozen=True, slots=True)
class PeerTask:
    """The task of each engine."""

    model: str  # folder of a checkpoint
    device: str  # cpu, cuda or cuda:1
    dtype: str  # float32 or bfloat16
    text: str
    frames: int  # of each request, of 80 ms
    voice: str | None
    instructions: str | None
    requests: int = 5
    warmups: int = 2  # requests before, not measured


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """Figures of one request."""

    first_audio_s: float  # from its text to its first audio
    whole_s: float  # from its text to its end
    samples: int

    @property
    def frames(self) -> float:
        return self.samples / FRAME_SAMPLES


async def measure_node(url: str, key: str | None, task: PeerTask) -> list[PeerRequest]:
    """Measure requests to a node, one after the other. Raises SpeechError: a request failed."""
    session = {"voice": task.voice, "instructions": task.instructions, "lead_ms": None}
    scenario = requests("agent-tts", concurrency=1, texts=(task.text,), session=session)
    caller, call = Caller({"ws": url}, key, scenario), next(scenario.chain(0))
    try:
        samples = [await caller.speak(call, time.monotonic()) for _ in range(task.warmups + task.requests)]
    finally:
        await caller.close()
    spoken = []
    for one in samples[task.warmups :]:
        if one.ttfa_ms is None or one.sent_at is None or one.ended_at is None:
            raise SpeechError(f"a request to the node failed: {one.error or 'it was silent'}")
        spoken.append(PeerRequest(one.ttfa_ms / 1_000, one.ended_at - one.sent_at, round(one.audio_s * SAMPLE_RATE)))
    return spoken


async def measure_peer(peer: PeerEngine, task: PeerTask) -> tuple[list[PeerRequest], int | None]:
    """Measure another engine; also the MiB of GPU memory in use then. Raises SpeechError, TimeoutError."""
    job = {"engine": peer.name, **asdict(task)}
    async with workers(MODULE, [job], ready_s=LOAD_S) as found:
        (answer,) = await answers(found, {}, SPEAK_S)
    spoken = [PeerRequest(one["first_audio_s"], one["whole_s"], int(one["samples"])) for one in answer["requests"]]
    return spoken, answer["memory_used_mib"]


def figures_of(spoken: Sequence[PeerRequest]) -> dict[str, Any]:
    """Figures of requests: medians, and the total throughput."""

    def median(values: list[float]) -> float | None:
        return percentiles(values, 50, digits=3)["p50"]

    return {
        "requests": len(spoken),
        "frames": median([one.frames for one in spoken]),
        "first_audio_ms": median([1_000 * one.first_audio_s for one in spoken]),
        "frame_ms": median([1_000 * one.whole_s / one.frames for one in spoken if one.samples]),
        "audio_s_per_s": round(
            sum(one.samples for one in spoken) / SAMPLE_RATE / sum(one.whole_s for one in spoken), 3
        ),
    }
