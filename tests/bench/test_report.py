"""Figures in files and tables, stages of a request, and the device and packages that figures depend on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from unittest import mock

import pytest

from agent_tts import __version__
from agent_tts.bench import report, trace
from agent_tts.bench.report import cuda_of_torch, device
from agent_tts.bench.scenario import CallSample
from agent_tts.doctor.gpu import gpus
from agent_tts.errors import SettingsError


def test_a_document_holds_all_that_repeating_the_measurement_needs(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    report.write_json(path, report.document("serve", {"engine": "tone"}, [{"load": "1/s"}]))
    found = json.loads(path.read_text())
    assert found.keys() == {"bench", "date", "command", "device", "node", "runs"}
    assert found["runs"] == [{"load": "1/s"}]


def test_a_table_shows_a_missing_value_as_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    report.table("title", ("load", "p50"), [("1/s", None), ("2/s", 3.5)])
    said = capsys.readouterr().out
    assert "title" in said
    assert [line.split() for line in said.splitlines()[-2:]] == [["1/s", "-"], ["2/s", "3.5"]]


def test_counts_are_abbreviated() -> None:
    assert report.counted({}) == "0"
    assert report.counted({"starved": 1, "at_capacity": 2}) == "2 at_capacity, 1 starved"


def draw(folder: Path, name: str) -> list[Path]:
    """A plot of each kind."""
    times, lines = report.Plot(folder / f"times-{name}"), report.Plot(folder / f"lines-{name}")
    times.times("title", [("1/s", [3.0, 1.0, 2.0])])
    lines.lines("title", [1, 2], {"cpu": [1.0, 2.0]}, ("streams", "%"))
    times.save()
    lines.save()
    return list(folder.iterdir())


@pytest.fixture(scope="module")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """matplotlib keeps the font files that it used open until the process ends."""
    draw(tmp_path_factory.mktemp("fonts"), "out.png")


@pytest.mark.slow
@pytest.mark.node  # it starts fc-list where no list of fonts is kept yet
@pytest.mark.usefixtures("fonts")
def test_plots_are_drawn(tmp_path: Path) -> None:
    files = [file for suffix in report.PLOT_SUFFIXES for file in draw(tmp_path, f"out{suffix}")]
    assert all(file.stat().st_size > 1_000 for file in files)


def test_a_folder_in_the_place_of_an_output_file_is_refused(tmp_path: Path) -> None:
    """`tests/cli/test_bench.py` has what else is wrong with one, and what is with a plot's."""
    with pytest.raises(SettingsError, match=r"--json .*cannot be written"):
        report.check_output("--json", tmp_path)


@pytest.mark.node  # it starts fc-list where no list of fonts is kept yet
@pytest.mark.usefixtures("fonts")
def test_a_folder_that_disappears_meanwhile_is_a_message(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    picture = report.Plot(tmp_path / "gone/out.png")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SettingsError, match="--plot out"):
        picture.save()
    with pytest.raises(SettingsError, match="--json out"):
        report.write_json(tmp_path / "gone/out.json", {})


def test_a_missing_library_is_reported_before_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SettingsError, match=r"pip install '\.\[bench\]'"):
        report.Plot(tmp_path / "out.png")


ENDS = [end for _, end in trace.STAGES[:-1]]  # the last is the client's


def call(trace_id: str, took_s: float, error: str | None = None) -> CallSample:
    sample = CallSample("websocket", "heard_out", 0, 1.0)
    sample.trace_id, sample.sent_at, sample.first_audio_at, sample.error = trace_id, 1.0, 1.0 + took_s, error
    return sample


def test_stages_sum_up_to_the_time_to_first_audio_and_calls_without_all_points_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    points = {end: 1.001 + 0.001 * place for place, end in enumerate(ENDS)}
    partly = {end: points[end] for end in ENDS[:5]}
    calls = [call("a", 0.020), call("b", 0.020), call("unknown", 0.020), call("a", 0.020, "at_capacity")]
    run = trace.figures("1/s", calls, {"a": points, "b": partly})
    assert (run["requests"], run["untraced"]) == (4, 3)
    p50 = [stage["p50"] for stage in run["stages"].values()]
    assert p50[:-1] == [1.0] * len(ENDS)
    assert sum(p50) == pytest.approx(run["ttfa_ms"]["p50"]) == pytest.approx(20.0)
    trace.show("title", run, width=80)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:11].strip() for line in lines[2:]] == [*(name for name, _ in trace.STAGES), "first audio"]
    assert "█" in lines[2]


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
    monkeypatch.setattr(report, "version", mock.Mock(side_effect=PackageNotFoundError))
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
