from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_tts.engine.espeak.scripts import LANGUAGES, parts, reader
from agent_tts.engine.espeak.voices import languages
from agent_tts.text.feed import Reading, TextFeed, Unit
from tests.examples import examples
from tests.fuzz.espeak import KILLERS, alphabets

CODES = sorted({language.code for language in languages()})


def units(text: str) -> list[Unit]:
    feed = TextFeed(Reading(clean=False), first_words=16)
    return [unit for unit in (*feed.append(text), *feed.flush()) if isinstance(unit, Unit)]


def read(text: str, language: str) -> list[tuple[str, str]]:
    """Each part of a text, and the language that reads it."""
    return [(part.text, reader(part.text, language)) for unit in units(text) for part in parts(unit, language)]


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en-us", "It’s “plain” text at 20°C and €5 or ½ x²", [("It’s “plain” text at 20°C and €5 or ½ x²", "en-us")]),
        ("de", "Grüße aus Łódź und smörgåsbord", [("Grüße aus Łódź und smörgåsbord", "de")]),
        ("hi", "यह iPhone ₹500 का है", [("यह iPhone ₹500 का है", "hi")]),
        ("ru", "Я купил iPhone за $500", [("Я купил iPhone за $500", "ru")]),
        ("ja", "東京タワーは高い", [("東京タワーは高い", "ja")]),
        ("ar", "نحن في Paris ٢٠٢٤", [("نحن في Paris ٢٠٢٤", "ar")]),
        ("sr", "Ово је Beograd", [("Ово је Beograd", "sr")]),
    ],
)
def test_what_a_voice_reads_stays_as_it_is(language: str, text: str, expected: list[tuple[str, str]]) -> None:
    assert read(text, language) == expected


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        (
            "en-us",
            "He said привет “мир” and left",
            [("He said ", "en-us"), ("привет “мир” ", "ru"), ("and left", "en-us")],
        ),
        ("en-us", "Say привет 5 times", [("Say ", "en-us"), ("привет ", "ru"), ("5 times", "en-us")]),
        ("te", "నమస్కారం Ελλάδα", [("నమస్కారం ", "te"), ("Ελλάδα", "el")]),
        ("en-us", "(привет)", [("(привет)", "ru")]),
        ("ko", "한국 Привет 你好", [("한국 ", "ko"), ("Привет ", "ru"), ("你好", "ko")]),
    ],
)
def test_words_in_another_script_are_read_in_a_language_that_has_it(
    language: str, text: str, expected: list[tuple[str, str]]
) -> None:
    assert read(text, language) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("𝐇𝐞𝐥𝐥𝐨 ﬁne ᴇᴏ Ｆｏｏ １２ Ⅻ", ["Hello fine eo Foo 12 XII"]),
        ("a 𐌰𐌱 b", ["a b"]),
        ("a\u200eb \ue000c", ["ab c"]),
        ("area πr² Δx", ["area π r² Δ x"]),
        ("Ⓜ 🅱🅲 ⒜ ① ㎏ ㊅ a≥b→c", ["m bc (a) 1 kg ", "六 ", "a ≥ b → c"]),
        ("yes👍🏽no 🇩🇪🇫🇷", ["yes", "👍", "no ", "🇩🇪", "🇫🇷"]),
        ("१२ apples", ["12 apples"]),
        ("⠿⠿", []),
        ("\u1038abc", ["abc"]),
    ],
)
def test_what_no_voice_reads_is_written_plainly_set_apart_or_left_out(text: str, expected: list[str]) -> None:
    assert [part for part, _ in read(text, "en-us")] == expected


TEXTS = st.lists(
    st.sampled_from(alphabets()[0]).flatmap(lambda alphabet: st.text(alphabet, min_size=1, max_size=8))
    | st.text(alphabet="aé 1,“.", max_size=5)
    | st.text(max_size=6)
    | st.sampled_from(KILLERS),
    max_size=6,
).map(" ".join)


@given(text=TEXTS, language=st.sampled_from(CODES))
@example(text="\u0b72\u0b01", language="af")  # a mark on a symbol that is a word of its own
@example(text="\U000107b0", language="af")  # it stands for a letter that has to be made plain, too
@examples(100)
def test_parts_are_whole_and_keep_their_offsets(text: str, language: str) -> None:
    for unit in units(text):
        found = parts(unit, language)
        offsets = [offset for part in found for offset in part.offsets]
        assert set(offsets) <= set(unit.offsets)
        assert all(earlier <= later for earlier, later in pairwise(offsets))
        for part in found:
            assert len(part.text) == len(part.offsets)
            assert not part.text.startswith(" ")
            assert "  " not in part.text
            assert parts(part, language) == [part]
            assert reader(part.text, language) in CODES


def test_burmese_is_spoken_in_short_parts() -> None:
    phrase = "မင်္ဂလာပါ နေကောင်းလား "
    found = read(phrase * 6, "my")
    assert "".join(text for text, _ in found) == phrase * 6
    assert max(len(text.encode()) for text, _ in found) < 160
    assert all(text.endswith(" ") for text, _ in found)


def test_each_script_has_a_reader_that_is_installed() -> None:
    named = {code for codes in LANGUAGES.values() for code in codes}
    assert {codes[0] for codes in LANGUAGES.values()} <= set(CODES)
    assert {code for code in named if not any(each == code or each.startswith(code + "-") for each in CODES)} == set()
