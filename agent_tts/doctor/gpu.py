"""NVIDIA GPUs: driver, torch, and whether the models of the settings fit. torch is imported in a child process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from agent_tts.config.hub import Absent, look_for_models, readable, with_local_models
from agent_tts.config.settings import Settings
from agent_tts.doctor.finding import Finding, bad, good, note, refused
from agent_tts.engine.factory import chosen_engine
from agent_tts.errors import SettingsError, to_install

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
    """Every GPU, and whether qwen3 would start, on one of them or without."""
    wanted = chosen_engine(settings) == "qwen3"
    present = gpus()
    for index, one in enumerate(present):
        memory = f"{one['memory_free_mib']} of {one['memory_total_mib']} MiB free"
        yield good("gpu", f"{index}: {one['name']}, {memory}, driver {one['driver']}")
    if not present and not wanted:
        yield good("gpu", "none, and none is needed")
    elif not present and settings.qwen3.device.startswith("cpu"):
        yield good("gpu", "none: speech is slow")
    elif not present:
        without = "without one: the engine vox, which is experimental (`agent-tts convert MODEL`)"
        yield note("gpu", "none: speech is slow", f"install NVIDIA's driver; in a container: --gpus all; {without}")
    if wanted:
        yield _torch(wants_gpu=bool(present))
        free, total = max([(one["memory_free_mib"] or 0, one["memory_total_mib"] or 0) for one in present] or [(0, 0)])
        yield from _models(settings, free, total)


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


def _torch(*, wants_gpu: bool) -> Finding:
    if find_spec("torch") is None:
        return bad("torch", "not installed", to_install("qwen"))
    lines = _lines([sys.executable, "-c", _TORCH])
    if not lines:
        return bad("torch", "cannot be imported", "install it again, as pytorch.org says")
    version, cuda, available = lines[-1].split(";")
    if available == "True":
        return good("torch", f"{version}, CUDA {cuda}")
    if not wants_gpu:
        return good("torch", f"{version}, for the CPU")
    advice = "install a torch for CUDA" if cuda == "None" else f"install a driver that knows CUDA {cuda}"
    return bad("torch", f"{version} sees no GPU", advice)


def _models(settings: Settings, free_mib: int, total_mib: int) -> Iterator[Finding]:
    """Whether a node would get its models, and whether they fit: on the GPU with the most free memory, if any."""
    try:
        absent = [place for _, place in look_for_models(settings) if isinstance(place, Absent)]
        if not absent:
            settings = with_local_models(settings)
    except SettingsError as error:
        yield refused("models", error)
        return
    if absent:
        names, size = ", ".join(model.repo for model in absent), readable(sum(model.size for model in absent))
        yield note("models", f"not on this disk: {names}", f"the first start downloads {size}")
        return
    numbers = (free_mib * MIB, total_mib * MIB, settings.slots or 0)
    lines = _lines([sys.executable, "-m", _EXPECTED, *map(str, numbers), settings.qwen3.model_dump_json()])
    if not lines:
        yield note("models", "cannot be examined", "install torch and triton")
        return
    found = json.loads(lines[-1])
    if "error" in found:
        yield refused("models", SettingsError(found["error"]))
    else:
        room = f"memory for {found['streams']} streams at once, for {found['most']} with more slots"
        yield good("models", f"{found['slots']} slots; {room} (computed; `agent-tts bench streams` measures)")
