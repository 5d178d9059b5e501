"""Every tool has help and refuses invalid options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.process import environment, measure


@pytest.mark.parametrize("tool", ["agent", "browser", "cancel", "checkpoint", "parity", "words"])
def test_a_tool_has_help(tool: str) -> None:
    done = measure(tool, "--help", env=environment(COLUMNS="160"))
    assert done.returncode == 0, done.stderr
    assert b"Usage" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cancel", "--streams", "0"), b"Invalid value for '--streams'"),
        (("agent", "--calls", "0"), b"--calls 0: must be whole numbers from 1"),
    ],
)
def test_invalid_options_are_refused(arguments: tuple[str, ...], said: bytes) -> None:
    done = measure(*arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_checkpoint_writes_one_and_lists_the_sizes(tmp_path: Path) -> None:
    done = measure("checkpoint", "--out", str(tmp_path / "new"), "--type", "base")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new/model.safetensors").stat().st_size > 100_000
    done = measure("checkpoint", "--out", str(tmp_path / "other"), "--size", "huge")
    assert done.returncode == 2
    assert b"1.7B" in done.stderr
