from __future__ import annotations

import pytest

from agent_tts.integrations.pipecat.words import SpokenWord, SpokenWords
from agent_tts.messages import Word


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
    spoken.learn(words("one", "two", "three"))
    spoken.learn(words("one"), final=True)
    assert texts(spoken.due(100)) == ["one"]
    assert texts(spoken.due(260)) == []
    spoken.learn(words("one", "two", "three"), final=True)
    assert spoken.due(260) == [SpokenWord("two", 0.1, joined=False), SpokenWord("three", 0.2, joined=False)]
    assert spoken.finish(300) == []


def test_the_end_of_the_audio_releases_all_words_within_it() -> None:
    """Estimates may exceed the audio."""
    spoken = SpokenWords()
    spoken.learn(words("one", "two", "three"))
    assert spoken.finish(150) == [
        SpokenWord("one", 0.0, joined=False),
        SpokenWord("two", 0.1, joined=False),
        SpokenWord("three", 0.15, joined=False),
    ]


def test_a_second_context_continues_after_the_first() -> None:
    spoken = SpokenWords()
    spoken.learn(words("one"))
    spoken.finish(500)
    spoken.learn(words("two"))
    assert spoken.due(80) == [SpokenWord("two", 0.5, joined=False)]


def test_unspaced_script_is_released_by_the_character() -> None:
    spoken = SpokenWords()
    spoken.learn([Word("你好，世界。", 0, 400, 0, 6)])
    assert spoken.due(80) == [SpokenWord("你", 0.0, joined=True)]
    assert texts(spoken.due(250)) == ["好，", "世"]
    assert spoken.finish(400) == [SpokenWord("界。", 0.3, joined=True)]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("「你好」。", ["「你", "好」。"]),
        ("GPU很快", ["GPU", "很", "快"]),
        ("我有3个，well-known!", ["我", "有", "3", "个，", "well-", "known!"]),
        ("well-known", ["well-known"]),
        ("한국어", ["한국어"]),
        ("—", ["—"]),
    ],
)
def test_pieces_add_up_to_the_word(text: str, pieces: list[str]) -> None:
    spoken = SpokenWords()
    spoken.learn([Word(text, 0, 400, 0, len(text))])
    assert texts(spoken.finish(400)) == pieces
    assert "".join(pieces) == text
