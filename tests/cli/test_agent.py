"""`agent-tts agent`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import yaml

from tests.cli.process import environment, invoke, run, start

ROOT = Path(__file__).parents[2]


def test_it_serves_the_node_and_the_agent_and_exits_on_sigterm() -> None:
    settings = ("--set", "agent.stt.kind=none", "--llm", "http://127.0.0.1:9/v1")
    process = start("agent", "--config", "agent", "--port", "0", "--engine", "tone", "--log-level", "error", *settings)
    assert process.stderr is not None
    try:
        url = process.stderr.readline().decode().removeprefix("agent-tts: ").strip()
        assert httpx.get(f"{url}/health").json()["status"] == "ok"
        assert httpx.get(f"{url}/api/agent", timeout=20).json()["llm"]["kind"] == "builtin"
    finally:
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=30)
    assert process.returncode == 0, rest
    assert rest == b""


def test_a_copy_of_the_pipeline_runs_as_a_script(tmp_path: Path) -> None:
    """With the options of `agent-tts agent`, and as the pipeline of every call."""
    copy = tmp_path / "my_agent.py"
    copy.write_text((ROOT / "pipelines" / "voice_agent.py").read_text())
    command = (sys.executable, str(copy), "--llm", "http://llm/v1", "--print-config")
    result = subprocess.run(command, capture_output=True, check=False, timeout=60, env=environment())
    assert result.returncode == 0, result.stderr
    agent = yaml.safe_load(result.stdout)["agent"]
    assert (agent["pipeline"], agent["llm"]["base_url"]) == (str(copy), "http://llm/v1")


def test_its_flags_are_settings() -> None:
    flags = ("--llm", "http://llm/v1", "--llm-model", "owl", "--whisper", "tiny.en", "--set", "agent.calls=3")
    result = invoke("agent", "--config", "agent", *flags, "--print-config")
    assert result.returncode == 0, result.stderr
    agent = yaml.safe_load(result.stdout)["agent"]
    assert (agent["llm"]["base_url"], agent["llm"]["model"]) == ("http://llm/v1", "owl")
    assert (agent["stt"]["model"], agent["calls"]) == ("tiny.en", 3)


def test_a_missing_pipeline_file_is_a_message(tmp_path: Path) -> None:
    result = run("agent", "--set", f"agent.pipeline={tmp_path / 'none.py'}")
    assert result.returncode == 2
    assert b"is not a Python file" in result.stderr
    assert b"Traceback" not in result.stderr


def test_a_wrong_setting_three_levels_deep_is_named() -> None:
    result = invoke("agent", "--set", "agent.stt.device=tpu")
    assert result.returncode == 2
    assert b"agent.stt.device on the command line" in result.stderr
