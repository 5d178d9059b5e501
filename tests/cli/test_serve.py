"""`agent-tts serve`: its settings, its messages and the running node."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from agent_tts.cli import serve
from agent_tts.config.settings import Settings
from tests.cli.process import environment, invoke, run


def test_print_config_shows_flags_over_environment_over_file_and_no_secret(tmp_path: Path) -> None:
    config = tmp_path / "node.yaml"
    config.write_text("slots: 1\nqueue: 1\nlead_ms: 200\n")
    result = invoke(
        *("serve", "--config", str(config), "--slots", "3", "--set", "limits.rtc_peers=5", "--api-key", "sesame"),
        *("--model", "Qwen/A@main", "--model", "a/folder", "--device", "cpu", "--dtype", "float32", "--print-config"),
        AGENT_TTS_SLOTS="2",
        AGENT_TTS_QUEUE="2",
    )
    assert result.returncode == 0, result.stderr
    printed = yaml.safe_load(result.stdout)
    found = [printed["slots"], printed["queue"], printed["lead_ms"], printed["limits"]["rtc_peers"]]
    assert found == [3, 2, 200, 5]
    models = [(model["source"], model["revision"]) for model in printed["qwen3"]["models"]]
    assert models == [("Qwen/A", "main"), ("a/folder", None)]
    assert [printed["qwen3"]["device"], printed["qwen3"]["dtype"]] == ["cpu", "float32"]
    assert b"sesame" not in result.stdout
    assert b"[environment]" in result.stdout


def test_a_key_that_no_header_carries_is_refused() -> None:
    done = invoke("voices", "--url", "http://127.0.0.1:1", AGENT_TTS_KEY="clé")
    assert (done.returncode, b"visible" in done.stderr) == (2, True)


def test_what_an_encoding_lacks_is_written_as_its_number() -> None:
    done = run("serve", "--print-config", env=environment(PYTHONIOENCODING="ascii"))
    assert done.returncode == 0, done.stderr
    assert b"d\\u0292\\u026af" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("serve", "--set", "limits.rtc_peer=5"), b"did you mean limits.rtc_peers?"),
        (("serve", "--set", "slots"), b"--set slots: must be KEY=VALUE"),
        (("serve", "--engine", "expeak"), b"'auto', 'qwen3', 'vox', 'hibari', 'espeak' or 'tone', not 'expeak'"),
        (("serve", "--host", "0.0.0.0"), b"needs auth.api_keys"),
        (("serve", "--config", "nowhere.yaml"), b"nowhere.yaml: no such file"),
        (("agent", "--set", "agent.pipeline=missing.py"), b"is not a Python file"),
        (("agent", "--set", "agent.stt.device=tpu"), b"agent.stt.device on the command line"),  # three levels deep
    ],
)
def test_a_wrong_setting_is_a_message_and_exit_code_2(arguments: tuple[str, ...], said: bytes) -> None:
    result = invoke(*arguments)
    assert (result.returncode, said in result.stderr) == (2, True)


@pytest.mark.parametrize("locked", [False, True])
def test_the_welcome_on_a_terminal_explains_how_to_use_the_node(monkeypatch: pytest.MonkeyPatch, locked: bool) -> None:
    out = io.StringIO()
    monkeypatch.setattr(serve, "Console", lambda **_: Console(file=out, force_terminal=True, width=60, no_color=True))
    auth = {"api_keys": ["sesame"]} if locked else {}
    serve.welcome(Settings.model_validate({"engine": "tone", "engines": 2, "auth": auth}), "http://127.0.0.1:1")
    said = out.getvalue()
    *_, speak, curl = map(shlex.split, said.splitlines())  # to be copied: a line each
    assert speak == ["agent-tts", "say", "--url", "http://127.0.0.1:1", "Hello there."]
    assert curl[1] == "http://127.0.0.1:1/v1/audio/speech"
    assert json.loads(curl[curl.index("--json") + 1])["input"] == "Hello there."
    assert "http://127.0.0.1:1/ " in said
    assert "tone, 2 processes" in said
    assert ("$AGENT_TTS_KEY" in said) is locked
    assert "sesame" not in said


@pytest.mark.parametrize(
    ("engine", "found", "told"), [("auto", "espeak", 1), ("auto", "hibari", 0), ("espeak", "espeak", 0)]
)
@pytest.mark.parametrize("terminal", [True, False])
def test_who_hears_the_robot_for_want_of_better_is_told_how_to_get_the_natural_voice(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, engine: str, found: str, told: int
) -> None:
    """After the address, which programs read."""
    out = io.StringIO()
    monkeypatch.setattr(serve, "Console", lambda **_: Console(file=out, force_terminal=terminal, no_color=True))
    monkeypatch.setattr(serve, "chosen_engine", lambda _: found)
    serve.welcome(Settings.model_validate({"engine": engine}), "http://127.0.0.1:1")
    assert out.getvalue().count("pip install '.[voice]'") == told
    assert "http://127.0.0.1:1" in out.getvalue().partition("robot")[0]
