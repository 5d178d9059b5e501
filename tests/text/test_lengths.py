"""Nominal lengths depend on sounds, not on letters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.text import lengths
from agent_tts.text.lengths import CLAUSE_PAUSE_MS, SENTENCE_PAUSE_MS, length
from tests.examples import examples


def ms(token: str, language: str = "en") -> float:
    return sum(ms for _, ms in length(token, language).pieces)


@pytest.mark.parametrize(
    ("shorter", "longer"),
    [
        ("through", "radio"),  # seven letters and one syllable; five letters and three syllables
        ("made", "Maddy"),
        ("7", "77"),
        ("90", "97"),
        ("fbi", "FBI"),
        ("ночь", "молоко"),
        ("안녕", "안녕하세요"),
        ("क्या", "कमला"),  # the virama removes a vowel
        ("word", "word,"),  # the last word before a pause is longer
    ],
)
def test_more_sounds_take_longer(shorter: str, longer: str) -> None:
    assert ms(shorter) < ms(longer)


def test_silent_letters_depend_on_the_language() -> None:
    assert ms("parlent", "fr") < ms("parlent", "es")
    assert ms("bone", "en-gb") < ms("bone", "it")


def test_a_number_takes_as_long_as_its_words() -> None:
    assert ms("1234567") == pytest.approx(
        ms("one")
        + ms("million")
        + ms("two")
        + 2 * (ms("hundred") + ms("and"))
        + ms("thirty")
        + ms("four")
        + ms("thousand")
        + ms("five")
        + ms("sixty")
        + ms("seven")
    )
    assert ms("21", "de") == pytest.approx(ms("einundzwanzig", "de"))
    assert ms("007") == pytest.approx(2 * ms("zero") + ms("seven"))
    assert ms("1" * 4_000) == pytest.approx(4_000 * ms("one"))


@pytest.mark.parametrize(
    ("token", "pause_ms"),
    [
        ("word", 0),
        ("word,", CLAUSE_PAUSE_MS),
        ("word;”", CLAUSE_PAUSE_MS),
        ("word.", SENTENCE_PAUSE_MS),
        ("(word!)", SENTENCE_PAUSE_MS),
        ("你好。", SENTENCE_PAUSE_MS),
        ("करो।", SENTENCE_PAUSE_MS),
        ("Dr.", 0),
        ("e.g.", 0),
        ("3.14", 0),
    ],
)
def test_pauses_follow_punctuation(token: str, pause_ms: float) -> None:
    assert length(token).pause_ms == pause_ms


def test_scripts_without_spaces_have_one_piece_for_each_character() -> None:
    assert [chars for chars, _ in length("你好，世界。").pieces] == [1, 2, 1, 2]
    assert [chars for chars, _ in length("カナOK字").pieces] == [1, 1, 2, 1]


@examples(200)
@given(st.text(min_size=1).filter(lambda text: not any(map(str.isspace, text))))
def test_pieces_cover_the_token(token: str) -> None:
    pieces = length(token).pieces
    assert sum(chars for chars, _ in pieces) == len(token)
    assert all(chars > 0 and ms >= 0 for chars, ms in pieces)


def test_a_number_takes_as_long_as_its_characters() -> None:
    """Words of English would be taken otherwise, which are longer."""
    for language, number, said in (("zh", "23", "二十三"), ("ja", "23", "二十三"), ("ko", "23", "이십삼")):
        number_ms = sum(ms for _, ms in length(number, language).pieces)
        assert number_ms == pytest.approx(sum(ms for _, ms in length(said, language).pieces), abs=1)


def test_what_seldom_comes_again_is_not_kept() -> None:
    """Four thousand tokens of 256 signs, each with a piece of its own, were 100 MB."""
    before = lengths._known.cache_info().currsize
    for number in range(100):
        length("你" * 200 + str(number))
    assert lengths._known.cache_info().currsize == before
