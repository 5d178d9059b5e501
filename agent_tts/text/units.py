"""Cuts characters into units, one character at a time and in bounded memory.

A unit ends at the first of
* a line break,
* white space after clause punctuation ("3.14", "10:30", "e.g." and "Dr. Smith" stay whole), or a CJK clause mark,
* white space after as many words as a unit may have (one with `each_word`), or after `MAX_CHARS` characters,
* the next character after as much text of a script without spaces as those words are, in Thai and its kin between two
  syllables, where these are known, before it is twice as long,
* the next character after `MAX_RUN` characters without white space,
* the next digit after `MAX_DIGITS` digits in a row.

At most `MAX_CHARS + MAX_RUN + MAX_CLUSTER` characters are held back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from agent_tts.text.chars import (
    CLAUSE_MARKS,
    CLOSERS,
    LINE_BREAKS,
    NO_BREAK_SPACES,
    NOT_FIRST,
    OPENERS,
    WIDE_CLAUSE_MARKS,
    extends,
    is_silent,
)
from agent_tts.text.data import data, words
from agent_tts.text.words import CLUSTERED, is_unspaced, last_syllable, may_part

MAX_WORDS = 16  # of a unit, once they have grown
MAX_CHARS = 160  # of a unit, at white space
MAX_RUN = 80  # characters without white space
MAX_DIGITS = 24  # in a row; espeak-ng leaves out what comes after the 31st
MAX_CLUSTER = 32  # code points of one visible character; Unicode's stream-safe format allows 30 marks
LETTERS_PER_WORD = 4  # of scripts without spaces that count as one word; marks do not count

_MARKS = CLAUSE_MARKS | WIDE_CLAUSE_MARKS
_CLOSERS = "".join(CLOSERS) + " "
_OPENERS = "".join(OPENERS) + "\"'([{«‹‘*_"

# A point after one of these does not end a clause: initials and dotted abbreviations ("J.", "z.B.", "U.S."), list
# numbers and ordinals ("1.", "3. Mai"), and common abbreviations of the most spoken languages.
_KNOWN = "|".join(map(re.escape, words(data("sentences")["abbreviations"])))
_ABBREVIATION = re.compile(rf"(?:[^\W\d_]\.)+|\d{{1,2}}\.|(?:{_KNOWN})\.", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Unit:
    """What an engine speaks at once.

    `text` has something audible, or is a mark of a pause whose words were in the unit before; no white space but single
    spaces, none at its start, and one at its end if white space follows in the raw text: the texts of all units joined
    are the whole text. `offsets[i]` is the offset of `text[i]` in the raw text; offsets never decrease.
    """

    text: str
    offsets: tuple[int, ...]

    def halves(self) -> tuple[Unit, Unit] | None:
        """This unit as two, cut near its middle: after white space if there is any, otherwise between characters.

        None if it is one character. A half may have nothing audible.
        """
        end = len(self.text.rstrip())
        if end < 2:
            return None

        def harm(place: int) -> tuple[bool, bool, int]:
            before, after = self.text[place - 1], self.text[place]
            return before != " ", extends(after, before, 1), abs(2 * place - end)

        place = min(range(1, end), key=harm)
        return Unit(self.text[:place], self.offsets[:place]), Unit(self.text[place:], self.offsets[place:])


class Cutter:
    """Takes characters and passes units to `sink`. The units depend on the characters alone."""

    def __init__(self, first_words: int, sink: Callable[[Unit], None]) -> None:
        self._sink = sink
        self.each_word = False
        self._chars: list[str] = []  # the unit in the making
        self._offsets: list[int] = []  # where its characters are in the raw text
        self._limit = LETTERS_PER_WORD * first_words  # length of a unit, in letters of scripts without spaces
        self._max_limit = max(self._limit, LETTERS_PER_WORD * MAX_WORDS)  # what the limit grows to
        self._said = 0  # length of the unit so far, in such letters
        self._speakable = False  # whether anything of the unit can be heard
        self._open = False  # whether the unit before ended without a mark
        self._word = 0  # where in the unit its last word starts
        self._in_word = False  # no white space after it yet
        self._cluster = 0  # length of the last character, in code points
        self._digits = 0  # in a row, up to the last character
        self._quotes = 0  # CJK quotes and brackets that are open
        self._wide_end = False  # a CJK clause mark came, and the next character may still belong to the clause

    def push(self, ch: str, offset: int) -> None:
        if not ch.isspace():
            self._push_visible(ch, offset)
        elif self._chars:
            self._push_space(ch, offset)

    def cut(self) -> None:
        """End the unit. One without anything audible is dropped, unless its mark ends the unit before."""
        text = "".join(self._chars)
        paused = not _MARKS.isdisjoint(text.rstrip(_CLOSERS)[-1:])
        if self._speakable or (paused and self._open):
            self._sink(Unit(text, tuple(self._offsets)))
            self._open = not paused
        if self._speakable:
            self._limit = min(2 * self._limit, self._max_limit)
        self._chars.clear()
        self._offsets.clear()
        self._said = self._word = self._cluster = self._digits = 0
        self._speakable = self._in_word = self._wide_end = False

    def _push_space(self, ch: str, offset: int) -> None:
        self._digits = 0
        if self._chars[-1] != " ":
            self._keep(" ", offset)
        if ch in NO_BREAK_SPACES:
            return  # they keep "10 000", "Mr. Bean" and "Ça va ?" together
        if ch in LINE_BREAKS:
            self._quotes = 0
            self.cut()
        elif self._in_word:
            self._in_word = False
            self._end_word()

    def _end_word(self) -> None:
        word = "".join(self._chars[self._word :])
        if not any(map(is_unspaced, word)) and not all(map(is_silent, word)):
            self._said += LETTERS_PER_WORD
        bare = word.rstrip(_CLOSERS)
        ends_clause = bare[-1:] in _MARKS and not is_abbreviation(bare)
        if self.each_word:
            if self._speakable:  # a dash between two words is the second one's
                self.cut()
        elif ends_clause or self._said >= self._limit or len(self._chars) >= MAX_CHARS:
            self.cut()

    def _push_visible(self, ch: str, offset: int) -> None:
        before = self._chars[-1] if self._chars else ""
        if self._cluster < MAX_CLUSTER and extends(ch, before, self._cluster):
            if not self._chars:
                return  # the character that it extends is in the last unit
            self._cluster += 1
        else:
            if self._chars and self._ends_before(ch):
                self._cut_before(ch)
            self._cluster = 1
            self._digits = self._digits + 1 if ch.isdigit() else 0
        if not self._in_word:
            self._in_word = True
            self._word = len(self._chars)
        self._keep(ch, offset)
        self._speakable = self._speakable or not is_silent(ch)
        self._said += is_unspaced(ch)
        if ch in OPENERS:
            self._quotes += 1
        elif ch in CLOSERS:
            self._quotes = max(0, self._quotes - 1)
        elif ch in WIDE_CLAUSE_MARKS:
            self._wide_end = True
            if not self._quotes and not before.isdigit():
                self.cut()

    def _ends_before(self, ch: str) -> bool:
        """Whether the unit ends before a visible character that starts a new cluster."""
        if len(self._chars) - self._word >= MAX_RUN or (self._digits >= MAX_DIGITS and ch.isdigit()):
            return True
        if self._wide_end:
            if ch in CLOSERS or ch in WIDE_CLAUSE_MARKS:
                return False
            self._wide_end = False
            return not (ch.isdigit() and self._chars[-1] in WIDE_CLAUSE_MARKS)  # "10：30"
        return self._said >= self._limit and ch not in NOT_FIRST

    def _cut_before(self, ch: str) -> None:
        """Cut, or between two syllables of this script; nowhere while a place for that may come."""
        run = "".join(self._chars[self._word :])
        place = self._word + last_syllable(run + ch)
        is_long = self._said >= 2 * self._limit and may_part(run[-1], ch)
        if not is_unspaced(ch) or run[-1] not in CLUSTERED or is_long or len(run) >= MAX_RUN:
            self.cut()
        elif 2 * place >= len(self._chars) > place:
            rest, offsets = self._chars[place:], self._offsets[place:]
            del self._chars[place:], self._offsets[place:]
            self.cut()
            self._chars, self._offsets = rest, offsets
            self._said = sum(map(is_unspaced, rest))
            self._speakable = self._in_word = True

    def _keep(self, ch: str, offset: int) -> None:
        self._chars.append(ch)
        self._offsets.append(offset)


def is_abbreviation(word: str) -> bool:
    """Whether the point at the end of a word belongs to an abbreviation."""
    return word.endswith(".") and _ABBREVIATION.fullmatch(word.lstrip(_OPENERS)) is not None
