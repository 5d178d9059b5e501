"""What comes of the steps of a script: by times and messages of made-up calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent_tts.bench import people
from agent_tts.bench.calls import CallStep, figures, judge, recognise
from agent_tts.bench.dialogue import ScriptStep, script_of
from agent_tts.bench.lines import AgentEvent, AgentLine
from agent_tts.errors import SettingsError
from tests.recogniser import hearing

SAYS: dict[str, Any] = {"says": "One two."}
INTERRUPTS: dict[str, Any] = {"interrupts": "Stop."}
LISTENS: dict[str, Any] = {"backchannel": "Yeah."}


def line_of(*spoken: tuple[float, float], told: tuple[tuple[float, str], ...] = ()) -> AgentLine:
    """A line with sound between these times, s, and these messages."""
    line = AgentLine()
    line.told += [AgentEvent(at, kind) for at, kind in told]  # pyrefly: ignore[bad-argument-type]
    for begin, end in spoken:
        line.hear(np.full(round((end - begin) * people.RATE), 9_000, np.int16), begin)
    return line


def done(
    step: dict[str, Any],
    began: float,
    ended: float,
    *,
    pause: float | None = None,
    talked: bool = True,
    silenced: bool = False,
) -> CallStep:
    return CallStep("call", 1, ScriptStep(**step), began, pause or ended, ended, ended + 3, talked, silenced)


@pytest.mark.parametrize(
    ("one", "line", "found", "times"),
    [
        # One speaks from 10 to 11 s; what follows is (answer, silence) in ms.
        (done(SAYS, 10, 11), line_of((11.6, 13), told=((11.6, "answer"),)), "answer", (600, None)),
        # The message may come after the sound.
        (done(SAYS, 10, 11), line_of((11.6, 13), told=((11.63, "answer"),)), "answer", (600, None)),
        # The last answer ends while one speaks: it is not the answer to this.
        (done(SAYS, 10, 11), line_of((9, 11.3), (12, 13), told=((12, "answer"),)), "answer", (1_000, None)),
        (done(SAYS, 10, 11), line_of(), "unanswered", (None, None)),
        (done(SAYS, 10, 11), line_of(told=((11.5, "answer"),)), "unanswered", (None, None)),
        (done(SAYS, 10, 11), line_of((12, 15), told=((12, "answer"), (13, "answer"))), "twice", (1_000, None)),
        (done(SAYS, 10, 14, pause=11), line_of((13, 15), told=((13, "answer"),)), "early", (None, None)),
        (
            done(INTERRUPTS, 10, 11),
            line_of((5, 10.35), (12, 13), told=((5, "answer"), (10.9, "interrupted"), (12, "answer"))),
            "interruption",
            (1_000, 340),
        ),
        # Words that hold an answer, which goes on before it is cut: silence is after all of it.
        (
            done(INTERRUPTS, 10, 11),
            line_of((5, 10.3), (11.3, 12.5), (14, 15), told=((12.6, "interrupted"), (14, "answer"))),
            "interruption",
            (3_000, 2_490),
        ),
        (done(INTERRUPTS, 10, 11), line_of((5, 20), told=((5, "answer"),)), "nothing", (None, None)),
        (done(INTERRUPTS, 10, 11, talked=False), line_of(), "not speaking", (None, None)),
        (done(LISTENS, 10, 11), line_of((5, 20)), "nothing", (None, None)),
        (done(LISTENS, 10, 11), line_of((5, 10.3), (11.5, 20)), "nothing", (None, None)),
        (done(LISTENS, 10, 11), line_of((5, 10.3), told=((10.9, "interrupted"),)), "interruption", (None, None)),
        (done(LISTENS, 10, 11, silenced=True), line_of((5, 10.3)), "silenced", (None, None)),
    ],
)
def test_what_came_of_a_step(one: CallStep, line: AgentLine, found: str, times: tuple[int | None, int | None]) -> None:
    judge([one], line)
    assert one.found == found
    assert (one.answer_ms, one.silence_ms) == times
    assert one.passed == (found == one.step.expected)


def test_what_else_is_expected_of_a_step() -> None:
    told = [AgentEvent(10.5, "transcript", "One too."), AgentEvent(12, "answer", "Three.")]
    line = line_of((12, 13))
    line.told[:] = told
    one = done(SAYS | {"text_contains": ["one", "two"]}, 10, 11)
    judge([one], line)
    assert (one.found, one.passed, one.wrong) == ("answer", False, ["not recognised: two"])


def test_words_of_an_answer_are_those_of_its_sound() -> None:
    """The agent says what was heard of an answer that was cut; the sound says it, too."""
    line = AgentLine()
    for at, text in ((5.0, "We open at nine in the morning."), (12.0, "The garden is open on Monday.")):
        line.hear((people.says(text, 1) * 20_000).astype(np.int16), at)
    line.told += [
        *(AgentEvent(5, "answer", "We open at nine in the morning."), AgentEvent(10.6, "transcript", "Stop.")),
        *(
            AgentEvent(10.8, "interrupted", "We open at five in the evening."),
            AgentEvent(12, "answer", "The garden is closed on Sunday."),
        ),
    ]
    one = done(INTERRUPTS, 10, 11)
    judge([one], line)
    recognise(one, hearing())
    assert one.words == {"wer_user": (0, 1), "wer_agent": (2, 6), "wer_heard": (2, 7)}
    assert (figures([one])["wer_heard"], figures([one])["wer_user"]) == (28.6, 0)


def test_a_player_that_is_cut_has_played_what_came_before() -> None:
    line = line_of((1, 2), (2, 3))
    line.cut(1.5)
    assert line.loud[-1] == pytest.approx(1.49)
    assert line.ends_at == 1.5
    assert len(line.sound(0, 9)) == people.RATE / 2


def test_the_sound_of_an_answer_ends_with_it() -> None:
    """Whisper makes up words for a long silence."""
    line = line_of((1, 2))
    for at in range(100, 500):
        line.hear(np.zeros(people.RATE // 50, np.int16), at / 50)
    assert len(line.sound(0, 9)) == pytest.approx(1.2 * people.RATE, abs=people.RATE / 50)
    assert len(line.sound(3, 9)) == 0


def test_figures_of_steps_and_none_of_what_was_not_tried() -> None:
    step = ScriptStep(says="One.")
    answered = [CallStep("a", 1, step, found="answer", answer_ms=ms) for ms in range(100, 2_100, 100)]
    paused = ScriptStep(says=["One,", 1.0, "two."])  # the agent is to wait for more of it
    answered += [CallStep("b", 1, paused, found="answer", answer_ms=9_000)] * 9
    found = figures([*answered, CallStep("a", 2, step, found="early", answer_ms=5)])
    assert (found["answer_ms_p50"], found["answer_ms_p95"], found["failed"]) == (1_000, 1_900, 1)
    assert (found["early_answers"], found["missed_interruptions"], found["wer_user"]) == (1, None, None)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("scenarios: []", "scenarios: "),
        ("scenarios: [{name: a, turns: [{says: A, loud: 1}]}]", "scenarios.0.turns.0.loud: "),
        ("scenarios: [{name: a, turns: [{says: A, noise: burst}]}]", "give one of says, interrupts, backchannel"),
        ("scenarios: [{name: a, turns: [{at_s: 2}]}]", "give one of says, interrupts, backchannel"),
        ("scenarios: [{name: a, turns: [{says: A}]}]\nthresholds: {answer: 2}", "thresholds.answer"),
        ("scenarios: [", "agent.yaml: not YAML in line 1"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=complaint):
        script_of(str(path))


def test_sets_are_as_large_as_promised_and_the_same_each_time() -> None:
    expected = {"turns": ("answer", 50), "sounds": ("nothing", 100), "interruptions": ("interruption", 50)}
    for name, (kind, count) in {**expected, "halves": ("answer", 30)}.items():
        script = script_of(name)
        steps = [step for scenario in script.scenarios for step in scenario.turns]
        assert sum(step.expected == kind for step in steps) == count
        assert len({scenario.name for scenario in script.scenarios}) == len(script.scenarios)
        assert script == script_of(name)
    assert len(script_of("table").scenarios) == 26
    assert len(script_of("shipped").scenarios) == 30
    with pytest.raises(SettingsError, match="built-in sets are shipped, turns, sounds"):
        script_of("nothing")


def test_the_scripted_llm_answers_to_words_that_are_nearly_those_of_a_step() -> None:
    script = script_of("shipped")
    said = {"Yes, sir.": "It is cancelled.", "and what day it is today": "It is Tuesday.", "Mm.": script.answer}
    for text, answer in said.items():
        assert script.answer_to(text) == answer
    assert script.answer_to("") == script.answer


def test_sounds_are_the_same_for_a_seed_and_as_loud_as_asked() -> None:
    makes: list[Callable[[int], people.Sound]] = [
        lambda seed: people.at_level(people.says("Hello there.", seed), -25),
        lambda seed: people.at_level(people.noise("breath", 1, seed), -25),
    ]
    for sound in makes:
        assert np.array_equal(sound(1), sound(1))
        assert not np.array_equal(sound(1), sound(2))
        half = [sound(1)[at : at + 12_000] for at in range(0, max(1, len(sound(1)) - 12_000), 2_400)]
        assert max(20 * np.log10(np.sqrt(np.mean(each**2))) for each in half) == pytest.approx(-25, abs=0.1)


def test_a_recording_is_resampled_and_one_that_is_none_is_named(tmp_path: Path) -> None:
    import soundfile

    tone = np.sin(np.arange(16_000) * 2 * np.pi * 440 / 16_000) / 10
    soundfile.write(tmp_path / "tone.wav", tone, 16_000)
    found = people.recorded(tmp_path / "tone.wav")
    assert len(found) == people.RATE
    assert np.sqrt(np.mean(found**2)) == pytest.approx(0.0707, abs=0.001)
    with pytest.raises(SettingsError, match=r"recording none\.wav"):
        people.recorded(tmp_path / "none.wav")
