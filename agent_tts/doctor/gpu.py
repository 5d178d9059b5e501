"""NVIDIA GPUs: driver, torch, and whether the models of the settings fit. torch is imported in a child process."""

from __future__ import annotations

import json
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
_EXPECTED = "agent_tts.engine.qwen3.expected"  # imports torch

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
        free, total = max((one["memory_free_mib"] or 0, one["memory_total_mib"] or 0) for one in present)
        yield from _models(settings, free, total)
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


def _models(settings: Settings, free_mib: int, total_mib: int) -> Iterator[Finding]:
    """Whether the models fit the GPU with the most free memory, and for how many streams it has memory."""
    folders = {model.source: _folder(model) for model in settings.qwen3.models}
    if absent := [source for source, folder in folders.items() if folder is None]:
        yield note("models", f"not on this disk: {', '.join(absent)}", "the first start downloads them")
        return
    models = [{"source": str(folders[model.source]), "load": model.load} for model in settings.qwen3.models]
    section = settings.qwen3.model_dump(mode="json") | {"models": models}
    numbers = (free_mib * MIB, total_mib * MIB, settings.slots or 0)
    lines = _lines([sys.executable, "-m", _EXPECTED, *map(str, numbers), json.dumps(section)])
    if not lines:
        yield note("models", "cannot be examined", "install torch and triton")
        return
    found = json.loads(lines[-1])
    if "error" in found:
        problem, _, advice = found["error"].rpartition("; ")
        yield bad("models", problem or advice, advice)
    else:
        room = f"memory for {found['streams']} streams at once, for {found['most']} with more slots"
        yield good("models", f"{found['slots']} slots; {room} (computed; `agent-tts bench streams` measures)")


def _folder(model: Checkpoint) -> Path | None:
    """Where a model is on this disk."""
    folder = Path(model.source).expanduser()
    if folder.is_dir():
        return folder
    snapshots = hub_cache() / f"models--{model.source.replace('/', '--')}" / "snapshots"
    return next((place for place in snapshots.glob("*") if model.revision in (None, place.name)), None)
