"""The run of `agent-tts bench peers`: engines that are measured one after the other, and a report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent_tts import __version__
from agent_tts.bench import report
from agent_tts.bench.peers import PEERS, PeerEngine, PeerTask, figures_of, measure_node, measure_peer
from agent_tts.cli.bench_options import ModelOptions, Outputs
from agent_tts.cli.bench_runs import BenchCheckpoint, checkpoint, print_memory, progress, run, target
from agent_tts.errors import SettingsError, SpeechError

# Column -> figure.
COLUMNS = {
    "engine": "engine",
    "first audio ms": "first_audio_ms",
    "ms a frame": "frame_ms",
    "audio s/s": "audio_s_per_s",
    "frames": "frames",
    "GPU MiB": "memory_used_mib",
    "note": "note",
}
DTYPES = ("float32", "bfloat16")


def chosen(peers: str) -> list[PeerEngine]:
    """Engines by the names of their packages, separated by commas. Raises SettingsError: one of them is not known."""
    names = [name.strip() for name in peers.split(",")]
    if unknown := [name for name in names if name not in PEERS]:
        raise SettingsError(f"--peers {','.join(unknown)}: must be of {', '.join(PEERS)}")
    return [PEERS[name] for name in names]


def run_peers(options: ModelOptions, peers: Sequence[PeerEngine], task: PeerTask, outputs: Outputs) -> None:
    """Measure, print, and write down. A peer that is not installed, or fails, is named on stderr and left out.

    Args:
        task: without its model, which the options name.

    Raises:
        SettingsError: the options make no sense here.
        SpeechError: our own node cannot be measured.
    """
    if not options.has_model:
        raise SettingsError("every engine needs the same checkpoint: --synthetic 1.7B or --model FOLDER")
    device, dtype = _where(task.device, task.dtype)
    with checkpoint(options) as made:
        assert made is not None
        session = made.session({"voice": task.voice, "instructions": task.instructions})
        named = made.config.tts_model_type == "custom_voice"
        voice = session.get("voice") or (min(made.config.talker.spk_id) if named else None)
        task = replace(task, model=str(made.folder), device=device, dtype=dtype)
        task = replace(task, voice=voice, instructions=session.get("instructions"))
        info, runs = run(_measure(options, made, peers, task))
    title = f"{task.dtype} on {task.device}, one request at a time, {task.frames} frames"
    report.table(title, list(COLUMNS), [[one[figure] for figure in COLUMNS.values()] for one in runs])
    print_memory(info)

    def draw(picture: report.Plot) -> None:
        bars = {"first audio": "first_audio_ms", "a frame": "frame_ms"}
        series = {name: [one[figure] for one in runs] for name, figure in bars.items()}
        picture.bars(f"{task.frames} frames, one request at a time", [one["engine"] for one in runs], series, "ms")

    outputs.write("peers", info, runs, draw)


def _where(device: str, dtype: str) -> tuple[str, str]:
    """The device and the dtype, chosen where they are auto. Raises SettingsError: there is no such device or dtype."""
    try:
        import torch
    except ImportError:
        raise SettingsError("torch is not installed: pip install 'agent-tts[qwen]'") from None
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
    options: ModelOptions, made: BenchCheckpoint, peers: Sequence[PeerEngine], task: PeerTask
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What our node tells of itself, and the figures of every engine that could be measured; ours first."""
    settings = {"qwen3__device": task.device, "qwen3__dtype": task.dtype, "limits__max_frames": task.frames}
    ours = replace(options, synthetic=None, type_=None, model=made.folder)
    session = {"voice": task.voice, "instructions": task.instructions, "lead_ms": None}
    with progress("agent-tts"):
        async with target(ours, session, **settings) as found:
            spoken = await measure_node(found.node.ws_url, found.node.key, task)
    info, gpu = found.info, int(task.device.partition(":")[2] or 0)
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
