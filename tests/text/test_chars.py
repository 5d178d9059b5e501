from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from itertools import chain

from agent_tts.text import chars


def codes() -> Iterator[int]:
    """All code points but Han characters of later planes, and two of the planes that have none."""
    return chain(range(0x20001), range(0x2F800, 0x2FA20), range(0xE0000, 0xE01F0), (0xF0000, 0x10FFFF))


def test_scripts_without_spaces_are_cjk_and_letters_of_others_make_words() -> None:
    """Han, kana and bopomofo of every block; Hangul is written with spaces. Marks and the end of a text are neither."""
    assert not [ch for ch in "你アぁ々ｱ豈ㄅㇰ𠮷" if not chars.is_cjk(ch) or chars.is_word(ch)]
    assert not [ch for ch in "aéжก한7مअ" if not chars.is_word(ch) or chars.is_cjk(ch)]
    assert not [ch for ch in (*"。「゙-_\u0301", "") if chars.is_word(ch) or chars.is_cjk(ch)]


def test_punctuation_is_silent_and_letters_and_symbols_are_audible() -> None:
    """Including those that Unicode calls punctuation."""
    assert not [ch for ch in ".,!?\"'()…—-«»“”¿¡、。「」 \u0301\u200d\x07" if not chars.is_silent(ch)]
    assert not [ch for ch in "a9%&@+$*#/é你🎉©" if chars.is_silent(ch)]


def test_grapheme_clusters_are_one_character() -> None:
    """Marks, joined emoji, modifiers, tags; other characters may start a unit."""
    marked = ["e\u0301", "👩\u200d", "\u200d💻", "👍\U0001f3fd", "❤\ufe0f", "1\u20e3", "🏴\U000e0067", "क्"]
    assert not [text for text in marked if not chars.extends(text[1], text[0], 1)]
    assert not [ch for ch in "a😀你é" if chars.extends(ch, "x", 1)]


def test_two_regional_indicators_are_a_flag() -> None:
    """A third one starts the next flag."""
    assert chars.extends("🇪", "🇩", 1)
    assert not chars.extends("🇫", "🇪", 2)
    assert not chars.extends("🇩", "a", 1)


def test_invisible_and_silent_characters_are_dropped() -> None:
    """Controls, bidi, zero width, private use, surrogates, variation selectors, tags."""
    silent = "\0\x1b\x7f\u200b\u200d\u202e\u2066\ufeff\xad\ufe0f\u20e3\ue000\ud800\udfff\U000e0101\U000e0061"
    assert not [ch for ch in silent if chars.normal(ch, "a")]


def test_emoji_are_pictographs_and_readable_symbols_stay() -> None:
    """As are geometric bullets and the replacement character; symbols are read by name."""
    assert not [ch for ch in "😀🎉❤✅⭐⌚▶🇩🏽🫠🯁�\ufffc" if chars.normal(ch, "a") != chars.PICTOGRAPH]
    assert {chars.normal(ch, "a") for ch in "→➡⬆⇒⟶↔🠒"} == {chars.ARROW}
    assert not [ch for ch in "aÀ©®™°№→½①❶你한。€½²♯〒㊗" if chars.normal(ch, "a") != ch]


def test_white_space_is_of_three_kinds() -> None:
    """A space, a line break, or a no-break space."""
    assert {chars.normal(ch, "a") for ch in " \t\u3000\u2003\u1680"} == {" "}
    assert {chars.normal(ch, "a") for ch in "\n\r\v\f\x85\u2028\u2029"} == {"\n"}
    assert {chars.normal(ch, "a") for ch in "\u00a0\u202f\u2007"} == {chars.NO_BREAK_SPACE}


def test_joiners_stay_inside_words() -> None:
    """Persian and Indic spelling uses them; emoji are not words."""
    assert chars.normal("\u200c", "ی") == "\u200c"
    assert chars.normal("\u200d", "्") == "\u200d"
    assert chars.normal("\u200c", "្") == "\u200c"
    assert chars.normal("\u200d", chars.PICTOGRAPH) == ""
    assert chars.normal("\u200c", "") == ""


def test_controls_and_lone_surrogates_are_unspeakable() -> None:
    """Except for controls that are white space."""
    found = {code for code in codes() if chars.is_unspeakable(chr(code))}
    controls = {*range(0x20), *range(0x7F, 0xA0)} - {*range(0x09, 0x0E), *range(0x1C, 0x20), 0x85}
    assert found == controls | {*range(0xD800, 0xE000)}


def test_every_code_point_has_a_class() -> None:
    """No letter or digit of any script is lost, and no surrogate passes."""
    for code in codes():
        ch = chr(code)
        plain = chars.normal(ch, "a")
        if unicodedata.category(ch)[0] in "LN" and not "\u3040" > ch > "\u303f":
            assert plain == ch
        if "\ud800" <= ch <= "\udfff":
            assert plain == ""
            assert chars.is_unspeakable(ch)
