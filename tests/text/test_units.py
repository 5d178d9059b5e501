"""Units end where speech may pause, and their length is bounded."""

from __future__ import annotations

import pytest

from agent_tts.text.units import MAX_CHARS, MAX_CLUSTER, MAX_DIGITS, MAX_RUN, Cutter, Unit


def cut(text: str, first_words: int = 2, *, is_whole: bool = True) -> list[Unit]:
    units: list[Unit] = []
    cutter = Cutter(first_words, units.append)
    for offset, ch in enumerate(text):
        cutter.push(ch, offset)
    if is_whole:
        cutter.cut()
    return units


def texts(text: str, first_words: int = 2) -> list[str]:
    return [unit.text for unit in cut(text, first_words)]


def clauses(text: str) -> list[str]:
    """The clauses: units long enough that only punctuation cuts."""
    return [unit.strip() for unit in texts(text, first_words=1_000)]


def unfinished(text: str) -> list[str]:
    """The units that are complete before more text comes."""
    return [unit.text for unit in cut(text, is_whole=False)]


def test_the_first_unit_is_short_and_later_ones_grow() -> None:
    """2, 4, 8, 16 words, and 16 from then on."""
    assert [len(unit.split()) for unit in texts("word " * 70)] == [2, 4, 8, 16, 16, 16, 8]


def test_first_words_is_adjustable() -> None:
    """Even beyond the largest unit."""
    assert [len(unit.split()) for unit in texts("word " * 8, first_words=1)] == [1, 2, 4, 1]
    assert [len(unit.split()) for unit in texts("w " * 50, first_words=20)] == [20, 20, 10]


def test_a_word_is_emitted_with_the_white_space_after_it() -> None:
    """Not before, because it may continue; and not only with the next word."""
    assert unfinished("Hello there") == []
    assert unfinished("Hello there ") == ["Hello there "]
    assert unfinished("Hi. ") == ["Hi. "]
    assert unfinished("Hi.") == []


def test_a_line_break_ends_a_unit() -> None:
    """Any line break, also after spaces."""
    assert texts("One\nTwo \nThree\r\nFour\u2028Five") == ["One ", "Two ", "Three ", "Four ", "Five"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four; five: six, seven — eight… nine", 9),
        ("It is 3.14 of 1,000 at 10:30 on 2024-01-02.", 1),
        ("See e.g. Dr. Smith, i.e. J. R. Smith, z.B. in the U.S. at 5 p.m. today.", 3),
        ("Mr. and Mrs. Jones vs. Prof. Lee etc. went home.", 1),
        ("(Dr. Who) and “Mr. Bean”", 1),
        ("1. First\n2. Second\n3) Third", 3),
        ("Am 3. Mai, d. h. bald.", 2),
        ("In 2024. Then more.", 2),
        ("He said “no.” Then (really!) he left.", 3),
        ('"Stop!" she said.', 2),
        ("Wait... what?! Really?", 3),
        ("**Bold.** next", 2),
        ("example.com and a.b.c", 1),
        ("नमस्ते। आप कैसे हैं", 2),
        ("مرحبا، كيف حالك؟ بخير", 3),
        ("Bonjour\u00a0! Ça va\u202f? Oui", 3),
    ],
)
def test_clauses_end_at_punctuation_outside_of_words(text: str, expected: int) -> None:
    """Numbers, abbreviations and initials stay whole; quotes and brackets stay with their clause."""
    assert len(clauses(text)) == expected, clauses(text)


def test_punctuation_stays_in_the_unit_with_its_closing_marks() -> None:
    """Intonation depends on it."""
    assert clauses('"Stop!" (He did.) Then?') == ['"Stop!"', "(He did.)", "Then?"]


def test_a_no_break_space_does_not_end_a_word() -> None:
    """The French question mark stays with its word."""
    assert texts("Ça va\u00a0? Oui") == ["Ça va ? ", "Oui"]
    assert texts("\u00a0Ça \u00a0va") == ["Ça va"]


def test_cjk_marks_end_a_clause_at_once() -> None:
    """They do not wait for white space."""
    assert unfinished("你好，") == ["你好，"]
    assert clauses("你好，世界！今天、很好。") == ["你好，", "世界！", "今天、", "很好。"]


def test_cjk_quotes_stay_with_their_clause() -> None:
    """In open quotes one more character decides; a mark after it belongs to the clause too."""
    assert clauses("「真的？！」他说。") == ["「真的？！」", "他说。"]
    assert clauses("「好。是。」她说") == ["「好。", "是。」", "她说"]
    assert clauses("「好。 是」") == ["「好。", "是」"]
    assert unfinished("」好。") == ["」好。"]
    assert clauses("」好。是") == ["」好。", "是"]


def test_an_open_quote_ends_with_its_line() -> None:
    """An unclosed quote delays speech only to the end of its line."""
    assert unfinished("「好\n你好。") == ["「好 ", "你好。"]


