"""Units never change with later text, for any split; work is linear."""

from __future__ import annotations

import unicodedata
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.directives import Directive, Pause
from agent_tts.text.feed import Reading, TextFeed, Unit
from agent_tts.text.units import MAX_CHARS, MAX_CLUSTER, MAX_RUN
from tests.examples import CUTS, examples, split
from tests.work import more_than_linear

_FLUSH = None  # a flush in a list of pieces

# fmt: off
_PIECES = st.sampled_from([
    "a", "Hello ", "world. ", "Dr. ", "e.g. ", "3.14 ", "10:30", "1,000 ", " ", "\n", "\r\n", "\t", "\u00a0",
    "7", "a" * 90, "你好", "สวัส", "ดีครับ", "မင်္ဂလာ", "，世界。", "「真的？」", "*", "**", "***", "_", "__", "~~", "~~~",
    "`", "```", "```py\n", "# ", "- ", "- [x] ", "1. ", "> ", "---\n", "|", "|---|", " | ", "=", "[", "]", "](", "(",
    ")", "![", "[a](http://b.c/d)", "https://a.b/c.", "www.", "http", "w", "h", "<", ">", "<br>", "<b", "</", "<!--",
    "-->", "&", "&amp;", "&#39;", ";", "\\", "!", "?", ".", ",", ":", "…", "—", "”", "<|im_start|>", "<|", "|>",
    "<think>", "<tts_pad>", "👩\u200d💻", "👍🏽", "❤️", "🇩🇪", "1️⃣", "\u200d", "e\u0301", "\u0301", "\ud83d",
    "\udc00", "\0", "\x01", "\x9b", "\u202e", "\u200b", "\ufeff",
])
_RUNS = [
    "a", "a.", "a ", "@", "7", "👩\u200d", "e\u0301", "\u0301", "[", "](", "*", "* ", "`", "```", "<", "<b ",
    "<|", "<|a", "&", "&a", "|", "| ", "#", "- ", "> ", "_a", "~", "\\", "!", "![", "www.", "http://",
    "https://a.b/.", "你", "「", "。", "\u00a0", "\n", "\0", "\ud800", "ห", "ကို",
]
# fmt: on
_TEXTS = st.lists(_PIECES | st.text(max_size=3), max_size=25).map("".join)


def speak(script: list[str | None], *, clean: bool) -> list[Unit]:
    """The units of pieces of text, with flushes between them."""
    spoken = say(script, Reading(clean=clean))
    assert not any(isinstance(item, Pause) for item in spoken)
    return [item for item in spoken if isinstance(item, Unit)]


def say(script: list[str | None], reading: Reading) -> list[Unit | Directive]:
    """The same with the pauses between them."""
    feed = TextFeed(reading)
    items: list[Unit | Directive] = []
    for piece in script:
        items += feed.flush() if piece is _FLUSH else feed.append(piece)
    return items + feed.flush()


def texts(*script: str | None, clean: bool = True) -> list[str]:
    return [unit.text for unit in speak(list(script), clean=clean)]


@examples(300)
@given(text=_TEXTS, cuts=CUTS, clean=st.booleans())
def test_units_do_not_depend_on_the_split(text: str, cuts: list[int], clean: bool) -> None:
    """Any pieces, single characters, or the whole text."""
    whole = speak([text], clean=clean)
    assert speak([*split(text, cuts)], clean=clean) == whole
    assert speak(list(text), clean=clean) == whole


@examples(150)
@given(parts=st.lists(_TEXTS, max_size=4), cuts=CUTS, clean=st.booleans())
def test_flushes_are_part_of_the_text(parts: list[str], cuts: list[int], clean: bool) -> None:
    """With the same flushes the split does not matter; after a flush no text is left."""
    whole: list[str | None] = [piece for part in parts for piece in (part, _FLUSH)]
    pieces: list[str | None] = [piece for part in parts for piece in (*split(part, cuts), _FLUSH)]
    assert speak(pieces, clean=clean) == speak(whole, clean=clean) == speak(whole[:-1], clean=clean)


