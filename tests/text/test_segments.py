"""Cutting a long text into segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.text.segments import Segmenter


def feed(segmenter: Segmenter, *texts: str) -> list[str]:
    """The segments of a text that comes in pieces."""
    segments = [""]
    for text in texts:
        for piece in segmenter.feed(text):
            if piece is None:
                segments.append("")
            else:
                segments[-1] += piece
    return segments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One two. Three four. Five", ["One two. Three four. ", "Five"]),
        ("no end of a sentence at all here", ["no end of a sentence ", "at all here"]),
        ("x" * 35, ["x" * 30, "x" * 5]),
        ("これは一つの文です。次の文", ["これは一つの文です。", "次の文"]),
        ("short.", ["short."]),
    ],
)
def test_contexts_end_with_a_sentence_or_a_word_or_anywhere(text: str, expected: list[str]) -> None:
    assert feed(Segmenter(10), text) == expected
    assert feed(Segmenter(10), *text) == expected


@given(st.lists(st.text(alphabet="ab. !\n。", max_size=30), max_size=20))
def test_no_text_is_lost_no_context_is_too_long_and_the_split_does_not_matter(texts: list[str]) -> None:
    whole = "".join(texts)
    segments = feed(Segmenter(7), *texts)
    assert "".join(segments) == whole
    assert max(map(len, segments)) <= 21
    assert segments == feed(Segmenter(7), whole)


def test_a_cut_begins_a_new_context() -> None:
    segmenter = Segmenter(10)
    segmenter.feed("123456789.")
    segmenter.cut()
    assert segmenter.feed(" 2345678") == [" 2345678"]