def test_wide_marks_between_digits_do_not_end_a_clause() -> None:
    """Times and numbers in CJK text."""
    assert clauses("在10：30见面，价格1，000元") == ["在10：30见面，", "价格1，000元"]
    assert clauses("第1：开始") == ["第1：", "开始"]


def test_cjk_text_without_punctuation_is_cut_by_length() -> None:
    """Four characters count as a word; small kana stay with the character before them."""
    assert [len(text) for text in texts("字" * 200)] == [8, 16, 32, 64, 64, 16]
    assert texts("あああああああしゃあ") == ["あああああああしゃ", "あ"]
    assert texts("字" * 8 + "）abc") == ["字" * 8 + "）", "abc"]
    assert texts("字" * 8 + "。") == ["字" * 8 + "。"]


def test_mixed_words_count_once() -> None:
    """Spaces between CJK characters do not count."""
    assert texts("你好 世界 今天 很好 我们") == ["你好 世界 今天 很好 ", "我们"]


def test_a_run_without_white_space_is_cut() -> None:
    """For any length."""
    assert [len(text) for text in texts("a" * 200)] == [MAX_RUN, MAX_RUN, 40]
    assert "".join(texts("a." * 500)) == "a." * 500


def test_a_run_of_digits_is_cut() -> None:
    """A separator, a space or a letter starts a new run."""
    assert [len(unit) for unit in texts("9" * 60)] == [MAX_DIGITS, MAX_DIGITS, 12]
    assert texts("9" * 24 + "," + "9" * 24) == ["9" * 24 + "," + "9" * 24]
    assert texts("9" * 24 + "\u00a0" + "9" * 24 + "a") == ["9" * 24 + " " + "9" * 24 + "a"]


@pytest.mark.parametrize("cluster", ["e\u0301\u0323", "👩🏽\u200d💻\ufe0f", "🇩🇪", "🏴\U000e0067\U000e0062\U000e007f"])
def test_a_grapheme_cluster_is_never_cut(cluster: str) -> None:
    """For any place of the limit."""
    for shift in range(len(cluster)):
        units = texts("x" * shift + cluster * 100)
        assert len(units) > 1
        assert all(unit.startswith(("x", cluster)) and unit.endswith(cluster) for unit in units)


@pytest.mark.parametrize(
    "text",
    ["a" * 79 + " ", "a", "a" + "\u0301" * 500, "👩\u200d", "\u0301", "「。」）", "a\u00a0", "- ", "字) ", "1："],
)
def test_no_unit_is_longer_than_its_bound(text: str) -> None:
    """Long words, long clusters and many of them; nothing beyond the bound is held back."""
    units: list[Unit] = []
    cutter = Cutter(16, units.append)
    for offset, ch in enumerate((text * 5_000)[:10_000]):
        cutter.push(ch, offset)
        assert len(cutter._chars) <= MAX_CHARS + MAX_RUN + MAX_CLUSTER
    assert all(len(unit.text) <= MAX_CHARS + MAX_RUN + MAX_CLUSTER for unit in units)


def test_a_unit_has_something_to_speak() -> None:
    """Punctuation alone is not spoken, a symbol is; a mark behind white space ends the words before it."""
    assert texts("... — !\n\n  \u0301 “”") == []
    assert texts("Hello you !\nYes") == ["Hello you ", "! ", "Yes"]
    assert texts("100 % & @") == ["100 % ", "& @"]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("one two three ", "one two "),
        ("a 99999999 ", "a "),
        ("9999", "99"),
        ("9 ", None),
        ("9", None),
        ("e\u0301" * 3, "e\u0301"),
        ("e\u0301\u0302", "e"),
        ("字" * 5, "字字"),
        ("- - 9", "- "),
    ],
)
def test_halves_are_cut_after_white_space_or_at_least_between_characters(text: str, first: str | None) -> None:
    """At the nearest such place to the middle; only a single character has none."""
    halves = Unit(text, tuple(range(7, 7 + len(text)))).halves()
    if first is None:
        assert halves is None
    else:
        assert halves is not None
        assert [half.text for half in halves] == [first, text.removeprefix(first)]
        assert halves[0].offsets + halves[1].offsets == tuple(range(7, 7 + len(text)))


def test_opening_marks_wait_for_their_word() -> None:
    """They are not words."""
    assert texts("- ( Hello there") == ["- ( Hello there"]


def test_a_mark_without_its_character_is_dropped() -> None:
    """No unit starts with one."""
    assert texts("Hello there \u0301next") == ["Hello there ", "next"]


def test_offsets_are_those_of_the_characters() -> None:
    """White space is folded into its first character."""
    assert cut("  Hi\t \n you") == [Unit("Hi ", (2, 3, 4)), Unit("you", (8, 9, 10))]
