"""What `make serve` installs, with a pip that answers as the real one does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_WHEEL = "ERROR: No matching distribution found for onnxruntime"  # on Alpine, and on armv7


def installed(folder: Path, *, onnxruntime: str = "", voice: str = "") -> subprocess.CompletedProcess[str]:
    """Make the target that `make serve` needs; pip fails with these words for what they are of."""
    python = folder / "bin" / "python"
    python.parent.mkdir()
    cases = {"no-deps*onnxruntime": onnxruntime, "voice": voice}
    fails = [f"*{what}*) echo '{words}' >&2; exit 1 ;;" for what, words in cases.items() if words]
    python.write_text(f'#!/bin/sh\necho "$@" >>{folder}/asked\ncase "$*" in {" ".join(fails)} *) ;; esac\n')
    python.chmod(0o755)
    command = ("make", "--silent", f"VENV={folder}", f"{folder}/base")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30, check=False)


def test_the_natural_voice_is_installed_with_the_rest(tmp_path: Path) -> None:
    done = installed(tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[-1] for line in asked] == [".", "onnxruntime", ".[voice]"]
    assert all("--constraint configs/constraints.txt" in line for line in asked[::2])


@pytest.mark.parametrize("fails", [False, True])
def test_a_node_on_a_gpu_has_compiled_what_its_flags_ask_for_before_it_starts(tmp_path: Path, fails: bool) -> None:
    """Whether its kernels can be compiled or not."""
    (tmp_path / "bin").mkdir()
    node = tmp_path / "bin" / "agent-tts"
    node.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n' + '[ "$1" != compile ]\n' * fails)
    node.chmod(0o755)
    command = ["make", "--silent", f"VENV={tmp_path}", f"--assume-old={tmp_path}/qwen", "serve-qwen", "ARGS=--slots 8"]
    (tmp_path / "qwen").touch()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    subprocess.run(command, cwd=ROOT, env=environment, timeout=30, check=True)
    flags = "--config gpu --slots 8"
    assert (tmp_path / "asked").read_text().splitlines() == [f"compile {flags}", f"serve {flags}"]


def test_where_it_has_no_wheel_all_else_is_there_and_one_line_says_so(tmp_path: Path) -> None:
    done = installed(tmp_path, onnxruntime=NO_WHEEL)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1), done.stderr
    assert "no natural voice" in done.stdout
    assert (tmp_path / "base").exists()


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ("onnxruntime", "WARNING: Retrying (Retry(total=0 ...\n" + NO_WHEEL),  # without a network
        ("onnxruntime", "ERROR: Could not install packages due to an OSError: No space left on device"),
        (
            "voice",
            "ERROR: Cannot install agent-tts[voice] because these package versions have conflicting dependencies.",
        ),
    ],
)
def test_any_other_failure_is_one(tmp_path: Path, of: str, words: str) -> None:
    done = installed(tmp_path, **{of: words})
    assert done.returncode != 0
    assert words in done.stderr
    assert not (tmp_path / "base").exists()
