"""Where lines and sentences of a clean text end: each rule by the text that only it decides."""

from __future__ import annotations

import pytest

from agent_tts.text.breaks import WRAP, Breaks
from agent_tts.text.segments import MAX_HELD

FULL, SHORT = "x" * WRAP, "x" * (WRAP - 3) + " x"


def read(text: str, *, whole: bool = True) -> tuple[str, Breaks]:
    """What is passed on of a text, in which "|" is a pause and "#" says that its line is an item."""
    found: list[str] = []
    breaks = Breaks(lambda ch, _: found.append(ch))
    for offset, ch in enumerate(text):
        match ch:
            case "\n":
                breaks.end_line(offset)
            case "|":
                breaks.pause(offset)
            case "#":
                breaks.prose = False
            case _:
                breaks.push(ch, offset)
    if whole:
        breaks.flush()
    return "".join(found), breaks


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        # lines
        ("one\ntwo\n\nthree", "one,\ntwo.\nthree"),
        ("一行\n二行", "一行，\n二行"),
        (f"{FULL}\ntwo", f"{FULL} two"),
        (f"{FULL}.\ntwo", f"{FULL}.\ntwo"),
        (f"{FULL}\n", f"{FULL},\n"),
        (f"{FULL}\n5", f"{FULL},\n5"),
        (f"{FULL}\n\ntwo", f"{FULL}.\ntwo"),
        (f"{FULL}\n#two", f"{FULL},\ntwo"),
        (f"#{FULL}\ntwo", f"{FULL},\ntwo"),
        (f"{SHORT}\ntwo", f"{SHORT},\ntwo"),
        (f"one\n{FULL[2:]}\ntwo", f"one,\n{FULL[2:]},\ntwo"),
        # sentences behind a mark
        ("one?Two one!two ?Two", "one? Two one!two ?Two"),
        ("one.Second|then", "one. Second,then"),
        ("one.Second\nthen", "one. Second,\nthen"),
        ("one.He.|then", "one. He.then"),
        ("one.He.\nthen", "one. He.\nthen"),
        ("one.He.", "one. He."),
        ("one.He.x one.He.X", "one.He.x one. He.X"),
        ("one.Second(x) one.Second2 one.Second_", "one.Second(x) one.Second2 one.Second_"),
        ("one.Com.", "one.Com."),
        ("one.A X.The U.S.He a.Wxyz one.USA", "one. A X. The U.S. He a.Wxyz one.USA"),
        # and in scripts without capitals
        (".次 本.次 one.次 5.次", ".次 本. 次 one.次 5.次"),
    ],
)
def test_a_break_is_passed_on_as_it_is_said(text: str, passed: str) -> None:
    assert read(text)[0] == passed


def test_a_long_word_is_not_held_and_begins_no_sentence() -> None:
    assert read(f"one.S{'s' * MAX_HELD}", whole=False)[0] == "one."
    assert read(f"one.S{'s' * MAX_HELD}s", whole=False)[0] == f"one.S{'s' * MAX_HELD}s"


@pytest.mark.parametrize(("text", "word"), [("", ""), ("a on", "on"), ("on ", ""), ("on\n", ""), ("one?T", "T")])
def test_the_last_word_so_far_is_known(text: str, word: str) -> None:
    assert read(text)[1].word == word
