"""Boundaries are certain, and the Unicode rules behind them agree with the library's tables."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, normalizers, pre_tokenizers

from agent_tts.text.tokens import PRE_TOKEN, kinds, last_boundary
from tests.examples import examples
from tests.text.pieces import KINDS, PIECES, SPECIAL
from tests.text.test_chars import codes

NFC, NFD = normalizers.NFC(), normalizers.NFD()
SPLIT = pre_tokenizers.Split(Regex(PRE_TOKEN), "isolated")


@pytest.fixture
def characters() -> list[str]:
    """All but line breaks and surrogates: 10 MB, which no process keeps."""
    return [chr(code) for code in codes() if not 0xD800 <= code <= 0xDFFF and code != ord("\n")]


def normalized(texts: list[str], form: normalizers.Normalizer) -> list[str]:
    return str(form.normalize_str("\n".join(texts))).split("\n")


def pre_tokens(text: str) -> list[str]:
    return [piece for piece, _ in SPLIT.pre_tokenize_str(NFC.normalize_str(text))]


def assert_boundaries_hold(text: str) -> None:
    """For every known prefix: the parts before and after its boundary have the pre-tokens of the whole text."""
    whole = pre_tokens(text)
    for boundary in {last_boundary(kinds(text[:known])) for known in range(1, len(text) + 1)} - {0}:
        assert pre_tokens(text[:boundary]) + pre_tokens(text[boundary:]) == whole, (text, boundary)


def test_no_later_text_moves_a_boundary() -> None:
    """All short texts: the rules use two characters before a boundary and two after it."""
    for length in range(1, 5):
        for characters in product(KINDS, repeat=length):
            assert_boundaries_hold("".join(characters))


@examples(200)
@given(text=st.lists(st.sampled_from(PIECES + SPECIAL) | st.characters(codec="utf-8"), max_size=12).map("".join))
def test_boundaries_hold_in_any_script(text: str) -> None:
    assert_boundaries_hold(text)


# A text, and what of it is certain.
BOUNDARIES = [
    ("Hello", ""),
    ("Hello ", "Hello"),
    ("Hello,", "Hello"),
    ("Hello\n", "Hello"),
    ("Hello5", "Hello5"),
    ("Hello\u0301", ""),  # may still become one letter with its accent
    ("5", "5"),
    ("5a", "5"),
    ("a5", "a5"),
    ("\u03015", "\u03015"),
    ("$ ", "$"),
    ("$\t", "$"),
    ("$\n", ""),
    ("a$b", "a"),
    ("a$$b", "a$$"),
    ("a $b", "a $"),
    ("a\t$b", "a"),
    ("\n\nb", "\n\n"),
    ("\n$", "\n"),
    (" \n", ""),
    ("\n ", ""),
    ("   ", ""),
    ("   b", "  "),
    ("  \n  b", "  \n "),
    ("\t$", ""),
    ("  5", "  5"),
    ("\n\u0301", "\n"),
    (" \u2000 ", ""),
    (" $", ""),
    ("\u0301 ", "\u0301"),
    ("\u0301\n", ""),
    ("it's ", "it's"),
    ("it's", "it"),
    ("你好", ""),
    ("你好，", "你好"),
    ("한국어 ", "한국어"),
    ("👩\u200d💻👍🏽 ", "👩\u200d💻👍🏽"),
    ("क\u093f ", "क\u093f"),
]


def test_the_last_boundary_is_as_late_as_possible() -> None:
    found = [(text, text[: last_boundary(kinds(text))]) for text, _ in BOUNDARIES]
    assert found == BOUNDARIES


def test_every_character_has_a_kind() -> None:
    assert kinds("aé你ﬁ\u212b\uf900") == "aaaaaa"
    assert kinds("5٣Ⅷ½") == "0000"
    assert kinds(" \t\u00a0\u3000\u2000\u2028\x85") == " \t\t\t\t\t\t"
    assert kinds("\n\r") == "\n\n"
    assert kinds("$_。\0\x1c\u200d👍🏽") == "!!!!!!!!"
    assert kinds("\u0301\u093f\u1161\u11a8\u0958") == "?????"


def test_reordered_characters_are_unknown(characters: list[str]) -> None:
    """U+0345 has the highest combining class: every other combining mark moves before it."""
    moved = [
        char
        for char, normal in zip(characters, normalized(["\u0345" + char for char in characters], NFC), strict=True)
        if not normal.startswith("\u0345")
    ]
    assert len(moved) > 500
    assert set(kinds("".join(moved))) == {"?"}


def test_composing_characters_are_unknown_and_keep_the_kind_of_the_first(characters: list[str]) -> None:
    """For every composed character: its first part has its kind, all other parts are unknown."""
    parts = normalized(characters, NFD)
    composed = [
        (char, part)
        for char, part, normal in zip(characters, parts, normalized(parts, NFC), strict=True)
        if len(part) > 1 and normal == char
    ]
    assert len(composed) > 11_172  # the Hangul syllables, and others
    assert set(kinds("".join({other for _, part in composed for other in part[1:]}))) == {"?"}
    starts = [(char, part[0]) for char, part in composed if kinds(part[0]) != "?"]
    first_kinds = kinds("".join(first for _, first in starts))
    assert kinds("".join(char for char, _ in starts)) == first_kinds
    assert set(first_kinds) == {"a", "!"}


def test_characters_that_decompose_are_unknown_and_no_white_space(characters: list[str]) -> None:
    apart = [normal for normal in normalized(characters, NFC) if len(normal) > 1]
    assert len(apart) > 50
    assert not any(char.isspace() for normal in apart for char in normal)
