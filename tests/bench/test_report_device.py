"""The device and the packages that figures depend on are recorded where available."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from agent_tts import __version__
from agent_tts.bench import report
from agent_tts.bench.report import cuda_of_torch, device
from agent_tts.doctor.gpu import gpus

SMI = "NVIDIA H200, 570.86.15, 24310, 143771, 118852"
H200 = {
    "name": "NVIDIA H200",
    "driver": "570.86.15",
    "memory_used_mib": 24310,
    "memory_total_mib": 143771,
    "memory_free_mib": 118852,
}


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Install a fake nvidia-smi as the only program in PATH."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!{sys.executable}\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(folder))


def test_the_device_is_described() -> None:
    found = device()
    assert found["cores"] == os.cpu_count()
    assert found["cpu"]
    assert found["versions"]["agent-tts"] == __version__
    assert found["versions"]["websockets"]


def test_packages_that_are_not_installed_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(report, "version", missing)
    assert device()["versions"] == {"agent-tts": __version__}


@pytest.mark.node
def test_torch_is_described_without_importing_it() -> None:
    program = "import sys\nfrom agent_tts.bench.report import device\ndevice()\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


@pytest.mark.node
@pytest.mark.skipif(sys.platform == "win32", reason="the fake nvidia-smi is a shell script")
def test_nvidia_smi_is_queried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    untold = SMI.replace("24310", "[N/A]")
    nvidia_smi(tmp_path, monkeypatch, f"print({SMI!r}); print({untold!r})")
    assert gpus() == [H200, H200 | {"memory_used_mib": None}]
    assert device()["gpus"] == [{"name": "NVIDIA H200", "driver": "570.86.15", "memory_total_mib": 143771}] * 2


@pytest.mark.node
@pytest.mark.skipif(sys.platform == "win32", reason="the fake nvidia-smi is a shell script")
def test_without_a_driver_there_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, monkeypatch, "raise SystemExit(9)")
    assert gpus() == []
    assert "gpus" not in device()
    (tmp_path / "nvidia-smi").unlink()
    assert gpus() == []


@pytest.mark.parametrize(("line", "cuda"), [("cuda: Optional[str] = '12.8'", "12.8"), ("cuda = None", None)])
def test_the_cuda_of_torch_is_read_from_its_files(
    line: str, cuda: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(f"__version__ = '2.11.0'\n{line}\nhip = '6.0'\n")
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(report, "find_spec", lambda name: spec)
    assert cuda_of_torch() == cuda
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    assert cuda_of_torch() is None
