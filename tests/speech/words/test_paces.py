"""The measured pace of a voice is used for its next utterance."""

from __future__ import annotations

import pytest

from agent_tts.speech.words.peaks import peaks
from agent_tts.speech.words.timeline import MAX_VOICES, Paces, WordTimeline
from tests.speech.words.test_silences import audio

TEXT = "one two three four five six seven eight"


def test_an_unknown_voice_has_the_normal_pace() -> None:
    assert Paces().of("bob") == Paces().of(None) == 1.0


@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_the_next_estimate_has_the_pace_of_the_last_speech(speed: float) -> None:
    paces = Paces()
    first = WordTimeline(aligned=False, speed=speed)
    first.append(TEXT)
    nominal_ms = first.complete()[-1].end_ms
    pcm = audio((2 * nominal_ms // 80 * 80, 9_000))
    first.hear(len(pcm) // 2, peaks(pcm))
    first.finish(2 * nominal_ms // 80 * 80)
    paces.learn("bob", first.pace)
    second = WordTimeline(aligned=False, speed=speed, pace=paces.of("bob"))
    second.append(TEXT)
    assert 1.4 * nominal_ms < second.complete()[-1].end_ms <= 2 * nominal_ms
    assert second.pace == pytest.approx(first.pace)


def test_the_oldest_voice_is_forgotten_and_paces_are_bounded() -> None:
    paces = Paces()
    for number in range(MAX_VOICES):
        paces.learn(f"v{number}", 2.0)
    paces.learn("v0", 100.0)
    paces.learn("new", 0.0)
    assert paces.of("v1") == 1.0
    assert paces.of("v0") == 3.0
    assert paces.of("v2") == 2.0
    assert paces.of("new") == 0.33
