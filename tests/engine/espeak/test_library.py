from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from agent_tts.engine.espeak.voices import VARIANTS, EspeakLanguage, languages
from agent_tts.engine.espeak.workers import (
    PITCH_NORMAL,
    RATE_MAX,
    RATE_MIN,
    RATE_NORMAL,
    Clause,
    Delivery,
    EspeakWorkers,
    Job,
    TooLong,
)
from tests.support import present

BY_CODE = {language.code: language for language in reversed(languages())}


pytestmark = pytest.mark.node


def speak(espeak: EspeakWorkers, text: str, how: Delivery, *, pause: bool = False, most: int | None = None) -> Clause:
    return present(espeak.speak(Job(text, how, pause=pause, most=most), time.monotonic() + 30))


def say(
    espeak: EspeakWorkers,
    text: str,
    code: str = "en-us",
    variant: str | None = None,
    *,
    rate: int = RATE_NORMAL,
    pitch: int = PITCH_NORMAL,
    pause: bool = False,
    most: int | None = None,
) -> Clause:
    return speak(espeak, text, Delivery(BY_CODE[code], variant, rate, pitch, pitch), pause=pause, most=most)


def words(text: str, clause: Clause) -> list[str]:
    return [text[word.char : word.char + word.length] for word in clause.words]


@pytest.mark.parametrize(
    ("variant", "text", "pitch"),
    [*((variant, "Six wizards, said he, hushed!", 50) for variant in (None, *VARIANTS)), (None, "Away!", 99)],
)
def test_audio_depends_on_the_arguments_alone(
    espeak: EspeakWorkers, variant: str | None, text: str, pitch: int
) -> None:
    """espeak-ng's flutter, roughness, noise and speed would otherwise carry over to the next synthesis."""
    first = say(espeak, text, variant=variant, pitch=pitch).samples
    for code, other, rate in ("jbo", None, 300), ("cmn", "whisper", 80), ("de", "f1", 440), ("ru", "croak", 175):
        say(espeak, "Something quite different 123, 你好, привет!", code, other, rate=rate, pitch=10, pause=True)
        assert np.array_equal(say(espeak, text, variant=variant, pitch=pitch).samples, first)


def test_audio_of_a_new_process_is_that_of_a_used_one(espeak: EspeakWorkers) -> None:
    """A worker that takes over must not be heard. At 450 words a minute it would be."""
    for variant, rate in (None, RATE_MAX), ("whisper", RATE_MAX), ("croak", RATE_MIN):
        say(espeak, "Hello there, 你好!", variant=variant, rate=RATE_MAX)
        with closing(EspeakWorkers()) as fresh:
            for code, text in ("cmn", "你好，"), ("en-us", "Six wizards"), ("ru", "привет"):
                first = say(fresh, text, code, variant, rate=rate).samples
                assert np.array_equal(say(espeak, text, code, variant, rate=rate).samples, first)


# espeak-ng's embedded commands (speed, amplitude, reverberation and others), each at an extreme.
COMMANDS = "\x01+90S\x01-9A\x0199R\x0199H\x0199T\x013I\x0110F\x012U hi"
CONTROLLED = [f"{chr(code)}90S {chr(code)}0A hi" for code in (*range(0x20), *range(0x7F, 0xA0))]


@pytest.mark.parametrize("text", [*CONTROLLED, COMMANDS, "\ud800a"])
def test_a_text_does_not_change_later_audio(espeak: EspeakWorkers, text: str) -> None:
    first = say(espeak, "one two").samples
    assert np.abs(say(espeak, text).samples).max() > 1_000
    assert np.array_equal(say(espeak, "one two").samples, first)


