"""`agent-tts bench quality` against a node, and against the same node as a server of OpenAI's API.

What measures runs in a process of its own, whose models take a gigabyte.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_tts.bench.quality import MEASURES, TEXTS
from agent_tts.cli.bench import NodeOptions, OtherServer, QualityOptions
from agent_tts.cli.bench_quality import servers
from agent_tts.errors import SettingsError
from tests.bench.test_report import fonts
from tests.cli.process import environment, invoke, run
from tests.node_process import running_process
from tests.recogniser import hearing

__all__ = ["fonts", "hearing"]  # a fixture; it sets what faster-whisper does in tests

pytestmark = pytest.mark.real_time  # a node has a process of its own


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_process(tmp_path_factory.mktemp("node"), "--engine", "espeak") as running:
        yield running.url


@pytest.fixture(scope="module")
def measured(node: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The file of a measurement, and what it printed."""
    folder = tmp_path_factory.mktemp("measured")
    path, plot, clip = folder / "found.json", folder / "found.svg", folder / "clip.wav"
    assert invoke("say", "--url", node, "-o", str(clip), "-q", "Turn left at the second traffic light.").returncode == 0
    voices = ("--voice", "en-us", "--beside-voice", "en-us")
    ways = (*voices, "--beside", f"{node}/v1", "--texts", "en", "--first", "2", "--callers", "2", "--clip", str(clip))
    outputs = ("--json", str(path), "--plot", str(plot))
    # One of its runs was measured before: naturalness was better than anything is, and no word was right.
    said = [{"text": text, "mos": (5, 1), "wer": (9, 9)} for text in TEXTS["en"][:2]]
    before = {"server": node, "way": "live", "callers": 2, "texts": "en", "utterances": said}
    (folder / "before.json").write_text(json.dumps({"runs": [before]}))
    baseline = ("--baseline", str(folder / "before.json"))
    done = run("bench", "quality", "--url", node, *ways, *outputs, *baseline, env=environment(COLUMNS="200"))
    assert done.returncode == 1, done.stderr
    assert plot.stat().st_size > 10_000
    return path, done.stdout.decode()


@pytest.mark.slow
@pytest.mark.usefixtures("fonts")
def test_all_figures_of_a_node_live_and_whole_and_of_a_server_beside_it(measured: tuple[Path, str]) -> None:
    path, printed = measured
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"]
    assert [one["way"] for one in runs] == ["live", "whole", "whole"]  # OpenAI's API takes whole texts alone
    said = MEASURES.keys() - {"drift", "cer"}  # these texts are too short for a change of pace
    for number, one in enumerate(runs):
        assert one["figures"].keys() == (said if number < 2 else said - {"seam", "words_ms"})
        assert one["errors"] == {}
        assert [each["text"] for each in one["utterances"]] == TEXTS["en"][:2]
        assert one["figures"]["wer"]["value"] < 25
        assert one["figures"]["similarity_clip"]["value"] > 0.7
    assert runs[1]["figures"]["words_ms"]["value"] < 150
    assert runs[1]["figures"]["mos"] == runs[2]["figures"]["mos"]  # the same sound by another protocol
    assert all(measure.title in printed for name, measure in MEASURES.items() if name in said)


@pytest.mark.slow
def test_only_what_got_worse_than_the_baseline_is_told(node: str, measured: tuple[Path, str]) -> None:
    (worse,) = [line for line in measured[1].splitlines() if "WORSE" in line]
    assert worse.startswith(f"{node}, live, 2 callers, en: WORSE than the baseline: DNSMOS, overall: -")


@pytest.mark.slow
def test_what_is_as_it_was_does_not_fail(node: str, measured: tuple[Path, str]) -> None:
    same = ("--url", node, "--voice", "en-us", "--texts", "en", "--first", "2", "--callers", "2", "--ways", "whole")
    done = run("bench", "quality", *same, "--baseline", str(measured[0]))
    assert (done.returncode, b"WORSE" in done.stdout) == (0, False), done.stdout
    done = invoke("bench", "quality", "--url", "localhost:1", "--baseline", str(measured[0]))
    assert (done.returncode, b"it has no run of these, but" in done.stderr) == (2, True)


def test_a_key_that_is_set_twice_is_compared() -> None:
    node = NodeOptions(engine="espeak", set_=["engine=espeak", "seed=1", "engine=tone"])
    found = list(servers(QualityOptions(node=node, other=OtherServer(beside="http://other:1/v1", beside_voice="af"))))
    assert [(one.name, one.node.set_, one.node.openai) for one in found] == [
        ("engine=espeak", ["engine=espeak", "seed=1"], False),
        ("engine=tone", ["engine=tone", "seed=1"], False),
        ("http://other:1/v1", None, True),
    ]
    assert found[1].node.settings == {"engine": "tone", "seed": "1"}
    with pytest.raises(SettingsError, match="--set is for a node of our own"):
        list(servers(QualityOptions(node=NodeOptions(url="localhost:1", set_=["slots=1"]))))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--texts", "en,xx"), "--texts xx: must be of en, en-long, de"),
        (("--ways", "slow"), "--ways slow: must be of live, whole"),
        (("--texts", "de"), "--whisper tiny.en knows English alone: --texts de needs another one"),
        (("--whisper", "/nowhere"), "--whisper /nowhere: "),
        (("--clip", "/nowhere.wav"), "--clip nowhere.wav: "),
        (("--baseline", "/nowhere.json"), "--baseline nowhere.json: is no file that --json of this command wrote"),
    ],
)
def test_a_wrong_option_is_told_before_anything_is_spoken(arguments: tuple[str, ...], said: str) -> None:
    done = invoke("bench", "quality", "--url", "localhost:1", *arguments)
    assert done.returncode == 2
    assert said in done.stderr.decode()


# The last of them is missed after the import of all others, which takes seconds.
LAST = pytest.param("speechmos", marks=pytest.mark.slow)


@pytest.mark.parametrize("package", ["faster_whisper", "whisper_normalizer.basic", LAST])
def test_a_missing_package_is_one_line_that_says_how_to_get_it(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    done = invoke("bench", "quality", "--url", "localhost:1")
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert line == f"agent-tts: {package} is not installed: pip install '.[quality]' in a checkout"
