from __future__ import annotations

import operator
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from agent_tts import __version__
from agent_tts.cli.app import app
from agent_tts.cli.options import SETTINGS, ConfigFlags, NodeFlags, reported
from agent_tts.config.settings import Settings
from agent_tts.errors import AtCapacity, SettingsError
from tests.cli.process import environment, run

cli = CliRunner()


def test_version() -> None:
    result = cli.invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"agent-tts {__version__}\n")


@pytest.mark.parametrize(
    "command",
    ["", "serve", "say", "voices", "voices add", "voices delete", "voices list", "doctor", "bench", "bench serve"],
)
def test_every_command_has_help(command: str) -> None:
    for flag in ("-h", "--help"):
        result = cli.invoke(app, [*command.split(), flag])
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
        (PermissionError(13, "Permission denied", "/a"), 1, "agent-tts: /a: Permission denied\n"),
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


@pytest.mark.parametrize(("command", "unbuffered"), [("serve --print-config", ""), ("lexicon try hello", "1")])
def test_a_full_disk_is_told(command: str, unbuffered: str) -> None:
    """Also where the interpreter would meet it at its end."""
    with Path("/dev/full").open("wb") as full:
        done = run(*command.split(), stdout=full, env=environment(PYTHONUNBUFFERED=unbuffered))
    assert (done.returncode, done.stderr) == (1, b"agent-tts: No space left on device\n")


def test_help_has_the_defaults_of_the_settings() -> None:
    """Each option of a setting that tells a default tells the setting's."""
    for group in (NodeFlags, ConfigFlags):
        for name, hint in get_type_hints(group, include_extras=True).items():
            if isinstance(default := hint.__metadata__[0].show_default, str):
                assert default == str(operator.attrgetter(SETTINGS[name])(Settings())), name
    help_ = cli.invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).stdout
    assert "[default: (127.0.0.1)]" in help_
    assert help_.count("agent-tts serve --") == 2


def test_a_setting_for_a_running_node_is_refused() -> None:
    result = cli.invoke(app, ["say", "x", "--url", "127.0.0.1:9", "--set", "espeak.voice=de", "--engine", "tone"])
    assert result.exit_code == 2
    assert "--engine, --set espeak.voice: a running node" in result.stderr


def test_health_of_a_named_node() -> None:
    result = cli.invoke(app, ["health", "--url", "127.0.0.1:9"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no node answers at 127.0.0.1:9: ConnectError" in result.stderr


def test_paths_are_told_whole(tmp_path: Path) -> None:
    told = cli.invoke(app, ["serve", "--config", str(tmp_path)]).stderr
    assert f"--config {tmp_path}: a folder, not a file; the package has agent, cpu, gpu" in told
    told = cli.invoke(app, ["say", "x", "-o", f"{tmp_path}/none/x.wav"]).stderr
    assert told == f"agent-tts: -o {tmp_path}/none/x.wav: No such file or directory\n"
