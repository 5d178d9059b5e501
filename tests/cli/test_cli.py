"""Commands and options: help, errors and exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from agent_tts import __version__
from agent_tts.cli.app import app
from agent_tts.cli.options import reported
from agent_tts.errors import AtCapacity, SettingsError

cli = CliRunner()


def test_version() -> None:
    result = cli.invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"agent-tts {__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["serve"],
        ["say"],
        ["voices"],
        ["voices", "add"],
        ["voices", "delete"],
        ["voices", "list"],
        ["doctor"],
        ["bench"],
        ["bench", "serve"],
    ],
)
def test_every_command_has_help(arguments: list[str]) -> None:
    for flag in ("-h", "--help"):
        result = cli.invoke(app, [*arguments, flag])
        assert result.exit_code == 0
        assert "Usage:" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serv"], "Did you mean 'serve'?"),
        (["serve", "--prot", "1"], "--port"),
        (["serve", "--port", "70000"], "less than or equal to 65535"),
        (["say"], "Missing argument"),
        (["say", "x", "--speed", "nan"], "less than or equal to 4"),
        (["say", "x", "--seed", str(2**63)], "9223372036854775807"),
        (["doctor", "--port", "999999"], "less than or equal to 65535"),
        (["doctor", "--port", "-1"], "greater than or equal to 0"),
        (["say", "x", "--speed", "9"], "less than or equal to 4"),
        (["say", "x", "--temperature", "-1"], "greater than or equal to 0"),
        (["voices", "ad"], "add"),
        (["voices", "add"], "Missing argument"),
    ],
)
def test_a_wrong_command_or_option_gets_a_suggestion_or_its_limits(arguments: list[str], said: str) -> None:
    result = cli.invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"})
    assert result.exit_code == 2
    assert said in result.output


def test_help_imports_no_heavy_library() -> None:
    code = "import sys; from agent_tts.cli import app; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"numpy", "av", "fastapi", "uvicorn", "aiortc", "pydantic", "asyncio", "matplotlib"}.isdisjoint(found)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (SettingsError("first\nsecond"), 2, "agent-tts: first\nagent-tts: second\n"),
        (AtCapacity("full", retry_after_ms=500), 1, "agent-tts: full (try again in 500 ms)\n"),
        (TimeoutError(), 1, "agent-tts: the node did not answer in time\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_errors_become_messages_and_exit_codes(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as caught, reported():
        raise error
    assert caught.value.exit_code == code
    assert capsys.readouterr().err == said
