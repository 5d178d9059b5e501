from __future__ import annotations

from agent_tts.messages import Mark, Word
from agent_tts.speech.words.marks import Marks


def words(*spoken: tuple[str, int, int]) -> list[Word]:
    """Words of "One two three" by (word, start_ms, end_ms)."""
    starts = {"One": 0, "two": 4, "three": 8}
    return [Word(word, start, end, starts[word], starts[word] + len(word)) for word, start, end in spoken]


def test_a_mark_has_the_start_of_the_next_word() -> None:
    marks = Marks()
    marks.add("first", 0, 0)
    marks.add("a", 20, 3)
    marks.add("b", 40, 3)
    marks.add("last", 80, 13)
    assert marks.due("c", words(("One", 10, 300))) == [Mark("c", "first", 10, 0)]
    following = marks.due("c", words(("two", 350, 600), ("three", 650, 900)))
    assert following == [Mark("c", "a", 350, 20), Mark("c", "b", 350, 40)]
    assert marks.rest("c") == [Mark("c", "last", 900, 80)]
    assert marks.rest("c") == []


def test_a_mark_before_a_pause_has_the_end_of_the_last_word() -> None:
    marks = Marks()
    marks.add("before", 3, 3)
    marks.pause(3)
    marks.add("after", 40, 3)
    assert marks.due("c", words(("One", 0, 300))) == [Mark("c", "before", 300, 3)]
    assert marks.due("c", words(("two", 1_300, 1_600))) == [Mark("c", "after", 1_300, 40)]


def test_a_mark_before_a_pause_before_all_words_is_at_the_start() -> None:
    marks = Marks()
    marks.add("m", 0, 0)
    marks.pause(0)
    assert marks.due("c", words(("One", 1_000, 1_300))) == [Mark("c", "m", 0, 0)]
