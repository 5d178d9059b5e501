from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from agent_tts.engine.hibari.engine import NO_SAMPLES, Wanted
from agent_tts.engine.hibari.phrase import (
    AHEAD_S,
    FADE,
    FIRST_MOST,
    FIRST_WAIT_S,
    FIRST_WORDS,
    LOW_S,
    MAX_BEFORE,
    Due,
    due,
    ends_clause,
    ends_sentence,
    joined,
)
from agent_tts.engine.hibari.speech import HibariVoice
from agent_tts.engine_info import SAMPLE_RATE

NOTHING = Due()


def waits(words: int, *, closed: bool = False, clause: bool = False, left_s: float = 0.0, waited_s: float = 0.0) -> Due:
    return due(words, closed=closed, at_clause_end=clause, left_s=left_s, waited_s=waited_s)


@pytest.mark.parametrize(
    ("found", "right"),
    [
        # Nothing is heard yet.
        (waits(FIRST_WORDS - 1), NOTHING),
        (waits(FIRST_WORDS), Due(FIRST_WORDS, FIRST_WORDS - 1)),
        (waits(FIRST_WORDS, clause=True), Due(FIRST_WORDS, FIRST_WORDS)),
        (waits(1, waited_s=FIRST_WAIT_S), Due(1, 1)),
        (waits(2, waited_s=FIRST_WAIT_S), Due(2, 1)),
        (waits(1, closed=True), Due(1, 1)),
        (waits(FIRST_MOST, closed=True), Due(FIRST_MOST, FIRST_MOST)),
        (waits(40, closed=True), Due(FIRST_MOST, FIRST_MOST - 1)),
        (waits(40), Due(FIRST_MOST, FIRST_MOST - 1)),
        # There is audio to play: more words may come.
        (waits(9, left_s=AHEAD_S), NOTHING),
        (waits(9, left_s=AHEAD_S - 0.01), Due(9, 8)),
        (waits(9, left_s=AHEAD_S - 0.01, clause=True), Due(9, 9)),
        (waits(1, left_s=AHEAD_S - 0.01), NOTHING),
        (waits(1, left_s=LOW_S - 0.01), Due(1, 1)),
        (waits(40, closed=True, left_s=5.0), Due(40, 40)),
        (waits(0, left_s=0.1), NOTHING),
        (waits(0, waited_s=9.0), NOTHING),
    ],
)
def test_the_words_that_are_due(found: Due, right: Due) -> None:
    assert found == right


@pytest.mark.parametrize("word", ["end. ", "end.", "end!”) ", "end?", "end…", "end.' "])
def test_a_sentence_ends(word: str) -> None:
    assert ends_sentence(word)
    assert ends_clause(word)


@pytest.mark.parametrize("word", ["Dr. ", "e.g. ", "U.S. ", "and ", "3.14 "])
def test_a_sentence_goes_on(word: str) -> None:
    assert not ends_sentence(word)
    assert not ends_clause(word)


@pytest.mark.parametrize("word", ["be, ", "that: ", "it; ", "well — "])
def test_a_clause_ends_in_a_sentence(word: str) -> None:
    assert ends_clause(word)
    assert not ends_sentence(word)


@pytest.mark.parametrize("late", [-70, -11, 0, 23, 90])
def test_a_join_is_as_smooth_as_the_sound(late: int) -> None:
    """Two renditions of one sound, of which the second is `late` samples later than its cut says."""
    wave = (9_000 * np.sin(np.arange(SAMPLE_RATE) * 2 * np.pi * 180 / SAMPLE_RATE)).astype(np.float32)
    cut = 8_000
    before, over = wave[:cut], wave[cut : cut + 2 * FADE]
    made = np.concatenate((before, joined(over, np.roll(wave, late), cut, cut + 4_000)))
    assert np.abs(np.diff(made)).max() < 1.02 * np.abs(np.diff(wave)).max()
    around = made[cut - 400 : cut + 400]
    assert np.abs(around).max() > 0.97 * 9_000  # nothing cancels out


TEXTS = (
    "Sure, I can help you with that.",
    "The next train to the airport leaves in twelve minutes from platform four.",
    "One moment please, I am looking that up for you right now.",
    "Your order left our warehouse this morning and should be with you by Thursday.",
    "I am sorry to hear that, so let me see what I can do for you.",
)


def in_parts(voice: HibariVoice, text: str, size: int, *, joins: bool = True) -> NDArray[np.float64]:
    """Lengths in ms of the words of a sentence, spoken `size` at a time, with or without the words before them."""
    words = tuple(f"{word} " for word in text.split())
    lengths: list[float] = []
    over, at = NO_SAMPLES, 0
    while at < len(words):
        together = words[at : at + size + 1]
        last = at + len(together) == len(words)
        before = words[max(0, at - MAX_BEFORE) : at] if joins else ()
        heard = len(together) if last else size
        wanted = Wanted(
            voice=voice,
            before=before,
            over=over if joins else NO_SAMPLES,
            words=together,
            ipa=(),
            heard=heard,
            speed=1.0,
            pitch=1.0,
            volume=1.0,
            seed=0,
            keep_ms=0,
            leveler=None,
        )
        spoken = wanted.speak()
        lengths += [(end - start) * 1_000 / SAMPLE_RATE for start, end in spoken.words]
        over, at = spoken.over, at + heard
    return np.array(lengths)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_words_that_are_joined_are_as_long_as_in_the_whole_sentence(size: int) -> None:
    voice = HibariVoice("heart")
    voice.load()

    def off_ms(*, joins: bool) -> float:
        pairs = [(in_parts(voice, text, size, joins=joins), in_parts(voice, text, 99)) for text in TEXTS]
        return float(np.mean(np.concatenate([np.abs(part - whole) for part, whole in pairs])))

    assert off_ms(joins=True) < 12
    assert off_ms(joins=False) > 18  # without the rule


def test_without_a_sound_before_it_a_part_is_only_cut() -> None:
    wave = np.arange(1_000, dtype=np.float32)
    assert np.array_equal(joined(np.zeros(0, np.float32), wave, 200, 900), wave[200:900])
    assert np.array_equal(joined(wave, wave, 200, 210), wave[200:210])
