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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One\nTwo \nThree\r\nFour\u2028Five", ["One ", "Two ", "Three ", "Four ", "Five"]),
        ("Ça va\u00a0? Oui", ["Ça va ? ", "Oui"]),  # the French question mark stays with its word
        ("\u00a0Ça \u00a0va", ["Ça va"]),
        # Four characters count as a word, spaces between them do not; small kana stay behind their character.
        ("字" * 200, ["字" * count for count in (8, 16, 32, 64, 64, 16)]),
        ("あああああああしゃあ", ["あああああああしゃ", "あ"]),
        ("字" * 8 + "）abc", ["字" * 8 + "）", "abc"]),
        ("字" * 8 + "。", ["字" * 8 + "。"]),
        ("你好 世界 今天 很好 我们", ["你好 世界 今天 很好 ", "我们"]),
        # Runs without white space, and of digits, unless a separator, a space or a letter is between them.
        ("a" * 200, ["a" * MAX_RUN, "a" * MAX_RUN, "a" * 40]),
        ("9" * 60, ["9" * MAX_DIGITS, "9" * MAX_DIGITS, "9" * 12]),
        ("9" * 24 + "," + "9" * 24, ["9" * 24 + "," + "9" * 24]),
        ("9" * 24 + "\u00a0" + "9" * 24 + "a", ["9" * 24 + " " + "9" * 24 + "a"]),
        # Punctuation alone is not spoken, a symbol is; a mark behind white space ends the words before it.
        ("... — !\n\n  \u0301 “”", []),
        ("Hello you !\nYes", ["Hello you ", "! ", "Yes"]),
        ("100 % & @", ["100 % ", "& @"]),
        ("- ( Hello there", ["- ( Hello there"]),  # opening marks are no words
        ("Hello there \u0301next", ["Hello there ", "next"]),  # a mark without its character is dropped
    ],
)
def test_a_text_is_cut_into_units(text: str, expected: list[str]) -> None:
    assert texts(text) == expected


@pytest.mark.parametrize(
    ("words", "first_words", "counts"),
    [(70, 2, [2, 4, 8, 16, 16, 16, 8]), (8, 1, [1, 2, 4, 1]), (50, 20, [20, 20, 10])],
)
def test_the_first_unit_is_short_and_later_ones_grow(words: int, first_words: int, counts: list[int]) -> None:
    """Up to 16 words, or as many as the first one may have."""
    assert [len(unit.split()) for unit in texts("w " * words, first_words)] == counts


def test_a_word_is_emitted_with_the_white_space_after_it() -> None:
    """Not before, because it may continue; and not only with the next word."""
    assert unfinished("Hello there") == []
    assert unfinished("Hello there ") == ["Hello there "]
    assert unfinished("Hi. ") == ["Hi. "]
    assert unfinished("Hi.") == []


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


@pytest.mark.parametrize(
    "text",
    [
        '"Stop!" |(He did.) |Then?',  # intonation depends on it
        # CJK marks do not wait for white space. In open quotes one more character decides; a mark after it belongs to
        # the clause too.
        *("你好，|世界！|今天、|很好。", "「真的？！」|他说。", "「好。|是。」|她说", "「好。 |是」", "」好。|是"),
        *("在10：30见面，|价格1，000元", "第1：|开始"),  # times and numbers
    ],
)
def test_punctuation_stays_in_the_unit_with_its_closing_marks(text: str) -> None:
    assert clauses(text.replace("|", "")) == [clause.strip() for clause in text.split("|")]


@pytest.mark.parametrize("text", ["你好，", "」好。", "「好\n|你好。"])
def test_cjk_marks_end_a_clause_at_once(text: str) -> None:
    """An unclosed quote delays speech only to the end of its line."""
    assert unfinished(text.replace("|", "")) == text.replace("\n", " ").split("|")


@pytest.mark.parametrize(
    "text",
    [
        "การประชุม|เริ่มเวลาสามโมง|เย็นที่ห้องประชุมใหญ่กรุณามาถึงก่อนสิบนาที|เพื่อลงทะเบียน",
        "บัตรเครดิตของคุณหมด|อายุแล้วพันธ์กรุง|เทพมหานครสมัครสมาชิกวันจันทร์",
        "สวัสดีครับ|ยินดีต้อนรับเข้า|สู่บริการลูกค้า",
        "สวัสดีค่ะ |กรุณารอสักครู่ ดิฉันจะ|ตรวจสอบให้ทันทีค่ะ",
        "ขอโทษครับ|หมายเลขที่ท่านเรียก|ไม่สามารถติดต่อได้",
        "မင်္ဂလာပါ|ကျွန်တော်တို့ရဲ့ဝန်ဆောင်မှုကိုကြိုဆိုပါတယ်",
        "ခဏစောင့်ပေးပါကျေးဇူး|တင်ပါတယ်",
        "សួស្តីស្វាគមន៍មក|កាន់សេវាកម្មរបស់យើង",
        "ສະບາຍດີ|ຍິນດີຕ້ອນຮັບ|ສູ່ການບໍລິການ",
        "བཀྲ་ཤིས་བདེ་|ལེགས་",
        # Nothing tells where a syllable ends.
        "ห" * 16 + "|หห",
        "กา" * 8 + "|กากา",
        "หมาย|เลขของท่านคือ" + "1" * 24 + "|1",
        "หมาย|เลขของท่านคือ" + "๑" * 24 + "|๑",
        "ห" * 8 + "|1234",
    ],
)
def test_thai_and_its_kin_are_cut_between_syllables_as_soon_as_spaced_text(text: str) -> None:
    """The first unit has about two words, the next ones twice as much each: nothing waits for white space."""
    assert texts(text.replace("|", "")) == text.split("|")


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


def test_offsets_are_those_of_the_characters() -> None:
    """White space is folded into its first character."""
    assert cut("  Hi\t \n you") == [Unit("Hi ", (2, 3, 4)), Unit("you", (8, 9, 10))]
