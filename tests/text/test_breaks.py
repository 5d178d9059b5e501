"""Tags for pauses, and text that resembles them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.text.breaks import MAX_BREAK_MS, Break, BreakReader, BreakTokens
from agent_tts.text.feed import Reading, Unit
from tests.examples import examples
from tests.text.test_feed import say, split, texts

_PIECES = st.sampled_from(
    [
        *("<break", " time=", '"500ms"', "'1s'", '"1.5s"', "/>", " />", ">", "<", "<b", "reak time", "=", '"', " "),
        *('<break time="500ms"/>', "<break time='2s' />", "a", "Hello ", "**", "`", "[", "<br>", "\n", "$5 "),
    ]
)


def read(pieces: list[str]) -> list[tuple[str, int] | Break]:
    out: list[tuple[str, int] | Break] = []
    reader = BreakReader(lambda ch, offset: out.append((ch, offset)), lambda rest, _: out.append(rest))
    offset = 0
    for piece in pieces:
        for ch in piece:
            reader.push(ch, offset)
            offset += 1
    reader.flush()
    return out


def by_tokens(text: str) -> tuple[str, int]:
    """The text outside of tags without white space, and the total of all pauses in ms."""
    breaks = BreakTokens()
    parts = [(token, breaks.read(token)) for token in text.split()]
    return "".join(token[part.start : part.end] for token, part in parts), sum(part.pause_ms for _, part in parts)


@examples(300)
@given(st.lists(_PIECES, max_size=20).map("".join), st.lists(st.integers(0, 1_000), max_size=8))
def test_units_and_pauses_do_not_depend_on_the_split(text: str, cuts: list[int]) -> None:
    reading = Reading(normalize="en", breaks=True)
    whole = say([text], reading)
    assert say(split(text, cuts), reading) == whole
    assert say(list(text), reading) == whole


@given(st.text(st.sampled_from('<break time="1s"/>x')))
def test_other_text_passes_unchanged(text: str) -> None:
    passed = [item for item in read([text]) if isinstance(item, tuple)]
    if not any(isinstance(item, Break) for item in read([text])):
        assert passed == list(zip(text, range(len(text)), strict=True))
    assert [offset for _, offset in passed] == sorted(offset for _, offset in passed)
    assert all(text[offset] == ch for ch, offset in passed)


@pytest.mark.parametrize(
    ("tag", "ms"),
    [
        ('<break time="500ms"/>', 500),
        ("<break time='0.25s' />", 250),
        ('<break  time = "1s">', 1_000),
        ('<break time="0ms"/>', 0),
        ('<break time="3600s"/>', MAX_BREAK_MS),
    ],
)
def test_tags(tag: str, ms: int) -> None:
    assert read([f"a{tag}b"]) == [("a", 0), Break(ms), ("b", len(tag) + 1)]
    assert by_tokens(f"a{tag}b") == ("ab", ms)


@pytest.mark.parametrize(
    "text",
    [
        "<break/>",
        "<break>",
        '<break time="-1s"/>',
        '<break time="1m"/>',
        '<break time="1s/>',
        "<break time='1s\"/>",
        '<breaktime="1s"/>',
        '<break strength="weak"/>',
        '<BREAK time="1s"/>',
        '<break time="١s"/>',
        "a < b and <break dance",
        '<break time="' + "1" * 50 + 's"/>',
    ],
)
def test_anything_else_is_text(text: str) -> None:
    assert read([text]) == list(zip(text, range(len(text)), strict=True))
    assert by_tokens(text)[1] == 0


def test_a_token_that_no_tag_can_contain_ends_the_tag() -> None:
    assert by_tokens("a <break time word b") == ("awordb", 0)
    assert by_tokens('a <break <break time="1s"/>b') == ("ab", 1_000)


def test_a_tag_after_an_incomplete_tag_counts() -> None:
    assert [item for item in read(['<break <break time="1s"/>']) if isinstance(item, Break)] == [Break(1_000)]


def test_a_pause_ends_a_unit_and_releases_held_text() -> None:
    items = say(['Well **$5<break time="1s"/> and** 3<break time="2s"/>pm'], Reading(normalize="en", breaks=True))
    assert [item.text.strip() if isinstance(item, Unit) else item.ms for item in items] == [
        *("Well five", "dollars", 1_000),
        *("and three", 2_000),
        "pm",
    ]


def test_a_tag_is_text_without_the_option() -> None:
    assert texts('a <break time="1s"/> b') == ["a <break ", 'time="1s"/> b']


def test_offsets_continue_after_a_tag() -> None:
    tag = '<break time="1s"/>'
    first, _, second = say([f"Hi {tag} you"], Reading(breaks=True))
    assert isinstance(first, Unit)
    assert isinstance(second, Unit)
    assert [*first.offsets, *second.offsets] == [0, 1, 2, *(len(tag) + place for place in (4, 5, 6))]
    assert all(now < later for now, later in pairwise((*first.offsets, *second.offsets)))
