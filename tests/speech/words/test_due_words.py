from __future__ import annotations

from agent_tts.messages import Word
from agent_tts.speech.words.due_words import DueWords


def word(text: str, char: int, start_ms: int) -> Word:
    return Word(text, start_ms, start_ms + 100, char, char + 1)


def test_each_word_is_released_once_with_its_audio() -> None:
    words = DueWords()
    words.learn([word("a", 0, 0), word("b", 2, 100), word("c", 4, 250)])
    assert [w.word for w in words.due(80)] == ["a"]
    assert [w.word for w in words.due(80)] == []
    assert [w.word for w in words.due(240)] == ["b"]
    assert [w.word for w in words.rest()] == ["c"]
    assert words.rest() == []


def test_better_times_replace_waiting_words_only() -> None:
    words = DueWords()
    words.learn([word("a", 0, 0), word("b", 2, 100)])
    assert [w.word for w in words.due(80)] == ["a"]
    words.learn([word("a", 0, 10), word("b", 2, 200)])
    assert words.due(160) == []
    assert [(w.word, w.start_ms) for w in words.due(240)] == [("b", 200)]


def test_after_the_first_final_time_words_wait_for_theirs() -> None:
    words = DueWords()
    words.learn([word("a", 0, 0), word("b", 2, 100), word("c", 4, 250)])
    words.learn([word("a", 0, 10)], final=True)
    assert [w.word for w in words.due(400)] == ["a"]
    words.learn([word("b", 2, 450)], final=True)
    assert words.due(440) == []
    assert [(w.word, w.start_ms) for w in words.due(480)] == [("b", 450)]
    assert [w.word for w in words.rest()] == ["c"]
