"""NVIDIA GPUs: driver, torch, and whether the models of the settings fit. torch is imported in a child process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent_tts.config.settings import Checkpoint, Settings
from agent_tts.doctor.finding import Finding, bad, good, note
from agent_tts.doctor.machine import hub_cache

TIMEOUT_S = 30.0  # torch takes some seconds to load from a cold disk
MIB = 1 << 20

_SIZES = ("memory_used_mib", "memory_total_mib", "memory_free_mib")
_SMI = (
    "nvidia-smi",
    "--query-gpu=name,driver_version,memory.used,memory.total,memory.free",
    "--format=csv,noheader,nounits",
)
_TORCH = "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available(), sep=';')"


def gpu(settings: Settings) -> Iterator[Finding]:
    """Every GPU, and whether qwen3 can use it."""
    wanted = settings.engine in ("auto", "qwen3") and bool(settings.qwen3.models)
    present = gpus()
    for index, one in enumerate(present):
        memory = f"{one['memory_free_mib']} of {one['memory_total_mib']} MiB free"
        yield good("gpu", f"{index}: {one['name']}, {memory}, driver {one['driver']}")
    if wanted and present:
        yield _torch()
        yield from _models(settings, max(one["memory_free_mib"] or 0 for one in present))
    elif wanted and not settings.qwen3.device.startswith("cpu"):
        yield note("gpu", "none: speech is slow", "install NVIDIA's driver; in a container: --gpus all")
    elif not present:
        yield good("gpu", "none: speech is slow" if wanted else "none, and none is needed")


def gpus() -> list[dict[str, Any]]:
    """Each NVIDIA GPU: `name`, `driver`, and `memory_used_mib` of all processes now, `memory_total_mib`, free.

    A size that nvidia-smi does not tell is None. Empty where it is missing or fails. Takes some tenths of a second.
    """
    found = []
    for line in _lines(_SMI) if shutil.which(_SMI[0]) else ():
        name, driver, *sizes = (part.strip() for part in line.rsplit(",", 4))
        mib = [int(size) if size.isdecimal() else None for size in sizes]
        found.append({"name": name, "driver": driver, **dict(zip(_SIZES, mib, strict=True))})
    return found


def _lines(command: Sequence[str]) -> list[str]:
    """The output lines of a command; none when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()


def _torch() -> Finding:
    if find_spec("torch") is None:
        return bad("torch", "not installed", "pip install 'agent-tts[qwen]'")
    lines = _lines([sys.executable, "-c", _TORCH])
    if not lines:
        return bad("torch", "cannot be imported", "install it again, as pytorch.org says")
    version, cuda, available = lines[-1].split(";")
    if available == "True":
        return good("torch", f"{version}, CUDA {cuda}")
    advice = "install a torch for CUDA" if cuda == "None" else f"install a driver that knows CUDA {cuda}"
    return bad("torch", f"{version} sees no GPU", advice)


def _models(settings: Settings, free_mib: int) -> Iterator[Finding]:
    """The size of weights that are loaded at the start, against the memory for them on the GPU with the most free."""
    sizes = {model.source: _size(model) for model in settings.qwen3.models if model.load == "start"}
    absent = [source for source, size in sizes.items() if not size]
    if absent:
        yield note("models", f"not on this disk: {', '.join(absent)}", "the first start downloads them")
    needed = sum(sizes.values()) // MIB
    allowed = round(free_mib * min(settings.qwen3.memory, 0.85))
    if needed > allowed:
        advice = "free the GPU, use a 0.6B model, or `load: first_use` for some"
        yield bad("models", f"{needed} MiB of weights, {allowed} MiB of memory for them", advice)
    elif needed:
        yield good("models", f"{needed} MiB of weights, {allowed} MiB for them and their caches")


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
