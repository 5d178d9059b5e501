from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pipecat.utils.string import TextPartForConcatenation, concatenate_aggregated_text

from agent_tts.integrations.pipecat.words import PlainText, SpokenWord, SpokenWords
from agent_tts.messages import Word
from agent_tts.text.words import words as words_in


def words_of(text: str) -> Iterator[tuple[int, str]]:
    """The words outside of tags, with their places in the text as it was sent."""
    for part in re.finditer(r"[^<>]+(?=<|$)", text):
        yield from ((part.start() + at, word) for at, word in words_in(part.group()))


def words(*texts: str, ms: int = 100) -> list[Word]:
    """Words of `ms` milliseconds each, one after the other."""
    told, at = [], 0
    for index, text in enumerate(texts):
        told.append(Word(text, index * ms, (index + 1) * ms, at, at + len(text)))
        at += len(text) + 1
    return told


def texts(spoken: list[SpokenWord]) -> list[str]:
    return [each.text for each in spoken]


def test_a_word_is_released_once_its_audio_begins() -> None:
    """By the rule of `DueWords`, which is told what is final."""
    spoken = SpokenWords()
    spoken.text.write("one two three")
    spoken.known.learn(words("one", "two", "three"))
    spoken.known.learn(words("one"), final=True)
    assert texts(spoken.due(100)) == ["one"]
    assert texts(spoken.due(260)) == []
    spoken.known.learn(words("one", "two", "three"), final=True)
    assert spoken.due(260) == [SpokenWord("two", 0.1, joined=False), SpokenWord("three", 0.2, joined=False)]
    assert spoken.finish(300) == []


def test_the_end_of_the_audio_releases_all_words_within_it() -> None:
    """Estimates may exceed the audio."""
    spoken = SpokenWords()
    spoken.text.write("one two three")
    spoken.known.learn(words("one", "two", "three"))
    assert spoken.finish(150) == [
        SpokenWord("one", 0.0, joined=False),
        SpokenWord("two", 0.1, joined=False),
        SpokenWord("three", 0.15, joined=False),
    ]


def test_a_second_context_continues_after_the_first() -> None:
    spoken = SpokenWords()
    spoken.known.learn(words("one"))
    spoken.finish(500)
    spoken.known.learn(words("two"))
    assert spoken.due(80) == [SpokenWord("two", 0.5, joined=False)]


def spoken_of(text: str) -> list[SpokenWord]:
    spoken = SpokenWords()
    spoken.text.write(text)
    spoken.known.learn(
        Word(word, 100 * i, 100 * i + 100, at, at + len(word)) for i, (at, word) in enumerate(words_of(text))
    )
    return spoken.finish(100_000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("你好，世界。", "你 好， 世 界。"),
        ("GPU很快", "GPU 很 快"),
        ("สวัสดี", "ส วั ส ดี"),
        ("하나 둘", "~하나 ~둘"),
        ("我用 iPhone 手机。", "我 用 ~iPhone _手 机。"),
        ("我用iPhone手机 和 a", "我 用 iPhone 手 机 ~和 ~a"),
        ("你好 世界", "你 好 _世 界"),
        ("Hello 你好 Bob", "~Hello _你 好 ~Bob"),
        ("One<break/>two", "~One ~two"),
        ("你<mark name='a'/>好", "你 好"),
    ],
)
def test_words_are_joined_as_in_the_text(text: str, expected: str) -> None:
    """`~`: Pipecat puts spaces around it; `_`: the word has its space."""
    plain = PlainText().read(text)
    assert plain.replace(" ", "") == re.sub("[ ~_]", "", expected)
    found = [("" if each.joined else "~") + each.text.replace(" ", "_") for each in spoken_of(text)]
    assert " ".join(found) == expected
    parts = [TextPartForConcatenation(each.text, each.joined) for each in spoken_of(text)]
    assert concatenate_aggregated_text(parts) == ("One two" if "One" in text else plain)
