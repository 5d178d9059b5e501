"""The doctor makes a node as a start does, and looks at what conversations need."""

from __future__ import annotations

import http.server
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_tts.agent.stt import SpeechToText
from agent_tts.bench.statistics import serving
from agent_tts.config.loading import find_config, load_settings
from agent_tts.config.settings import Settings
from agent_tts.doctor import machine, wants_agent
from agent_tts.doctor.finding import Finding, Verdict
from agent_tts.doctor.node import node
from tests.cli.process import invoke
from tests.engine.qwen3.released import write_hollow
from tests.recogniser import TINY_EN

pytestmark = pytest.mark.real_time


def found(**values: Any) -> dict[str, Finding]:
    return {finding.what: finding for finding in node(Settings.model_validate({"port": 0, **values}))}


@pytest.fixture
def llm() -> Iterator[str]:
    """A server that lists one language model."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"data": [{"id": "llama3.2"}]}).encode())

        def log_message(self, format: str, *_: object) -> None:
            pass

    with serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler), "llm") as server:
        yield f"http://127.0.0.1:{server.server_port}/v1"


@pytest.mark.parametrize(
    ("values", "what", "said"),
    [
        ({"lexicon_file": "/no/such.yaml"}, "node", "/no/such.yaml cannot be read"),
        ({"c2pa": {"certificate": "/no.pem", "key": "/no.pem"}}, "node", "/no.pem cannot be read"),
        ({"voices": {"folder": "nosuch://bucket"}}, "node", "voices.folder"),
        ({"agent": {"pipeline": "/no/such.py"}}, "agent", "/no/such.py is not a Python file"),
    ],
)
def test_what_a_start_refuses_is_a_finding(values: dict[str, Any], what: str, said: str) -> None:
    findings = found(**values)
    assert [*findings] == [what]
    assert findings[what].verdict is Verdict.BAD
    assert said in f"{findings[what].found}: {findings[what].advice}"


def test_a_node_that_is_accepted_needs_no_agent() -> None:
    findings = found()
    assert [(what, finding.verdict) for what, finding in findings.items()] == [("node", Verdict.GOOD)]


def test_settings_of_the_agent_are_known_by_what_they_set() -> None:
    wanted = {name: wants_agent(load_settings(find_config(name), environ={})) for name in ("agent", "cpu", "gpu")}
    assert wanted == {"agent": True, "cpu": False, "gpu": False}
    assert wants_agent(load_settings(None, {"agent.calls": "2"}, environ={}))
    assert wants_agent(load_settings(None, environ={"AGENT_TTS_AGENT__CALLS": "2"}))


def test_the_agents_recogniser_and_language_model_are_tried(llm: str) -> None:
    findings = found(agent={"stt": {"model": TINY_EN}, "llm": {"base_url": llm}})
    assert {finding.verdict for finding in findings.values()} == {Verdict.GOOD}
    assert findings["recognition"].found == f"whisper: {TINY_EN}"
    assert findings["language model"].found == "openai: llama3.2"


def test_what_the_agent_lacks_is_told(llm: str, tmp_path: Path) -> None:
    stt = {"folder": str(tmp_path)}
    findings = found(agent={"stt": stt | {"model": "small.en"}, "llm": {"base_url": llm, "model": "gpt-9"}})
    assert findings["recognition"].verdict is findings["language model"].verdict is Verdict.NOTE
    assert findings["recognition"].advice == "the first start downloads about 484 MB"
    assert "has no model gpt-9; it has llama3.2" in findings["language model"].advice
    findings = found(agent={"stt": stt | {"model": "/no/such/model"}, "llm": {"base_url": "http://127.0.0.1:9/v1"}})
    assert "is not a folder with a model" in findings["recognition"].advice
    assert "no language model answers" in findings["language model"].advice.lower()
    assert not [*tmp_path.iterdir()], "nothing is downloaded"


@pytest.mark.parametrize(
    ("model", "told"),
    [("base.en", "about 145 MB"), ("tiny", "about 75 MB"), ("someone/whisper", "it"), ("./here", None)],
)
def test_the_size_of_a_download_is_known_before(tmp_path: Path, model: str, told: str | None) -> None:
    settings = Settings.model_validate({"agent": {"stt": {"model": model, "folder": str(tmp_path)}}}).agent.stt
    assert SpeechToText(settings).to_download == told
    assert SpeechToText(settings.model_copy(update={"kind": "none"})).to_download is None


@pytest.mark.node
@pytest.mark.slow
def test_doctor_refuses_what_serve_refuses_and_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named configuration, with a checkpoint here in place of its downloads, on a device that is not there."""
    for name in ("espeak", "hibari"):
        monkeypatch.setattr(machine, name, lambda _: [])
    write_hollow(tmp_path / "0.6B", "0.6B")
    models = ("--set", f"qwen3.models={tmp_path / '0.6B'}", "--set", "qwen3.device=cuda:7")
    flags = ("--config", "gpu", "--port", "0", *models)
    looked, served = invoke("doctor", *flags, "--set", "limits.rtc_peers=0"), invoke("serve", *flags)
    assert (looked.returncode, b"A node cannot run here" in looked.stdout) == (1, True), looked.stdout
    assert served.returncode == 2, served.stderr
    for told in (looked.stdout, served.stderr):
        assert b"cuda:7 is not there" in told


def test_the_command_names_what_it_has_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the engines, which `test_machine.py` has tried."""
    for name in ("espeak", "hibari"):
        monkeypatch.setattr(machine, name, lambda _: [])
    quiet = ("--set", "agent.stt.kind=none", "--set", "agent.llm.base_url=http://127.0.0.1:9/v1")
    done = invoke("doctor", "--port", "0", "--set", "limits.rtc_peers=0", *quiet)
    assert done.returncode == 0, done.stdout
    assert b"A node can run here: agent-tts agent" in done.stdout
