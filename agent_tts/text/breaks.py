"""Where lines and sentences of a clean text end: pauses for line breaks, and spaces between sentences without one.

* A paragraph ends like a sentence, another line like a clause, unless a mark stands there. The mark is held back until
  the next line shows which it is.
* A long line of prose that goes on in the next one is wrapped, and no pause.
* "First one.Second one." gets a space. What may be no end of a sentence gets none: "3.14", "example.com", "U.S.A.",
  "Node.js", "System.out". Behind a point the next word is held back.
"""

from __future__ import annotations

import re

from agent_tts.text.chars import CLAUSE_MARKS, CLOSERS, WIDE_CLAUSE_MARKS, Char, Sink, is_cjk, is_silent
from agent_tts.text.segments import MAX_HELD, STARTERS

WRAP = 60  # characters of a line that is filled

_MARKS = CLAUSE_MARKS | WIDE_CLAUSE_MARKS
_ENDS = ".!?…؟।"
_CLOSERS = "".join(CLOSERS)
# What stands before a point that ends a sentence: a word, a number, or a short name that a starter may follow.
_WORD = re.compile(r"[^\W\d_]+[^\W\d_A-Z]|[$€£¥₹#+−-]*\d+(?:[.,:]\d+)*(?:[%°€]|[a-z]{1,2})?")
_SHORT = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
# What a point also joins to a name: ends of names of hosts and files.
_ENDINGS = re.compile(
    "ai|app|br|ca|ch|cn|co|com|css|csv|de|dev|docx?|edu|e[su]|exe|fr|go|gov|html|info|io|it|java|jpe?g|json|jp|js|kr|md|me|"
    "mp3|net|org|pdf|php|png|pt|py|rb|rs|ru|sh|sql|tsx?|txt|uk|us|vue|xml|ya?ml|zip"
)


class Breaks:
    """Passes the characters of a clean text to `sink`, white space as " " or a no-break space; lines end by a call.

    `letters` takes several letters of a word at once, with the offset of the first; without it, they come one by one.
    """

    def __init__(self, sink: Sink, letters: Sink | None = None) -> None:
        self._sink, self._letters = sink, letters
        self._heard = ""  # the last audible character
        self._paused = True  # a mark stands behind it, or there is none
        self._lines = 0  # line breaks since the last visible character
        self._broken_at = 0  # offset of the first
        self._length = 0  # visible characters of the line so far
        # Whether the line, and the one before, is not an item of a list, a row of a table, a heading or the like.
        self.prose = self._prose_before = True
        self.word = self.last_word = ""  # the last characters without white space, and those before them
        self._held: list[Char] = []  # the begin of a word right behind a point

    def push(self, ch: str, offset: int) -> None:
        if self._held:
            if self._held[-1][0] != "." and (ch.isalpha() or ch == ".") and len(self._held) <= MAX_HELD:
                self._held.append((ch, offset))
                return
            self._pass_held(ch)
        if ch.isspace():
            if not self._lines:
                self._length, self.last_word, self.word = self._length + 1, self.word or self.last_word, ""
                self._sink(ch, offset)
            return
        if self._lines:
            self._begin_line(ch)
        if ch.isalpha() and self.word and (end := self.word.rstrip(_CLOSERS))[-1:] in _ENDS and not ch.islower():
            if end.endswith(".") and not end.endswith(".."):
                self._held.append((ch, offset))
                return
            if end.strip(_ENDS):
                self._sink(" ", offset)
                self.word = ""
        self._pass(ch, offset)

    def pass_letters(self, rest: str, offset: int) -> bool:
        """Small ASCII letters right behind a letter; False where they have to be pushed one by one."""
        if self._held:
            return False
        self._length += len(rest)
        self.word = (self.word + rest)[-MAX_HELD:]
        self._paused, self._heard = False, rest[-1]
        (self._letters or self._spell)(rest, offset)
        return True

    def _spell(self, letters: str, offset: int) -> None:
        for place, ch in enumerate(letters, offset):
            self._sink(ch, place)

    def pause(self, offset: int) -> None:
        """A pause like that of a clause, unless there is one."""
        self._pass_held("")
        self._mark(end=False, offset=offset)

    def end_line(self, offset: int) -> None:
        self._pass_held("")
        if not self._lines:
            self._broken_at = offset
            self._prose_before = self.prose and self._length >= WRAP
        self._lines += 1
        self._length, self.prose, self.word = 0, True, ""
        if self._paused:
            self._begin_line("")

    def flush(self) -> None:
        """All text so far is complete."""
        self._pass_held("")
        if self._lines:
            self._begin_line("")

    def _begin_line(self, first: str) -> None:
        """Pass on the line breaks before the first character of a line; "": whatever it is."""
        if not self._paused and self._lines == 1 and self._prose_before and self.prose and first.isalpha():
            self._sink(" ", self._broken_at)
        else:
            self._mark(end=self._lines > 1, offset=self._broken_at)
            self._sink("\n", self._broken_at)
        self._lines, self.word = 0, ""

    def _mark(self, *, end: bool, offset: int) -> None:
        if not self._paused:
            marks = "。，" if is_cjk(self._heard) else ".,"
            self._pass(marks[0] if end else marks[1], offset)

    def _pass(self, ch: str, offset: int) -> None:
        self._length += 1
        self.word = (self.word + ch)[-MAX_HELD:]
        if ch in _MARKS:
            self._paused = True
        elif ch.isalnum() or not is_silent(ch):
            self._paused, self._heard = False, ch
        self._sink(ch, offset)

    def _pass_held(self, after: str) -> None:
        """Pass on the word behind a point, which ends before `after`."""
        held, self._held = self._held, []
        before = self.word.rstrip(_CLOSERS)[:-1].lstrip("\"'“‘«([{¿¡")
        if held and _begins("".join(ch for ch, _ in held), before, after):
            self._sink(" ", held[0][1])
            self.word = ""
        for ch, offset in held:
            self._pass(ch, offset)


def _begins(word: str, before: str, after: str) -> bool:
    """Whether a word begins a sentence right behind a point, which stands behind the text `before`."""
    if not before or (after.islower() if word[-1] == "." else after and (after in "([_-" or not is_silent(after))):
        return False
    word = word.rstrip(".")
    if not word[0].isupper():  # a script without capitals
        return before[-1].isalpha() and before[-1].lower() == before[-1].upper()
    if not (word[1:].islower() or (len(word) == 1 and word in STARTERS)):
        return False
    if _SHORT.fullmatch(before):
        return len(word) > 1 and word in STARTERS
    return _WORD.fullmatch(before) is not None and (word in STARTERS or not _ENDINGS.fullmatch(word.lower()))