@examples(200)
@given(text=_TEXTS, clean=st.booleans())
def test_units_are_speakable_and_bounded(text: str, clean: bool) -> None:
    """Audible text, single spaces, no characters that engines cannot handle; ordered offsets into the raw text."""
    last = 0
    for unit in speak([text], clean=clean):
        assert unit.text.strip()
        assert unit.text == " ".join(unit.text.split(" ")) == unit.text.lstrip()
        assert not any(unicodedata.category(ch) in ("Cc", "Cs") for ch in unit.text)
        assert len(unit.text) == len(unit.offsets) <= MAX_CHARS + MAX_RUN + MAX_CLUSTER
        assert [last, *unit.offsets] == sorted([last, *unit.offsets])
        last = unit.offsets[-1]
        unit.text.encode()


@examples(200)
@given(text=_TEXTS)
def test_uncleaned_text_maps_back_exactly(text: str) -> None:
    """Every character is that at its offset; white space is a space."""
    for unit in speak([text], clean=False):
        assert unit.text == "".join(" " if text[o].isspace() else text[o] for o in unit.offsets)


@examples(100)
@given(text=st.text(st.sampled_from("ab1%é你\n ."), max_size=200))
def test_no_audible_character_is_lost(text: str) -> None:
    """All letters, digits and symbols, in order."""
    heard = [ch for ch in text if ch not in " \n."]
    assert [ch for unit in speak([text], clean=False) for ch in unit.text if ch not in " ."] == heard


def test_speech_starts_before_the_sentence_is_complete() -> None:
    """Two words suffice, or one that ends a clause."""
    feed = TextFeed()
    assert feed.append("Hello") == []
    assert feed.append(" there") == []
    assert feed.append(" my") == [Unit("Hello there ", tuple(range(12)))]
    assert TextFeed().append("Sure! ") == [Unit("Sure! ", tuple(range(6)))]
    assert TextFeed(first_words=1).append("So what") == [Unit("So ", (0, 1, 2))]


def test_a_flush_speaks_the_text_so_far() -> None:
    """The context goes on."""
    feed = TextFeed()
    assert feed.append("Hel") == []
    assert feed.flush() == [Unit("Hel", (0, 1, 2))]
    assert feed.flush() == []
    assert feed.append("lo ") == []
    assert feed.flush() == [Unit("lo ", (3, 4, 5))]


@pytest.mark.parametrize("text", ["Wait!", "a <b", "AT&T", "a |", "http", "<|im_start", "C\\"])
def test_no_text_is_held_back_at_the_end(text: str) -> None:
    """Including text that could have become markup."""
    assert texts(text) == [text]


def test_cleaning_can_be_switched_off() -> None:
    """Then markup is ordinary text; only characters that no engine can handle are dropped."""
    assert texts("**a** `b` 🎉\0\x01\x9b\ud800x") == ["a b ", "x"]
    assert texts("**a** `b` 🎉\0\x01\x9b\ud800x", clean=False) == ["**a** `b` ", "🎉x"]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("token", ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "<tts_pad>", "<|_a_|>"])
def test_special_tokens_stay_text(token: str, clean: bool) -> None:
    """An engine's tokenizer gets their characters."""
    assert texts(f"{token} x", clean=clean) == [f"{token} x"]


def test_offsets_point_into_the_raw_text_across_pieces() -> None:
    """Dropped characters count as well."""
    assert speak(["**Hi", "** ", "🎉y", "ou"], clean=True) == [Unit("Hi you", (2, 3, 6, 8, 9, 10))]


def test_work_is_linear() -> None:
    """Character by character."""

    def feed(case: tuple[str, bool], chars: int) -> None:
        run, clean = case
        units = TextFeed(Reading(clean=clean))
        for ch in (run * chars)[:chars]:
            units.append(ch)
        units.flush()

    plain = ["a", "a ", "7", "e\u0301", "\u0301", "👩\u200d", "你", "「", "。", "\u00a0", "\n", "\0"]
    assert not more_than_linear([*product(_RUNS, [True]), *product(plain, [False])], feed, chars=130)
