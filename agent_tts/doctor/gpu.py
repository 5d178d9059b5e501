"""NVIDIA GPUs: driver, torch, and whether the models of the settings fit. torch is imported in a child process."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from agent_tts.config.settings import Checkpoint, Settings
from agent_tts.doctor.finding import Finding, Verdict
from agent_tts.doctor.storage import hub_cache

TIMEOUT_S = 30.0  # torch takes some seconds to load from a cold disk
MIB = 1 << 20

_QUERY = ("--query-gpu=index,name,driver_version,memory.total,memory.free", "--format=csv,noheader,nounits")
_TORCH = "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available(), sep=';')"


def gpu(settings: Settings) -> Iterator[Finding]:
    """Every GPU, and whether qwen3 can use it."""
    wanted = settings.engine in ("auto", "qwen3") and bool(settings.qwen3.models)
    smi = shutil.which("nvidia-smi")
    rows = _lines([smi, *_QUERY]) if smi else []
    if not rows:
        missing = Verdict.NOTE if wanted and not settings.qwen3.device.startswith("cpu") else Verdict.GOOD
        advice = "install NVIDIA's driver; in a container: --gpus all" if missing is Verdict.NOTE else ""
        yield Finding("gpu", missing, "none, and none is needed" if not wanted else "none: speech is slow", advice)
        return
    free_mib: list[int] = []
    for row in rows:
        index, name, driver, total, free = (field.strip() for field in row.split(","))
        free_mib.append(int(free) if free.isdecimal() else 0)
        yield Finding("gpu", Verdict.GOOD, f"{index}: {name}, {free} of {total} MiB free, driver {driver}")
    if wanted:
        yield _torch()
        yield from _models(settings, max(free_mib))


def _lines(command: list[str]) -> list[str]:
    """The output lines of a command; none when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()


def _torch() -> Finding:
    try:
        importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding("torch", Verdict.BAD, "not installed", "pip install 'agent-tts[qwen]'")
    lines = _lines([sys.executable, "-c", _TORCH])
    if not lines:
        return Finding("torch", Verdict.BAD, "cannot be imported", "install it again, as pytorch.org says")
    version, cuda, available = lines[-1].split(";")
    if available == "True":
        return Finding("torch", Verdict.GOOD, f"{version}, CUDA {cuda}")
    advice = "install a torch for CUDA" if cuda == "None" else f"install a driver that knows CUDA {cuda}"
    return Finding("torch", Verdict.BAD, f"{version} sees no GPU", advice)


def _models(settings: Settings, free_mib: int) -> Iterator[Finding]:
    """The size of weights that are loaded at the start, against the memory for them on the GPU with the most free."""
    sizes = {model.source: _size(model) for model in settings.qwen3.models if model.load == "start"}
    absent = [source for source, size in sizes.items() if not size]
    if absent:
        yield Finding(
            "models", Verdict.NOTE, f"not on this disk: {', '.join(absent)}", "the first start downloads them"
        )
    needed = sum(sizes.values()) // MIB
    allowed = round(free_mib * min(settings.qwen3.memory, 0.85))
    if needed > allowed:
        advice = "free the GPU, use a 0.6B model, or `load: first_use` for some"
        yield Finding("models", Verdict.BAD, f"{needed} MiB of weights, {allowed} MiB of memory for them", advice)
    elif needed:
        yield Finding("models", Verdict.GOOD, f"{needed} MiB of weights, {allowed} MiB for them and their caches")


def _size(model: Checkpoint) -> int:
    """Bytes of a model's weights on this disk; 0 when there are none."""
    folder = Path(model.source).expanduser()
    if not folder.is_dir():
        snapshots = hub_cache() / f"models--{model.source.replace('/', '--')}" / "snapshots"
        found = [place for place in snapshots.glob("*") if model.revision in (None, place.name)]
        if not found:
            return 0
        folder = found[0]
    return sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