def test_every_language_speaks_and_changes_no_later_audio(espeak: EspeakWorkers) -> None:
    first = say(espeak, "one two").samples
    for language in languages():
        clause = speak(espeak, "1 a", Delivery(language, None))
        assert np.abs(clause.samples).max(initial=0) > 1_000, language.code
    assert np.array_equal(say(espeak, "one two").samples, first)


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        ("en-us", "Hello there, big world.", ["Hello", "there", "big", "world"]),
        ("en-us", "It speaks “word by word” now", ["It", "speaks", "word", "by", "word”", "now"]),
        ("de", "Grüße aus Köln", ["Grüße", "aus", "Köln"]),
        ("cmn", "你好，世界", ["你", "好，", "世", "界"]),
        ("en-us", "Most of the time, that's it", ["Most", "of", "the", "time", "that's", "it"]),
        ("ko", "오늘 날씨가 정말 좋네요", ["오늘", "날씨가", "정말", "좋네요"]),
        ("th", "สวัสดีครับ ไป", ["ส", "วั", "ส", "ดี", "ค", "รั", "บ", "ไป"]),
        ("my", "မင်္ဂလာပါ", ["မ", "င်္", "ဂ", "လာ", "ပါ"]),
        ("en-us", "a 😀 b", ["a", "😀", "b"]),
        ("en-us", "e\u0301te\u0301 is", ["e\u0301te\u0301", "is"]),
    ],
)
def test_words_have_their_character_offsets(espeak: EspeakWorkers, code: str, text: str, expected: list[str]) -> None:
    assert words(text, say(espeak, text, code)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "It costs $3.50, 1,000 times 2024!",
        "こんにちは世界",
        "www.example.com 10:30 <b>",
        "[a link] &amp;",
        "I.B.M. & a",
    ],
)
@pytest.mark.parametrize("code", ["en-us", "ja", "de"])
def test_words_are_ordered_within_text_and_audio(espeak: EspeakWorkers, code: str, text: str) -> None:
    clause = say(espeak, text, code, pause=True)
    assert clause.words
    ends = [0, *(word.end for word in clause.words)]
    chars = [0, *(word.char + word.length for word in clause.words)]
    for word, end, char in zip(clause.words, ends, chars, strict=False):
        assert end <= word.start <= word.end <= len(clause.samples)
        assert char <= word.char < word.char + word.length <= len(text)


def test_the_final_pause_is_optional_and_not_part_of_the_last_word(espeak: EspeakWorkers) -> None:
    short, long = say(espeak, "The end."), say(espeak, "The end.", pause=True)
    assert 0.2 * espeak.sample_rate < len(long.samples) - len(short.samples) < 0.5 * espeak.sample_rate
    assert long.words[-1].end <= len(short.samples)


def test_synthesis_stops_when_the_audio_is_too_long_and_changes_no_later_audio(espeak: EspeakWorkers) -> None:
    first = say(espeak, "one two").samples
    assert np.array_equal(say(espeak, "one two", most=len(first)).samples, first)
    for most in 0, 1_000, len(first) - 1:
        for text in "one two", "999999999999 " * 16, "One. Two? Three!":
            with pytest.raises(TooLong):
                say(espeak, text, most=most)
            assert np.array_equal(say(espeak, "one two").samples, first)


@pytest.mark.parametrize("text", ["[[h@l'oU]]", "<speak><break time='9s'/>a</speak>", "\x01+50S a", "&lt;"])
def test_text_is_never_a_command(espeak: EspeakWorkers, text: str) -> None:
    """Markup is read out: the clause has words, and no silence of nine seconds."""
    clause = say(espeak, text)
    gaps = np.diff(np.flatnonzero(np.abs(clause.samples) > 100))
    assert gaps.max(initial=0) < espeak.sample_rate
    assert len(clause.words) >= 1


def test_stretching_changes_the_length_but_neither_the_words_nor_the_pitch(espeak: EspeakWorkers) -> None:
    how = Delivery(BY_CODE["en-us"], None)
    plain = speak(espeak, "Mama, mama, mama.", how)
    for speed in 0.55, 1.55:
        clause = speak(espeak, "Mama, mama, mama.", replace(how, stretch=speed))
        assert clause.scale == pytest.approx(1 / speed, rel=0.03)
        assert len(clause.samples) == round(clause.scale * len(plain.samples))
        assert clause.words == plain.words


def test_only_languages_with_a_dictionary_are_listed() -> None:
    assert {"en-us", "de", "cmn", "ja"} <= BY_CODE.keys()
    assert not {"fo", "kaa"} & BY_CODE.keys()
    assert BY_CODE["yue"].path == "sit/yue"
    assert BY_CODE["de"] == EspeakLanguage("de", (("de", 5),), "German", "gmw/de")
