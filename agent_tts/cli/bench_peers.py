"""The run of `agent-tts bench peers`: from options to engines that are measured one after the other, and a report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent_tts import __version__
from agent_tts.bench import report
from agent_tts.bench.peers import PEERS, PeerEngine, PeerTask, figures_of, measure_node, measure_peer
from agent_tts.cli.bench_options import ModelOptions, Outputs
from agent_tts.cli.bench_runs import print_memory
from agent_tts.cli.bench_target import Bar, BenchCheckpoint, checkpoint, run, target
from agent_tts.errors import SettingsError, SpeechError

COLUMNS = ("engine", "first audio ms", "ms a frame", "audio s/s", "frames", "GPU MiB", "note")
DTYPES = ("float32", "bfloat16")


def chosen(peers: str) -> list[PeerEngine]:
    """Engines by the names of their packages, separated by commas.

    Raises:
        SettingsError: one of them is not known.
    """
    names = [name.strip() for name in peers.split(",")]
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise SettingsError(f"--peers {','.join(unknown)}: must be of {', '.join(PEERS)}")
    return [PEERS[name] for name in names]


def run_peers(source: ModelOptions, peers: Sequence[PeerEngine], task: PeerTask, outputs: Outputs) -> None:
    """Measure, print, and write down. A peer that is not there, or fails, is told and left out.

    Args:
        task: its model is left to the source.

    Raises:
        SettingsError: the options make no sense here.
        SpeechError: our own node cannot be measured.
    """
    if not source.has_model:
        raise SettingsError("every engine needs the same checkpoint: --synthetic 1.7B or --model FOLDER")
    device, dtype = _where(task.device, task.dtype)
    with checkpoint(source) as made:
        assert made is not None
        task = _told(replace(task, model=str(made.folder), device=device, dtype=dtype), made)
        info, runs = run(_measure(source, made, peers, task))
    report.table(
        f"{task.dtype} on {task.device}, one request at a time, {task.frames} frames",
        COLUMNS,
        [
            (
                *(one["engine"], one["first_audio_ms"], one["frame_ms"], one["audio_s_per_s"], one["frames"]),
                *(one["memory_used_mib"], one["note"]),
            )
            for one in runs
        ],
    )
    print_memory(info)

    def draw(picture: report.Plot) -> None:
        series = {name: [one[f"{key}_ms"] for one in runs] for name, key in _BARS.items()}
        picture.bars(f"{task.frames} frames, one request at a time", [one["engine"] for one in runs], series, "ms")

    outputs.write("peers", info, runs, draw)


_BARS = {"first audio": "first_audio", "a frame": "frame"}


def _told(task: PeerTask, made: BenchCheckpoint) -> PeerTask:
    """With the voice that every engine is to speak with."""
    session = made.session({"voice": task.voice, "instructions": task.instructions})
    named = made.config.tts_model_type == "custom_voice"
    voice = session.get("voice") or (min(made.config.talker.spk_id) if named else None)
    return replace(task, voice=voice, instructions=session.get("instructions"))


def _where(device: str, dtype: str) -> tuple[str, str]:
    """The device and the type of numbers, chosen where they are left to us.

    Raises:
        SettingsError: there is no such device or type.
    """
    try:
        import torch
    except ImportError:
        raise SettingsError("torch is not installed: pip install 'agent-tts[qwen]'") from None
    cuda = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    known = ["cpu", *(["cuda"] if cuda else []), *cuda]
    if device == "auto":
        device = "cuda" if cuda else "cpu"
    if device not in known:
        raise SettingsError(f"--device {device}: must be one of auto, {', '.join(known)}")
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    if dtype not in DTYPES:
        raise SettingsError(f"--dtype {dtype}: must be one of auto, {', '.join(DTYPES)}")
    return device, dtype


async def _measure(
    source: ModelOptions, made: BenchCheckpoint, peers: Sequence[PeerEngine], task: PeerTask
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What our node says of itself, and the figures of every engine that could be measured; ours first."""
    settings = {"qwen3__device": task.device, "qwen3__dtype": task.dtype, "limits__max_frames": task.frames}
    ours = replace(source, synthetic=None, type_=None, model=made.folder)
    session = {"voice": task.voice, "instructions": task.instructions, "lead_ms": None}
    with Bar(None) as bar:
        async with target(ours, session, **settings) as node:
            spoken = await bar.during("agent-tts", measure_node(node.node.ws_url, node.node.key, task))
            info = node.info
        memory = info["gpus"][_index(task.device)]["memory_used_mib"] if "gpus" in info else None
        runs = [_run("agent-tts", __version__, figures_of(spoken), memory, "a node, over a WebSocket")]
        for peer in peers:
            why = peer.missing
            if why is None:
                try:
                    spoken, memory = await bar.during(peer.name, measure_peer(peer, task))
                except (SpeechError, TimeoutError) as error:
                    why = f"cannot be measured: {error or 'it takes too long'}"
            if why is None:
                runs.append(_run(peer.name, peer.installed_version, figures_of(spoken), memory, peer.note))
            else:
                print(f"{peer.name}: {why}", file=sys.stderr)
    return info, runs


def _run(engine: str, version: str, figures: dict[str, Any], memory_mib: int | None, note: str) -> dict[str, Any]:
    return {"engine": engine, "version": version, **figures, "memory_used_mib": memory_mib, "note": note}


def _index(device: str) -> int:
    return int(device.partition(":")[2] or 0)
