"""Boundaries are certain, and the facts about Unicode that they rest on are true of the library's tables."""

from __future__ import annotations

import pytest
from tokenizers import normalizers

from agent_tts.text.boundaries import kinds, last_boundary

NFC, NFD = normalizers.NFC(), normalizers.NFD()
PLANES = (0, 1, 2, 3, 14)  # no others hold characters, except for private use
CHARACTERS = [
    chr(code)
    for plane in PLANES
    for code in range(plane << 16, (plane + 1) << 16)
    if not 0xD800 <= code <= 0xDFFF and code != ord("\n")
]


def normalized(texts: list[str], form: normalizers.Normalizer) -> list[str]:
    return str(form.normalize_str("\n".join(texts))).split("\n")


@pytest.mark.parametrize(
    ("text", "tokenized"),
    [
        ("Hello", ""),
        ("Hello ", "Hello"),
        ("Hello,", "Hello"),
        ("Hello\n", "Hello"),
        ("Hello5", "Hello"),
        ("Hello\u0301", ""),  # may still become one letter with its accent
        ("5", ""),
        ("5a", "5"),
        ("a5", "a"),
        ("\u03015", "\u0301"),
        ("$ ", "$"),
        ("$\t", "$"),
        ("$\n", ""),
        ("a$b", "a"),
        ("a$$b", "a$$"),
        ("a $b", "a $"),
        ("a\t$b", "a\t"),
        ("\n\nb", "\n\n"),
        ("\n$", "\n"),
        (" \n", ""),
        ("   ", ""),
        ("   b", "  "),
        ("  \n  b", "  \n "),
        ("\t$", "\t"),
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
    ],
)
def test_the_last_boundary_is_as_late_as_it_is_certain(text: str, tokenized: str) -> None:
    assert text[: last_boundary(kinds(text))] == tokenized


def test_one_kind_a_character() -> None:
    assert kinds("aé你ﬁ") == "aaaa"
    assert kinds("5٣Ⅷ½") == "0000"
    assert kinds(" \t\u00a0\u3000\u2028\x85") == " \t\t\t\t\t"
    assert kinds("\n\r") == "\n\n"
    assert kinds("$_。\0\x1c\u200d👍🏽") == "!!!!!!!!"
    assert kinds("\u0301\u093f\u1161\u11a8\u212b\u0958\uf900") == "???????"


def test_what_reorders_is_unknown() -> None:
    """U+0345 has the highest combining class, so that every other combining mark moves before it."""
    moved = [
        char
        for char, normal in zip(CHARACTERS, normalized(["\u0345" + char for char in CHARACTERS], NFC), strict=True)
        if not normal.startswith("\u0345")
    ]
    assert len(moved) > 500
    assert set(kinds("".join(moved))) == {"?"}


def test_what_composes_is_unknown_and_leaves_the_kind_of_what_it_joins() -> None:
    """Of every composed character: its first part is of its own kind, all others are unknown."""
    parts = normalized(CHARACTERS, NFD)
    composed = [
        (char, part)
        for char, part, normal in zip(CHARACTERS, parts, normalized(parts, NFC), strict=True)
        if len(part) > 1 and normal == char
    ]
    assert len(composed) > 11_172  # the syllables of Hangul, and others
    assert set(kinds("".join({other for _, part in composed for other in part[1:]}))) == {"?"}
    starts = [(char, part[0]) for char, part in composed if kinds(part[0]) != "?"]
    assert kinds("".join(char for char, _ in starts)) == kinds("".join(first for _, first in starts))
