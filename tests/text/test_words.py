"""One rule for what a word is, in scripts with spaces and without."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.text.words import are_joined, space, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, “big” world! — (yes)", "Hello,|“big”|world!|—|(yes)"),
        ("https://example.com/a?b=c", "https://example.com/a?b=c"),
        ("오늘 날씨가 좋네요.", "오늘|날씨가|좋네요."),
        ("नमस्ते दुनिया", "नमस्ते|दुनिया"),
        ("今天天气很好，我们去散步。", "今|天|天|气|很|好，|我|们|去|散|步。"),
        ("他说“你好”。《红楼梦》", "他|说|“你|好”。|《红|楼|梦》"),
        ("我有3台iPhone手机，共¥1,299.50元！", "我|有|3|台|iPhone|手|机，|共|¥1,299.50|元！"),
        ("GPU很快", "GPU|很|快"),
        ("3月5日10:30", "3|月|5|日|10:30"),
        ("東京タワーへ、ジョン・スミスと。", "東|京|タ|ワ|ー|へ、|ジ|ョ|ン・|ス|ミ|ス|と。"),
        ("か\u3099くせい ｶﾞｽ", "か\u3099|く|せ|い|ｶﾞ|ｽ"),
        ("葛\U000e0100城😀です", "葛\U000e0100|城😀|で|す"),
        ("สวัสดีครับ ไปน้ำ 2 วัน", "ส|วั|ส|ดี|ค|รั|บ|ไป|น้ำ|2|วั|น"),
        ("ເຮືອ ນ້ຳ", "ເຮື|ອ|ນ້ຳ"),
        ("မင်္ဂလာပါ ၁၂၃။", "မ|င်္ဂ|လာ|ပါ|၁၂၃။"),
        ("សួស្តី កម្ពុជា", "សួ|ស្តី|ក|ម្ពុ|ជា"),
        ("བཀྲ་ཤིས", "བ|ཀྲ་|ཤི|ས"),
        ("ꦲꦏ꧀ꦱꦫ", "ꦲ|ꦏ꧀ꦱ|ꦫ"),
        ("用Wi-Fi上网", "用|Wi-Fi|上|网"),
        ("漢字を、「読む」(よむ)", "漢|字|を、|「読|む」|(よ|む)"),
    ],
)
def test_what_a_word_is(text: str, expected: str) -> None:
    assert [word for _, word in words(text)] == expected.split("|")


@given(st.text(alphabet="ab 你あ・ー。“”(（เำ\u0e31\u1039က5\u3099-", max_size=24), st.integers(0, 24))
def test_words_are_all_but_white_space_and_later_text_changes_the_last_one_alone(text: str, cut: int) -> None:
    found = list(words(text))
    assert "".join(word for _, word in found) == "".join(text.split())
    assert all(text.startswith(word, place) for place, word in found)
    before = list(words(text[:cut]))
    assert before[:-1] == found[: max(0, len(before) - 1)]


def test_a_text_of_openers_takes_no_more_time_than_another() -> None:
    """Mutation: openers without a bound, which take the square of their number."""
    assert len(list(words("(" * 200_000))) == 1


@pytest.mark.parametrize(
    ("gap", "before", "after", "expected"),
    [
        (" \n", "One", "two", " \n"),
        ("", "你", "好", ""),
        ("<b/>", "One", "two", " "),
        ("<b/>", "你", "好", ""),
        ("<b/>", "GPU", "“很", ""),
        ("<b/>", "好，", "GPU", ""),
        ("<b/>", "น้ำ", "2", ""),
        (" <b/>", "你", "好", " "),
        ("<b/>\n", "One", "two", "\n"),
    ],
)
def test_the_space_between_two_words(gap: str, before: str, after: str, expected: str) -> None:
    assert space(gap, before, after) == expected


def test_words_of_scripts_with_spaces_are_not_joined() -> None:
    assert not are_joined("한국", "어")
    assert are_joined("한국", "語")
