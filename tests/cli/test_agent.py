from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.process import invoke

ROOT = Path(__file__).parents[2]


def test_a_copy_of_the_pipeline_runs_as_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the options of `agent-tts agent`, and as the pipeline of every call."""
    copy = tmp_path / "my_agent.py"
    copy.write_text((ROOT / "pipelines" / "voice_agent.py").read_text())
    monkeypatch.setattr(sys, "argv", [str(copy), "--llm", "http://llm/v1", "--print-config"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(copy), run_name="__main__")
    assert ended.value.code in (None, 0)
    agent = yaml.safe_load(capsys.readouterr().out)["agent"]
    assert (agent["pipeline"], agent["llm"]["base_url"]) == (str(copy), "http://llm/v1")


def test_its_flags_are_settings() -> None:
    flags = ("--llm", "http://llm/v1", "--llm-model", "owl", "--whisper", "tiny.en", "--set", "agent.calls=3")
    result = invoke("agent", "--config", "agent", *flags, "--print-config")
    assert result.returncode == 0, result.stderr
    agent = yaml.safe_load(result.stdout)["agent"]
    assert (agent["llm"]["base_url"], agent["llm"]["model"]) == ("http://llm/v1", "owl")
    assert (agent["stt"]["model"], agent["calls"]) == ("tiny.en", 3)
