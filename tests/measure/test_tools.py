"""Every tool has help."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result


def tool(name: str, *arguments: str) -> Result:
    """Run `python -m tests.measure.NAME` in this process."""
    app = typer.Typer()
    app.command()(import_module(f"tests.measure.{name}").main)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "160"}, catch_exceptions=False)


@pytest.mark.parametrize("name", ["browser", "checkpoint", "door_cost", "ends", "parity", "seams", "start", "words"])
def test_a_tool_has_help(name: str) -> None:
    done = tool(name, "--help")
    assert done.exit_code == 0
    assert "Usage" in done.stdout


def test_checkpoint_writes_one_and_lists_the_sizes(tmp_path: Path) -> None:
    assert tool("checkpoint", "--out", str(tmp_path / "new"), "--type", "base").exit_code == 0
    assert (tmp_path / "new/model.safetensors").stat().st_size > 100_000
    done = tool("checkpoint", "--out", str(tmp_path / "other"), "--size", "huge")
    assert done.exit_code == 2
    assert "1.7B" in done.stderr
