from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from agent_tts.engine.hibari.phrase import (
    AHEAD_S,
    FADE,
    FIRST_MOST,
    FIRST_WAIT_S,
    FIRST_WORDS,
    LOW_S,
    MAX_BEFORE,
    MAX_CHARS,
    NO_SAMPLES,
    Due,
    Phrase,
    Wanted,
    due,
    ends_clause,
    ends_sentence,
    joined,
)
from agent_tts.engine.hibari.speech import HibariVoice
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.text.feed import Unit

NOTHING = Due()


def unit(text: str) -> Unit:
    return Unit(text, tuple(range(len(text))))


def waits(words: int, *, closed: bool = False, clause: bool = False, left_s: float = 0.0, waited_s: float = 0.0) -> Due:
    phrase = Phrase((unit("word, " if clause else "word "),) * words, closed)
    return due(phrase, left_s=left_s, waited_s=waited_s)


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


def test_a_phrase_ends_with_its_sentence_before_another_voice_and_where_it_is_long() -> None:
    phrase = Phrase().followed_by(unit("I ")).followed_by(unit("see. "))
    assert phrase == Phrase((unit("I "), unit("see. ")), closed=True)
    assert phrase.after(1) == Phrase((unit("see. "),), closed=True)
    assert Phrase().followed_by(None) == Phrase((), closed=True)
    assert Phrase((unit("I "),)).followed_by(None) == Phrase((unit("I "),), closed=True)
    long = unit("x" * MAX_CHARS)
    assert Phrase().followed_by(long) == Phrase((long,))
    assert Phrase((long,)).followed_by(unit("I ")) == Phrase((long,), closed=True)


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
    "Would you like a table by the window or on the terrace?",
    "The next train to the airport leaves in twelve minutes from platform four.",
    "Your prescription is ready, and you can pick it up until eight o'clock.",
    "There seems to be a problem with the payment, so it did not go through.",
    "No problem at all, take all the time you need.",
)


@cache
def heart() -> HibariVoice:
    voice = HibariVoice("heart")
    voice.load()
    return voice


def whole(text: str) -> list[int]:
    return [len(text.split())]


def in_twos(text: str) -> list[int]:
    return [2] * (len(text.split()) // 2) + [1] * (len(text.split()) % 2)


@cache
def spoken(text: str, cut: Callable[[str], list[int]], *, joins: bool) -> tuple[NDArray[np.int16], list[float]]:
    """A sentence in parts: its sound, and how long each word is in ms. Without the rule each part is a text alone."""
    words = tuple(f"{word} " for word in text.split())
    pcm, lengths, over, at = b"", list[float](), NO_SAMPLES, 0
    for size in cut(text):
        before = words[max(0, at - MAX_BEFORE) : at] if joins else ()
        part = Wanted(heart(), before, over, words[at : at + size + joins], (), heard=size).speak()
        lengths += [(end - start) * 1_000 / SAMPLE_RATE for start, end in part.words]
        pcm, over, at = pcm + part.pcm, part.over if joins else NO_SAMPLES, at + size
    return np.frombuffer(pcm, "<i2"), lengths


def test_words_that_are_joined_are_as_long_as_in_the_whole_sentence() -> None:
    def off_ms(*, joins: bool) -> float:
        pairs = [(spoken(text, in_twos, joins=joins)[1], spoken(text, whole, joins=True)[1]) for text in TEXTS]
        return float(np.mean([abs(part - own) for some in pairs for part, own in zip(*some, strict=True)]))

    assert off_ms(joins=True) < 12
    assert off_ms(joins=False) > 18  # without the rule


def test_without_a_sound_before_it_a_part_is_only_cut() -> None:
    wave = np.arange(1_000, dtype=np.float32)
    assert np.array_equal(joined(np.zeros(0, np.float32), wave, 200, 900), wave[200:900])
    assert np.array_equal(joined(wave, wave, 200, 210), wave[200:210])
