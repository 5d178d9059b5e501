"""What figures depend on: the machine, its GPUs, and the versions of what runs on them. Nothing heavy is imported."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent_tts import __version__

PACKAGES = ("uvicorn", "uvloop", "websockets", "aiortc", "numpy", "torch", "triton")
NVIDIA_SMI_S = 20.0
_GPU = ("name", "driver_version", "memory.used", "memory.total")


def device() -> dict[str, Any]:
    """The machine and the versions. What is not there is left out."""
    found: dict[str, Any] = {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {"agent-tts": __version__, **versions(*PACKAGES)},
    }
    if present := gpus():
        found["gpus"] = [{name: gpu[name] for name in ("name", "driver", "memory_total_mib")} for gpu in present]
    if cuda := cuda_of_torch():
        found["cuda"] = cuda
    return found


def versions(*packages: str) -> dict[str, str]:
    """Of the distributions that are installed, by name."""
    found = {}
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def gpus() -> list[dict[str, Any]]:
    """Every NVIDIA GPU: `name`, `driver`, `memory_used_mib` of all processes now, `memory_total_mib`.

    Empty where nvidia-smi is missing or fails. It takes some tenths of a second.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={','.join(_GPU)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_gpus(done.stdout)


def parse_gpus(text: str) -> list[dict[str, Any]]:
    """What nvidia-smi says of each GPU; a size that it does not tell is None."""
    rows = [[part.strip() for part in line.rsplit(",", len(_GPU) - 1)] for line in text.splitlines()]
    return [
        {"name": row[0], "driver": row[1], "memory_used_mib": _mib(row[2]), "memory_total_mib": _mib(row[3])}
        for row in rows
        if len(row) == len(_GPU)
    ]


def cuda_of_torch() -> str | None:
    """The CUDA that the installed torch is built for; None without torch, and for a build without CUDA."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    with contextlib.suppress(OSError):
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
        if found := re.search(r"^cuda\b[^=]*=\s*['\"]([0-9.]+)['\"]", text, re.MULTILINE):
            return found[1]
    return None


def _cpu() -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor()


def _mib(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
