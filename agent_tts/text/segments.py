"""Finds the places where a text can be cut into pieces that are spoken one by one, while it comes.

The rules are those of careful sentence segmenters (the golden rules of pragmatic_segmenter and pysbd), in all languages
at once, read with one word of look-ahead. A sentence that is missed does no harm: the next one is found. So what is not
certain is no end: a point after an abbreviation, an initial or an ordinal, and whatever a small letter follows.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from enum import IntEnum

from agent_tts.text.chars import CJK, LINE_BREAKS, NO_BREAK_SPACES, NOT_FIRST, OPENERS, is_cjk
from agent_tts.text.data import data, words

MAX_HELD = 24  # characters of a word that is looked at
# What a wide character (Chinese, Japanese, Korean) counts: it takes as long to say as three letters.
WIDE_CHARS = 3
_CONTEXT = 64  # characters before a place

_WIDE_ENDS = "。！？｡"
_WIDE_CLAUSES = "，、；：､"
_WIDE_CLOSERS = "」』）》〉】〕"
_OPENED = "”" + _WIDE_CLOSERS  # close what OPENERS open
_CLOSERS = "\"'’)]}»›*_" + _OPENED
_ENDS = ".!?…؟।॥"
_CLAUSES = ",;:—–،؛"
_LEADS = "\"'“‘«‹„([{¿¡*_-–—•⁃◦▪‣" + "".join(OPENERS)

# White space, a wide character, a wide mark with what closes behind it, or a word.
_WORD = re.compile(rf"[^\s{CJK}{_WIDE_ENDS}{_WIDE_CLAUSES}{_WIDE_CLOSERS}]+")
_TOKEN = re.compile(
    rf"\s+|[{CJK}]|[{_WIDE_ENDS}{_WIDE_CLAUSES}{_WIDE_CLOSERS}]+[{re.escape(_CLOSERS)}]*|{_WORD.pattern}"
)
_NUMBER = re.compile(r"\(?(\d{1,3}|[a-z])(?:\.|\)|\.\))")  # of a list
_BULLET = re.compile(r"[•⁃◦▪‣]")
_ELISION = re.compile(r"^[^\W\d_]{1,4}['’](?=[^\W\d_])")  # l'Ing.


_BEFORE_A_NAME, _MAYBE_LAST, STARTERS, _MONTHS = (
    frozenset(words(data("sentences")[kind])) for kind in ("before_a_name", "maybe_last", "starters", "months")
)


class Level(IntEnum):
    CHAR = 1  # between two characters of a script without spaces
    WORD = 2
    CLAUSE = 3
    SENTENCE = 4


# A piece of a text ends with the sentence in which it reaches its length; with a clause, a word or between two wide
# characters when it is so many times as long; anywhere when it is MOST times as long.
LONGER = {Level.SENTENCE: 1.0, Level.CLAUSE: 1.5, Level.WORD: 1.75, Level.CHAR: 2.0}
MOST = 3


class Segmenter:
    """Text in, by any split; the same text and its places out. `language` is a code."""

    def __init__(self, language: str = "en") -> None:
        self._ordinals = language.partition("-")[0] == "de"
        self.held = ""  # the begin of a word whose end is not known; not given out
        self._in_word = False  # whether the begin of a long word has been given out, and the rest follows
        self._placed = False  # whether the place before the word that is held back has been given out
        # The last characters before the place that comes next: up to the white space, and that.
        self._before = ""
        self._gap = ""
        self._open = 0  # brackets and quotes of scripts without spaces that are open in the line
        self._item = 0  # the last number of a list, 0 before the first

    def feed(self, text: str) -> Iterator[str | Level]:
        """Parts of the text in order; before a part, the place that it begins at. A word comes when it is complete."""
        tokens = _TOKEN.findall(self.held + text)
        self.held = ""
        last = tokens.pop() if tokens and not (tokens[-1].isspace() or is_cjk(tokens[-1][0])) else ""
        for token in tokens:
            yield from self._read(token)
        if (self._in_word and _WORD.match(last)) or len(last) > MAX_HELD:
            yield from self._read(last)
            self._in_word = True
        else:
            self.held = last
            yield from self._early(last)

    def _early(self, word: str) -> Iterator[Level]:
        """The place before a word whose end is not known, if that cannot change it."""
        plain = LINE_BREAKS.isdisjoint(self._gap) and self._before.rstrip(_CLOSERS + "“ \u00a0\u202f")[-1:] not in _ENDS
        if not self._placed and self._gap and self._before and plain and len(word) > 1 and word[:2].isalpha():
            self._placed = True
            if level := self._level(word):
                yield level

    def flush(self) -> Iterator[str | Level]:
        """The word that is held back; the text that follows is a new one."""
        if self.held:
            yield from self._read(self.held)
        self.held = self._before = self._gap = ""
        self._in_word = self._placed = False
        self._open = self._item = 0

    def _read(self, token: str) -> Iterator[str | Level]:
        if token.isspace():
            self._gap += token
            self._in_word = False
            if not LINE_BREAKS.isdisjoint(token):
                self._open = 0
        else:
            continues, self._in_word = self._in_word and not self._gap and _WORD.match(token) is not None, False
            level = None if continues or self._placed else self._level(token[:MAX_HELD])
            self._placed = False
            if level and self._before:
                yield level
            self._before = token if level is Level.SENTENCE else (self._before + self._gap + token)[-_CONTEXT:]
            self._gap = ""
            for ch in "" if token.isascii() else token:
                self._open = max(0, self._open + (ch in OPENERS) - (ch in _OPENED))
        yield token

    def _level(self, word: str) -> Level | None:
        """How well the text can be cut before a word."""
        gap, before = self._gap, self._before
        if (item := self._list_item(word)) is not None:
            return item
        if not LINE_BREAKS.isdisjoint(gap):
            return Level.SENTENCE
        if not before:
            return None
        if word[0] in NOT_FIRST:
            return None
        core = before.rstrip(_CLOSERS + "“ \u00a0\u202f")
        mark = core[-1:]
        if mark in _WIDE_ENDS and mark:
            quoted = core != before and word[0] in "とって"
            return Level.CLAUSE if self._open or quoted else Level.SENTENCE
        if mark and mark in _WIDE_CLAUSES:
            return Level.CLAUSE
        if not gap:
            breaks = is_cjk(word[0]) or is_cjk(before[-1])
            return Level.CHAR if breaks and before[-1] not in OPENERS and before[-1] not in _LEADS else None
        if mark and mark in _ENDS:
            return self._end(core, word)
        if mark and mark in _CLAUSES:
            return Level.CLAUSE
        return None if NO_BREAK_SPACES.issuperset(gap) else Level.WORD

    def _list_item(self, word: str) -> Level | None:
        """Before the next number of a list, or a bullet."""
        if _BULLET.match(word):
            return Level.SENTENCE
        if _BULLET.fullmatch(self._before[-1:]):
            return Level.WORD
        if (number := _NUMBER.fullmatch(word)) is None:
            return None
        value = int(number[1]) if number[1].isdecimal() else ord(number[1]) - ord("a") + 1
        follows = value == self._item + 1 and value > 1
        if follows or (value == 1 and (not self._before or not LINE_BREAKS.isdisjoint(self._gap))):
            self._item = value
            return Level.SENTENCE
        return None

    def _end(self, core: str, word: str) -> Level:
        """What a mark at the end of a word and white space mean before the next word."""
        last = _ELISION.sub("", core.split()[-1].lstrip(_LEADS))
        first = word.lstrip(_LEADS)[:1]
        point = last.endswith(".") and not last.endswith("..")
        name = last[:-1].lower()
        if point and (name in _BEFORE_A_NAME or (len(name) == 1 and name.isalpha() and name != "i")):
            return Level.WORD
        if not first or first in _ENDS or first in "/" or word[0] in "([":
            return Level.WORD  # a dash, an ellipsis with spaces, a remark
        if first.islower():
            return Level.WORD if point else Level.CLAUSE
        starts = word.strip(_LEADS + _CLOSERS + _ENDS + _CLAUSES) in STARTERS
        if point and (name in _MAYBE_LAST or name == "i" or re.fullmatch(r"(?:[^\W\d_]{1,3}\.)+[^\W\d_]{1,3}", name)):
            return Level.SENTENCE if starts else Level.WORD
        if point and first.isdigit() and len(name) <= 5 and not name[:1].isdigit():
            return Level.WORD  # of what is counted: "Kv. 234"
        if point and name.isdecimal():
            number = core.lstrip("•⁃◦▪‣ ") == last or int(name) == self._item  # of a list
            ordinal = self._ordinals and len(name) <= 3 and (word in _MONTHS or not starts)
            return Level.WORD if number or ordinal else Level.SENTENCE
        return Level.SENTENCE


class Pieces:
    """Cuts an endless text into pieces of limited length. A wide character counts as `WIDE_CHARS`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._segmenter = Segmenter()
        self._length = 0  # how many characters the present piece has

    def feed(self, text: str) -> Iterator[str | None]:
        """The parts of the text in order, with None where a piece ends."""
        return self._take(self._segmenter.feed(text))

    def end(self) -> Iterator[str | None]:
        """What is held back. The piece ends, and what follows is a new text."""
        yield from self._take(self._segmenter.flush())
        yield None
        self._length = 0

    def _take(self, parts: Iterator[str | Level]) -> Iterator[str | None]:
        for part in parts:
            if isinstance(part, Level):
                if self._length >= LONGER[part] * self._limit:
                    yield None
                    self._length = 0
                continue
            start = 0
            for end, char in enumerate(part):
                if self._length >= MOST * self._limit:
                    yield from (part[start:end], None)
                    start, self._length = end, 0
                self._length += WIDE_CHARS if unicodedata.east_asian_width(char) in "WF" else 1
            yield part[start:]
