"""Traces of calls: what a file may say, and a day that is made."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest

from agent_tts.bench.mix import BATCH_WORDS, CAMPAIGN_HOURS, HOURS, calls_of
from agent_tts.bench.scenario import ScenarioCall
from agent_tts.errors import SettingsError


def read(path: Path, text: str) -> list[ScenarioCall]:
    path.write_text(text)
    return calls_of(str(path), 0, 0, 0)


def test_a_file_has_calls_in_any_order(tmp_path: Path) -> None:
    yaml = """
    - {after_s: 2, text: Second., transport: http}
    - after_s: 0.5
      text: Zuerst.
      language: de
      words_every_ms: 40
      leaving: barge_in
      patience_s: 1.5
      session: {voice: anna, lead_ms: null}
    """
    wanted = [
        ScenarioCall(0.5, "Zuerst.", "websocket", "de", 0, "barge_in", 1.5, 40, {"voice": "anna", "lead_ms": None}),
        ScenarioCall(2, "Second.", "http"),
    ]
    assert read(tmp_path / "calls.yaml", yaml) == wanted
    lines = [json.dumps(dataclasses.asdict(call)) for call in reversed(wanted)]
    assert read(tmp_path / "calls.jsonl", "\n\n".join(lines)) == wanted


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.yaml", "- {text: a}", "x.yaml: 0.after_s: field required"),
        ("x.yaml", "- {after_s: 1, text: a}\n- {after_s: 1, text: a, pace: 40}", "x.yaml: 1.pace: "),
        ("x.yaml", "- {after_s: -1, text: a}", "x.yaml: 0.after_s: input should be greater than or equal to 0"),
        ("x.yaml", "- {after_s: .nan, text: a}", "x.yaml: 0.after_s: "),
        ("x.yaml", "- {after_s: 1, text: ''}", "x.yaml: 0.text: "),
        ("x.yaml", "- {after_s: 1, text: a, transport: smoke}", "x.yaml: 0.transport: "),
        ("x.yaml", "- {after_s: 1, text: a, words_every_ms: -1}", "x.yaml: 0.words_every_ms: "),
        ("x.yaml", "[]", "at least 1 item"),
        ("x.yaml", "5", "x.yaml: "),
        ("x.yaml", "a: [", "x.yaml: "),
        ("x.yaml", "[" * 5_000, "x.yaml: not YAML: it is nested too deep"),
        ("x.yaml", "- {after_s: 1, text: a, text: b}", "x.yaml: not YAML in line 1: 'text' stands there twice"),
        ("x.jsonl", '{"after_s": 1', "x.jsonl: Expecting"),
        ("x.jsonl", "", "at least 1 item"),
        ("x.jsonl", "[]", "x.jsonl: 0: "),
    ],
)
def test_what_is_wrong_in_a_file_is_a_message(name: str, text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as error:
        read(tmp_path / name, text)
    assert said in str(error.value)
    assert str(error.value).count(name) == 1


def test_a_day_is_made_of_its_seed() -> None:
    calls = calls_of("day", 2_000, 240, 1)
    assert calls == calls_of("day", 2_000, 240, 1)
    assert calls != calls_of("day", 2_000, 240, 2)
    assert [call.after_s for call in calls] == sorted(call.after_s for call in calls)
    long = [call for call in calls if len(call.text.split()) == BATCH_WORDS]
    assert len(long) == 200
    assert all(30 <= call.after_s < 31 and call.kind == "websocket, no pace" for call in long)
    for hour in CAMPAIGN_HOURS:
        assert sum(10 * hour <= call.after_s < 10 * hour + 1 for call in calls) > 200
    shares = Counter(call.kind for call in calls)
    assert shares["websocket"] > shares["websocket, no pace"] > shares["http, no pace"] > shares["rtc"] > 0
    assert len(calls) == pytest.approx(2_000 * 3.5 + 4 * 200, rel=0.05)


def test_a_day_has_its_quiet_and_its_busy_hours_however_long_it_is() -> None:
    """A day of hours of an hour: what begins then is hardly moved by the turns that follow."""
    calls = calls_of("day", 10_000, 86_400, 1)
    hours = Counter(int(call.after_s // 3_600) for call in calls)
    busiest, quiet = HOURS.index(max(HOURS)), 2
    assert hours.most_common(1)[0][0] in (busiest, *CAMPAIGN_HOURS)
    assert hours[busiest] > 20 * hours[quiet] > 0
