"""The rules of a transcript: every character once, in order, with its audio."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.integrations.livekit.tts import Transcript
from agent_tts.messages import Word
from agent_tts.text.words import words

TEXT = "Hello there,  you. "
HELLO = Word("Hello", 0, 300, 0, 5)
THERE = Word("there,", 350, 600, 6, 12)
YOU = Word("you.", 700, 900, 14, 18)


def transcript(*words: Word, start_ms: float = 0.0) -> Transcript:
    made = Transcript(start_ms)
    made.text.write(TEXT)
    made.known.learn(words)
    return made


def test_a_word_waits_for_its_audio() -> None:
    made = transcript(HELLO, THERE, YOU)
    assert made.due(80) == ["Hello"]
    assert made.due(350) == []
    assert made.due(430) == [" there,"]
    assert made.finish(900) == ["  you.", " "]
    assert made.finish(900) == []


@pytest.mark.parametrize("text", ["我用iPhone手机，很好。", "我用 iPhone 手机。", "สวัสดีครับ ไปไหม", "Hello 你好，Bob！"])
def test_it_has_the_spaces_of_the_text(text: str) -> None:
    made = Transcript()
    made.text.write(text)
    made.known.learn(Word(word, 0, 0, at, at + len(word)) for at, word in words(text))
    assert "".join(made.finish(900)) == text


def test_times_are_in_seconds_of_the_reply() -> None:
    (word,) = transcript(THERE, start_ms=1_000).due(400)
    assert (word.start_time, word.end_time) == (1.35, 1.6)


def test_words_end_within_the_audio() -> None:
    """Estimates may exceed the final duration."""
    _, there, you, tail = transcript(HELLO, THERE, YOU).finish(500)
    assert (there.start_time, there.end_time) == (0.35, 0.5)
    assert (you.start_time, you.end_time) == (0.5, 0.5)
    assert tail == " "


def test_without_words_there_is_no_transcript() -> None:
    """LiveKit then uses the LLM's text."""
    assert transcript().finish(900) == []


def test_markup_is_left_out_and_separates_words() -> None:
    """LiveKit writes the transcript into the LLM's context."""
    made = Transcript()
    text = '<emotion value="sad"/> One<break time="1s"/>two [laughs] <b>th</b>ree. [sighs] '
    made.text.write(text)
    raws = {"One": "One", "two": "two", "three.": "<b>th</b>ree."}
    words = [Word(word, 0, 0, text.index(raw), text.index(raw) + len(raw)) for word, raw in raws.items()]
    made.known.learn(words)
    assert "".join(made.finish(900)) == "One two three. "


@given(st.text(st.sampled_from("ab .,\n🙂"), max_size=40), st.lists(st.integers(0, 2_000), max_size=20))
def test_every_character_is_released_once_and_in_order(text: str, times: list[int]) -> None:
    made = Transcript()
    handed = []
    at = 0
    for index, token in enumerate(text.split()):
        start = text.index(token, at)
        at = start + len(token)
        made.text.write(text[len(made.text.text) : at])
        made.known.learn([Word(token, 100 * index, 100 * index + 90, start, at)])
        handed += made.due(times[index % len(times)] if times else 0)
    made.text.write(text[len(made.text.text) :])
    handed += made.finish(2_000)
    assert "".join(handed) == (text if text.split() else "")


def test_words_wait_for_final_times_once_there_are_any() -> None:
    made = Transcript()
    made.text.write("one two")
    one, two = Word("one", 0, 100, 0, 3), Word("two", 100, 200, 4, 7)
    made.known.learn([one, two])
    made.known.learn([one], final=True)
    assert [str(word) for word in made.due(400)] == ["one"]
    made.known.learn([Word("two", 450, 600, 4, 7)], final=True)
    assert made.due(440) == []
    assert [str(word) for word in made.due(480)] == [" two"]
