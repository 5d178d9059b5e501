"""Markup as espeak-ng performs it."""

from __future__ import annotations

import numpy as np
import pytest

from agent_tts.directives import Directive, Language, Pause, Prosody, Say, Style
from agent_tts.engine.espeak.engine import EspeakEngine
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.options import SpeechOptions
from tests.engine.driver import FLUSH, Spoken, assert_well_formed, speak

FIRST, SECOND = "Six wizards walked slowly home", " over seven bridges of stone."

pytestmark = pytest.mark.node


def rms(spoken: Spoken, start_ms: int, end_ms: int) -> float:
    part = spoken.pcm[start_ms * SAMPLE_RATE // 1_000 : end_ms * SAMPLE_RATE // 1_000].astype(float)
    return float(np.sqrt(np.mean(part**2)))


def seconds(spoken: Spoken) -> float:
    loud = np.flatnonzero(np.abs(spoken.pcm.astype(int)) > 100)
    return float(loud[-1] - loud[0]) / SAMPLE_RATE


def longest_silence_ms(spoken: Spoken) -> float:
    """Within the speech: samples below -50 dBFS in a row."""
    loud = np.flatnonzero(np.abs(spoken.pcm.astype(int)) > 104)
    return float(np.diff(loud).max()) * 1_000 / SAMPLE_RATE


@pytest.mark.parametrize(
    ("speed", "volume", "pitch"), [(2.0, 1, 1), (0.5, 1, 1), (4.0, 1, 1), (1, 0.5, 1), (1, 1, 1.5)]
)
def test_prosody_holds_from_there_on(engine: EspeakEngine, speed: float, volume: float, pitch: float) -> None:
    plain = speak(engine, FIRST, Prosody(pitch=1.000_1), SECOND)  # sounds the same, and ends the clause there, too
    told = speak(engine, FIRST, Prosody(speed, volume, pitch), SECOND)
    assert_well_formed(told)
    second = next(i for i, word in enumerate(plain.words) if word.char_start > len(FIRST))
    before, after = plain.words[second].start_ms, plain.words[second:]
    assert told.words[second].start_ms == pytest.approx(before, abs=5)
    lasted = told.words[-1].end_ms - told.words[second].start_ms
    assert lasted == pytest.approx((after[-1].end_ms - after[0].start_ms) / speed, rel=0.12)
    if volume != 1:
        start, end = told.words[second].start_ms, told.words[-1].end_ms
        shift = after[0].start_ms - start
        assert rms(told, start, end) == pytest.approx(volume * rms(plain, start + shift, end + shift), rel=0.1)


def test_the_request_s_own_manner_comes_back(engine: EspeakEngine) -> None:
    slow = SpeechOptions(speed=0.8)
    plain = speak(engine, FIRST, FLUSH, SECOND, options=slow)
    told = speak(engine, Prosody(speed=2), FIRST, FLUSH, Prosody(), SECOND, options=slow)
    rests = [[word for word in spoken.words if word.char_start > len(FIRST)] for spoken in (plain, told)]
    lasts = [words[-1].end_ms - words[0].start_ms for words in rests]
    assert lasts[0] == pytest.approx(lasts[1], abs=5)
    assert seconds(told) < 0.8 * seconds(plain)


@pytest.mark.parametrize("directive", [Prosody(speed=1.3), Prosody(volume=0.7), Language("de"), Prosody(pitch=1.2)])
def test_a_change_within_a_sentence_makes_no_gap(engine: EspeakEngine, directive: Directive) -> None:
    told = speak(engine, "one two", directive, " three four.")
    assert longest_silence_ms(told) <= 120


@pytest.mark.parametrize("nothing", [Style("Speak in an excited tone."), Prosody(), Language("tlh"), Pause(0)])
def test_what_is_not_performed_leaves_no_trace(engine: EspeakEngine, nothing: Directive) -> None:
    plain = speak(engine, "one two", " three, four", " five.")
    told = speak(engine, "one two", nothing, " three, four", nothing, " five.", nothing)
    assert np.array_equal(told.pcm, plain.pcm)
    assert told.words == plain.words


def test_a_language_is_spoken_from_there_on(engine: EspeakEngine) -> None:
    german = speak(engine, "Wir gehen nach Hause.", options=SpeechOptions(language="de"))
    english = speak(engine, "Wir gehen nach Hause.")
    told = speak(engine, Language("de-DE"), "Wir gehen nach Hause.")
    assert np.array_equal(told.pcm, german.pcm)
    assert not np.array_equal(told.pcm, english.pcm)
    there_and_back = speak(engine, Language("german"), "Wir gehen nach Hause.", FLUSH, Language(None), " Hello.")
    hello = speak(engine, "Hello.")
    assert there_and_back.pcm[-len(hello.pcm) // 2 :].any()
    assert [word.char_start for word in there_and_back.words][-1] == len("Wir gehen nach Hause. ")


def test_ipa_is_spoken_as_the_word_is(engine: EspeakEngine) -> None:
    plain = speak(engine, "I like tomato soup, really.")
    told = speak(engine, "I like ", Say("tomato", ipa="təˈmeɪɾoʊ"), " soup, really.")
    other = speak(engine, "I like ", Say("tomato", ipa="təˈmɑːtoʊ"), " soup, really.")
    assert [(word.char_start, word.char_end) for word in told.words] == [
        (word.char_start, word.char_end) for word in plain.words
    ]
    assert seconds(told) == pytest.approx(seconds(plain), rel=0.05)
    assert not np.array_equal(other.pcm[: len(told.pcm)], told.pcm[: len(other.pcm)])


@pytest.mark.parametrize("ipa", ["ʘǃ", "x" * 1_000])
def test_ipa_that_the_language_lacks_is_spelled(engine: EspeakEngine, ipa: str) -> None:
    plain = speak(engine, "I like Zoe here.")
    told = speak(engine, "I like ", Say("Zuberoa", alias="Zoe", ipa=ipa), " here.")
    assert np.array_equal(told.pcm, plain.pcm)
    assert [(word.char_start, word.char_end) for word in told.words] == [(0, 1), (2, 6), (7, 14), (15, 19)]


def test_an_alias_is_said_for_its_text(engine: EspeakEngine) -> None:
    plain = speak(engine, "The world wide web consortium met.")
    told = speak(engine, "The ", Say("W3C", alias="world wide web consortium"), " met.")
    assert np.array_equal(told.pcm, plain.pcm)
    assert told.words[0].char_end == 3
    assert all(4 <= word.char_start < word.char_end <= 7 for word in told.words[1:-1])
    assert (told.words[-1].char_start, told.words[-1].char_end) == (8, 11)
