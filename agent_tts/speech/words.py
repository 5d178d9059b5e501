"""When each word of a stream is spoken: known from the engine, or estimated; and what a listener has heard of it.

Words are the whitespace tokens of the text as it was given. A *mark* is the finest piece of text with a time of its
own: a word, a part of one, or a single character of a script that is written without spaces.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agent_tts.events import WordTime

# Estimated durations in ms, for a voice at normal speed: 5 syllables a second, about 15 characters a second in
# alphabetic scripts; 4 to 5 characters a second in Chinese and Japanese.
CHAR_MS = 62
IDEOGRAPH_MS = 220
CLAUSE_PAUSE_MS = 150
SENTENCE_PAUSE_MS = 300

_TOKEN = re.compile(r"\S+")
_IDEOGRAPH = re.compile("[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’)\]]*$")
_CLAUSE_END = re.compile(r"[,;:—、，；：][\"'”’)\]]*$")


@dataclass(frozen=True, slots=True)
class Word:
    """A whitespace token of the text with its time in the audio."""

    word: str
    start_ms: int
    end_ms: int
    char_start: int
    char_end: int


class WordTimeline:
    """Text and times of one stream. Pure.

    With `aligned` the engine's times are used (`align`), else every complete word is given an estimate as soon as its
    text is there.
    """

    def __init__(self, *, aligned: bool, speed: float = 1.0) -> None:
        self._aligned = aligned
        self._speed = speed
        # The text as it was appended.
        self._parts: list[str] = []
        self._length = 0
        # The last token, as long as white space has not ended it, and where it starts.
        self._tail = ""
        # Complete tokens that have not been given out as words: (text, char_start).
        self._pending: list[tuple[str, int]] = []
        # Times, in the order of the text.
        self._marks: list[WordTime] = []

    @property
    def kind(self) -> Literal["aligned", "estimated"]:
        """Where its times come from."""
        return "aligned" if self._aligned else "estimated"

    # ------------------------------------------------------------ text in, words out

    def append(self, text: str) -> list[Word]:
        """More text; the words that can be told now."""
        self._parts.append(text)
        self._length += len(text)
        chunk, start = self._tail + text, self._length - len(text) - len(self._tail)
        self._tail = ""
        for match in _TOKEN.finditer(chunk):
            if match.end() == len(chunk):
                self._tail = match.group()
            else:
                self._pending.append((match.group(), start + match.start()))
        return self._estimate()

    def complete(self) -> list[Word]:
        """What is there are complete words (a flush, or the end of the text); the words that can be told now."""
        if self._tail:
            self._pending.append((self._tail, self._length - len(self._tail)))
            self._tail = ""
        return self._estimate()

    def align(self, times: Sequence[WordTime]) -> list[Word]:
        """Times from the engine, in the order of the text; the words that they complete.

        Tokens that are not spoken (a dash, an emoji) take no time, just before the next word that is.
        """
        self._marks += times
        done = times[-1].char_end if times else 0
        words: list[Word] = []
        while self._pending and self._pending[0][1] < done:
            token, start = self._pending.pop(0)
            words.append(self._word(token, start))
        return words

    def finish(self, audio_ms: int) -> list[Word]:
        """All audio is there: the words that are left. Estimated times are stretched to fit what was really spoken."""
        told = self.complete()
        left = told + [self._word(token, start) for token, start in self._pending]
        self._pending.clear()
        if not self._aligned and self._marks and audio_ms > 0:
            scale = audio_ms / max(1, self._marks[-1].end_ms)
            self._marks = [
                WordTime(m.char_start, m.char_end, round(m.start_ms * scale), round(m.end_ms * scale))
                for m in self._marks
            ]
        return left

    # ------------------------------------------------------------ heard

    def split(self, played_ms: float) -> tuple[str, str]:
        """The text as (heard, unheard) after `played_ms` of audio. A mark counts as heard from its middle on."""
        text = "".join(self._parts)
        heard = bisect_right(self._marks, played_ms, key=lambda mark: (mark.start_ms + mark.end_ms) / 2)
        if heard == 0:
            return "", text
        at = self._marks[heard - 1].char_end
        limit = self._marks[heard].char_start if heard < len(self._marks) else len(text)
        while at < limit and not text[at].isspace() and not text[at].isalnum():
            at += 1  # the punctuation belongs to the word before it
        return text[:at], text[at:]

    # ------------------------------------------------------------ inside

    def _word(self, token: str, start: int) -> Word:
        """A token with the time that its marks span, or none after the last mark before it."""
        end = start + len(token)
        first = bisect_right(self._marks, start, key=lambda mark: mark.char_end)
        inside = [mark for mark in self._marks[first:] if mark.char_start < end]
        if inside:
            return Word(token, inside[0].start_ms, inside[-1].end_ms, start, end)
        at = self._marks[first].start_ms if first < len(self._marks) else (self._marks or [_ZERO])[-1].end_ms
        return Word(token, at, at, start, end)

    def _estimate(self) -> list[Word]:
        if self._aligned:
            return []
        words = []
        for token, start in self._pending:
            self._mark(token, start)
            words.append(self._word(token, start))
        self._pending.clear()
        return words

    def _mark(self, token: str, start: int) -> None:
        """Estimate the marks of a complete token."""
        at = float(self._marks[-1].end_ms) if self._marks else 0.0
        pieces = re.findall(f"{_IDEOGRAPH.pattern}|[^{_IDEOGRAPH.pattern[1:-1]}]+", token)
        pause = (
            SENTENCE_PAUSE_MS if _SENTENCE_END.search(token) else CLAUSE_PAUSE_MS if _CLAUSE_END.search(token) else 0
        )
        for index, piece in enumerate(pieces):
            last = index == len(pieces) - 1
            ms = IDEOGRAPH_MS if _IDEOGRAPH.match(piece) else CHAR_MS * (len(piece) + (1 if last else 0))
            end = at + (ms + (pause if last else 0)) / self._speed
            self._marks.append(WordTime(start, start + len(piece), round(at), round(end)))
            start, at = start + len(piece), end


_ZERO = WordTime(0, 0, 0, 0)
