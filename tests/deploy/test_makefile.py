"""What `make serve` checks and installs, with a Python and a pip that answer as the real ones do."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_WHEEL = "ERROR: No matching distribution found for onnxruntime"  # on Alpine, and on armv7
GPU = "echo GPU 0: one"  # what `nvidia-smi` does


def script(path: Path, body: str) -> Path:
    """A program of the shell, in a folder that may be new."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def installed(folder: Path, *, onnxruntime: str = "", voice: str = "") -> subprocess.CompletedProcess[str]:
    """Make the target that `make serve` needs; pip fails with these words for what they are of."""
    cases = {"no-deps*onnxruntime": onnxruntime, "voice": voice}
    fails = [f"*{what}*) echo '{words}' >&2; exit 1 ;;" for what, words in cases.items() if words]
    script(folder / "bin" / "python", f'echo "$@" >>{folder}/asked\ncase "$*" in {" ".join(fails)} *) ;; esac')
    return made(folder, f"{folder}/base")


def made(venv: Path, *arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment["PATH"] = f"{path}:{environment['PATH']}" if path else environment["PATH"]
    command = ("make", "--silent", f"VENV={venv}", *arguments)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30, check=False)


def test_the_natural_voice_is_installed_with_the_rest(tmp_path: Path) -> None:
    done = installed(tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    asked = [line for line in (tmp_path / "asked").read_text().splitlines() if line.startswith("-m pip")]
    assert [line.split()[-1] for line in asked] == [".", "onnxruntime", ".[voice]"]
    assert all("--constraint configs/constraints.txt" in line for line in asked[::2])


@pytest.mark.parametrize("fails", [False, True])
def test_a_node_on_a_gpu_has_compiled_what_its_flags_ask_for_before_it_starts(tmp_path: Path, fails: bool) -> None:
    """Whether its kernels can be compiled or not."""
    script(tmp_path / "bin" / "agent-tts", f'echo "$@" >>{tmp_path}/asked\n' + '[ "$1" != compile ]' * fails)
    script(tmp_path / "bin" / "python", "exit 0")
    script(tmp_path / "nvidia-smi", GPU)
    (tmp_path / "qwen").touch()
    done = made(tmp_path, f"--assume-old={tmp_path}/qwen", "serve-qwen", "ARGS=--slots 8", path=tmp_path)
    assert done.returncode == 0, done.stderr
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


# ---------------------------------------------------------------- the virtual environment

# A Python of some version, which makes environments of its own kind; what they are asked to install they note.
PYTHON = """case "$*" in
    --version) echo Python {version}.9 ;;
    *version_info*"<"*) exit {too_old} ;;
    *version_info*) echo Python {version} ;;
    "-m venv "*) mkdir -p $3/bin && cp {script} $3/bin/python && touch $3/pyvenv.cfg; exit {fails} ;;
    *) echo "$@" >>{folder}/asked ;;
esac
"""


def python(folder: Path, version: str, *, fails: int = 0) -> Path:
    path, too_old = folder / f"python{version}", int(version == "3.10")
    return script(path, PYTHON.format(version=version, too_old=too_old, script=path, fails=fails, folder=folder))


def test_the_oldest_python_is_that_of_the_package() -> None:
    """The Pythons of the other tests are scripts, which do not read the number."""
    wanted = re.findall(
        r"version_info < \((\d+), (\d+)\)|Python (\d+)\.(\d+) or newer", (ROOT / "Makefile").read_text()
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {f">={'.'.join(filter(None, numbers))}" for numbers in wanted} == {project["requires-python"]}
    assert len(wanted) == 2


@pytest.mark.parametrize("target", ["serve", "serve-qwen", "agent", "check", "quick", "test", "release-check"])
def test_a_python_that_is_too_old_is_told_in_a_line_before_anything_is_made(tmp_path: Path, target: str) -> None:
    script(tmp_path / "nvidia-smi", GPU)
    venv, old = tmp_path / "venv", python(tmp_path, "3.10")
    done = made(venv, target, f"PYTHON={old}", path=tmp_path)
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert said == [
        f"Python 3.11 or newer is needed, and {old} is Python 3.10.9: choose one, such as "
        f"make {target} PYTHON=python3.12"
    ]
    assert done.returncode != 0
    assert not venv.exists()
    assert not (tmp_path / "asked").exists()


def test_an_environment_that_is_broken_or_too_old_is_made_anew_with_what_was_in_it(tmp_path: Path) -> None:
    venv, new = tmp_path / "venv", python(tmp_path, "3.12")
    base = f"{venv}/base"
    for kind in ("absent", "empty", "dangling", "old"):
        if kind == "empty":
            (venv / "bin" / "python").unlink()
        elif kind == "dangling":
            (venv / "bin" / "python").unlink()
            (venv / "bin" / "python").symlink_to("/no/such/python")
        elif kind == "old":
            (venv / "bin" / "python").unlink()
            (venv / "bin" / "python").symlink_to(python(tmp_path, "3.10"))
        (tmp_path / "asked").unlink(missing_ok=True)
        done = made(venv, base, f"PYTHON={new}")
        assert done.returncode == 0, done.stderr
        assert ("made anew" in done.stdout) is (kind != "absent")
        assert "--editable ." in (tmp_path / "asked").read_text(), kind
    (tmp_path / "asked").unlink()
    assert made(venv, base, f"PYTHON={new}").returncode == 0  # nothing is installed twice
    assert not (tmp_path / "asked").exists()


def test_another_python_than_that_of_the_environment_is_named(tmp_path: Path) -> None:
    """Not by its default: `python3` may have become another one since."""
    venv = tmp_path / "venv"
    assert made(venv, f"{venv}/base", f"PYTHON={python(tmp_path, '3.12')}").returncode == 0
    assert made(venv, f"{venv}/base").returncode == 0
    done = made(venv, f"{venv}/base", f"PYTHON={python(tmp_path, '3.13')}")
    assert done.returncode != 0
    assert "has Python 3.12, and" in done.stderr
    assert "make clean" in done.stderr


def test_an_environment_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    """On Debian without python3-venv it has a Python and no pip."""
    venv = tmp_path / "venv"
    done = made(venv, f"{venv}/base", f"PYTHON={python(tmp_path, '3.11', fails=1)}")
    assert done.returncode != 0
    assert not venv.exists()


@pytest.mark.parametrize("smi", [None, "echo No devices were found; exit 6", "echo NVIDIA-SMI has failed >&2; exit 9"])
def test_without_a_gpu_nothing_is_installed_for_one(tmp_path: Path, smi: str | None) -> None:
    if smi is not None:
        script(tmp_path / "nvidia-smi", smi)
    venv = tmp_path / "venv"
    done = made(venv, "serve-qwen", f"PYTHON={python(tmp_path, '3.12')}", path=tmp_path)
    assert done.returncode != 0
    assert "needs an NVIDIA GPU" in done.stderr
    assert not venv.exists()


def test_with_a_gpu_the_sizes_come_before_the_downloads_whose_progress_is_shown(tmp_path: Path) -> None:
    script(tmp_path / "nvidia-smi", GPU)
    venv = tmp_path / "venv"
    done = made(venv, "serve-qwen", f"PYTHON={python(tmp_path, '3.12')}", path=tmp_path)
    assert "13.6 GB together" in done.stdout
    (asked,) = [line for line in (tmp_path / "asked").read_text().splitlines() if line.endswith(".[qwen]")]
    assert "--quiet" not in asked
