"""`agent-tts bench agent`: shipped scenarios by real recognition, and its outcome for a script."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from agent_tts.bench.calls import CallStep, recognise, voiced
from agent_tts.bench.dialogue import SHIPPED, ScriptStep, script_of
from agent_tts.bench.lines import realtime_line
from agent_tts.bench.scripted_llm import scripted_llm
from agent_tts.cli import bench_agent
from agent_tts.cli.bench_agent import calls
from tests.bench.test_report import fonts
from tests.cli.process import environment, invoke, run
from tests.node_process import running_process
from tests.recogniser import TINY_EN, hearing
from tests.support import until

__all__ = ["fonts"]

pytestmark = pytest.mark.real_time

TEN = (
    *("stop", "an answer of one word", "a burst of noise"),
    *("a question", "a quiet caller", "a loud caller", "a noisy street"),
    *("a listener", "a noisy room", "words as the answer begins"),
)


def written(folder: Path, names: tuple[str, ...], **thresholds: float) -> Path:
    """A file with some of the shipped scenarios."""
    given = yaml.safe_load(SHIPPED.read_text())
    given["scenarios"] = [one for one in given["scenarios"] if one["name"] in names]
    assert len(given["scenarios"]) == len(names)
    path = folder / "some.yaml"
    path.write_text(yaml.safe_dump(given | {"thresholds": thresholds}))
    return path


@pytest.mark.alone
@pytest.mark.usefixtures("fonts")
def test_ten_shipped_scenarios_hold(tmp_path: Path) -> None:
    script = written(tmp_path, TEN, failed=1, wer_user=25, missed_interruptions=0, false_interruptions=0)
    json_path, plot = tmp_path / "found.json", tmp_path / "found.svg"
    outputs = ("--callers", "5", "--json", str(json_path), "--plot", str(plot))
    done = run(
        "bench", "agent", str(script), "--engine", "espeak", *outputs, env=environment(COLUMNS="200"), timeout=150
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    (found,) = json.loads(json_path.read_text())["runs"]
    expected = [one["expected"] for one in found["steps"]]
    assert {kind: expected.count(kind) for kind in expected} == {"answer": 11, "interruption": 2, "nothing": 2}
    assert all(found[name] is not None for name in ("answer_ms_p95", "wer_agent", "wer_heard"))
    assert plot.stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.alone  # two models of Whisper and a natural voice: the most memory of all tests
async def test_a_realtime_server_is_called_and_told_how_far_its_answer_was_heard(tmp_path: Path) -> None:
    script = script_of("shipped")
    wanted = [voiced(one, SHIPPED.parent) for one in script.scenarios if one.name == "stop"]
    stt = ("--set", f"agent.stt.model={TINY_EN}", "--set", "agent.stt.device=cpu")
    with scripted_llm(script.answer_to) as llm:
        flags = ("--engine", "espeak", "--set", f"agent.llm.base_url={llm}", *stt)
        with running_process(tmp_path, *flags, command="agent") as node:
            await until(lambda: httpx.get(f"{node.url}/api/agent").json()["stt"]["kind"] == "whisper", 60)
            url = f"ws{node.url.removeprefix('http')}/v1/realtime"
            asked, cut = await calls(lambda: realtime_line(url, None), wanted, 1)
    assert (asked.found, asked.wrong, cut.found, cut.wrong) == ("answer", [], "interruption", [])
    assert cut.silence_ms is not None
    recognise(cut, hearing())
    wrong, words = cut.words["wer_heard"]
    assert words > 3
    assert wrong < words  # Whisper tiny.en and espeak: some of the same words


@pytest.mark.slow
def test_a_figure_over_its_threshold_is_told_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(*_: Any) -> Any:
        results = [CallStep("a", 1, ScriptStep(says="One."), found="answer", answer_ms=700)]
        results += [CallStep("a", 2, ScriptStep(interrupts="Stop."), found="nothing")]
        return {}, results, {"p50": 1.0, "p99": 90.0}

    monkeypatch.setattr(bench_agent, "measured", measured)
    script = written(tmp_path, ("stop",), answer_ms_p50=600, missed_interruptions=1, wer_user=5)
    done = invoke("bench", "agent", str(script), COLUMNS="200")
    assert done.returncode == 1
    printed = done.stdout.decode()
    assert re.search(r"end of speech without a pause to the answer, ms, p50 +700 +600(\.0)? +NO", printed)
    assert re.search(r"interruptions that were missed +1 +1(\.0)? +yes", printed)
    assert re.search(r"words of users not recognised, % +- +- +-", printed)  # nothing was measured: no threshold
    assert re.search(r"a +2 interrupts +Stop\. +interruption +nothing", printed)
    assert "NO FIGURES OF THE AGENT" in printed


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "ws://127.0.0.1:9/v1/realtime"])
def test_what_does_not_answer_is_an_error(tmp_path: Path, url: str) -> None:
    script = written(tmp_path, ("stop",), failed=0)
    done = invoke("bench", "agent", str(script), "--url", url)
    assert done.returncode != 0
    assert "127.0.0.1:9" in done.stderr.decode() + done.stdout.decode()
