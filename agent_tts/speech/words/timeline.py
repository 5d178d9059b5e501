"""When each word of a stream is spoken: known from the engine, or estimated; and what a listener has heard of it.

Words are the whitespace tokens of the text as it was given. A *mark* is the finest piece of text with a time of its
own: a word, a part of one, or a single character of a script that is written without spaces.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Literal

from agent_tts.events import WordTime
from agent_tts.protocol.context import Word
from agent_tts.speech.words.fitting import Fit
from agent_tts.speech.words.lengths import length
from agent_tts.text.breaks import BreakTokens, TokenParts

_TOKEN = re.compile(r"\S+")

# Where no words are told, text is read so far ahead of the audio; further where tags for pauses are obeyed, whose
# estimates may be far too long: what is read when its audio has begun counts as text that came late.
READ_AHEAD_MS, READ_AHEAD_BREAKS_MS = 15_000.0, 60_000.0

# Pieces of audio that may wait to be listened to: to listen to one costs nearly as much as to all of them.
MAX_UNHEARD = 12


# A token whose times are estimated: itself, where it is in the text, its first and last mark. A plain tuple of these
# is soon no business of the collector's, as a named one is for ever: it looks at all that it knows, a hundred thousand
# words of a busy node, while everybody waits.
_Token = tuple[str, int, int, int]


class WordTimeline:
    """Text and times of one stream. Pure.

    With `aligned` the engine's times are used (`align`). Otherwise every complete word is given an estimate as soon as
    its text is there, and better times once its audio is made: `hear` takes the audio, and what `settle` tells is
    final.

    Without `tells` no times are asked for, only `split`, and text is read as the audio comes near: a long one that
    comes at once takes milliseconds to read, in which everybody waits.
    """

    def __init__(
        self,
        *,
        aligned: bool,
        speed: float = 1.0,
        language: str = "en",
        breaks: bool = False,
        pace: float = 1.0,
        tells: bool = True,
    ) -> None:
        self._aligned = aligned
        self._tells = tells
        # Of the estimates.
        self._language = language
        # Finds the tags for pauses; None where they are text.
        self._breaks = BreakTokens() if breaks else None
        self._ahead_ms = READ_AHEAD_BREAKS_MS if breaks else READ_AHEAD_MS
        # The text as it was appended.
        self._parts: list[str] = []
        self._length = 0
        # The last token, as long as white space has not ended it, and where it starts.
        self._tail = ""
        # Complete tokens without times, neither the engine's nor estimated ones: (text, char_start).
        self._pending: deque[tuple[str, int]] = deque()
        # The engine's times, in the order of the text.
        self._marks: list[WordTime] = []
        # The estimated marks' times, and where each is in the text.
        self._fit = Fit(speed, pace)
        # Audio that they are not fitted to yet.
        self._unheard: list[bytes] = []
        self._places: list[tuple[int, int]] = []
        # Tokens with estimates, and how many of them are settled; where the last of these starts, in ms.
        self._tokens: list[_Token] = []
        self._settled = 0
        self._settled_ms = -1
        # When the next of them starts, as long as the fit is of this revision.
        self._next = (-1, 0.0)
        # For each flush that is not answered yet, how many estimated tokens are before it.
        self._flushes: list[int] = []
        # Length of the stream, once it has ended.
        self._audio_ms: int | None = None

    @property
    def kind(self) -> Literal["aligned", "estimated"]:
        """What the words are that come with the text, with `align` and with `finish`."""
        return "aligned" if self._aligned else "estimated"

    @property
    def pace(self) -> float:
        """Of the voice, for the estimates of its next stream; see `Paces`."""
        self._listen()
        return self._fit.pace

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
        """What is there are complete words: the end of the text; the words that can be told now."""
        if self._tail:
            self._pending.append((self._tail, self._length - len(self._tail)))
            self._tail = ""
        return self._estimate()

    def flush(self) -> list[Word]:
        """What is there are complete words, and `flushed` says when they have been spoken; the words to be told now."""
        words = self.complete()
        self._flushes.append(len(self._tokens) + len(self._pending))
        return words

    # ------------------------------------------------------------ times from the engine

    def align(self, times: Sequence[WordTime]) -> list[Word]:
        """Times from the engine, in the order of the text; the words that they complete.

        Tokens that are not spoken (a dash, an emoji) take no time, just before the next word that is.
        """
        self._marks += times
        done = times[-1].char_end if times else 0
        words: list[Word] = []
        while self._pending and self._pending[0][1] + _certain(self._pending[0][0]) < done:
            token, start = self._pending.popleft()
            words.append(self._word(token, start))
        return words

    # ------------------------------------------------------------ times from the audio

    def hear(self, pcm: bytes) -> None:
        """The next piece of the audio, as the engine makes it: pcm_s16le at 24 kHz."""
        if self._aligned:
            return
        self._unheard.append(pcm)
        if len(self._unheard) >= MAX_UNHEARD:
            self._listen()
            self._estimate()

    def flushed(self, audio_ms: int) -> None:
        """All text before the oldest `flush` that was not answered has been spoken within so much audio."""
        self._listen()
        if not self._flushes:
            return
        count = self._flushes.pop(0)
        if not self._aligned:
            self._estimate(tokens=count)
            self._fit.reach(self._tokens[count][2] if count < len(self._tokens) else len(self._fit), audio_ms)

    def finish(self, audio_ms: int, *, cut: bool = False) -> list[Word]:
        """All audio is there; the words that were never told.

        Args:
            cut: it ended before the text did.
        """
        left = self.complete()
        if self._aligned:
            left += [self._word(token, start) for token, start in self._pending]
            self._pending.clear()
        elif not cut:
            left += self._estimate(math.inf)
        self._audio_ms = audio_ms
        self._listen()
        if not cut:
            self._fit.reach(len(self._fit), audio_ms)
        return left

    def settle(self, until_ms: float | None = None) -> list[Word]:
        """Words with their final times, once each: those that start before `until_ms` of audio, or all that are left.

        Only estimates settle. They are as good as the audio that was heard makes them, after those that settled
        earlier, and within the audio once its end is known.
        """
        self._listen()
        words: list[Word] = []
        if until_ms is not None and self._next[0] == self._fit.revision and until_ms <= self._next[1]:
            return words
        while self._settled < len(self._tokens):
            _, _, first, _ = token = self._tokens[self._settled]
            if until_ms is not None:
                start_ms = self._fit.span(first)[0]
                self._next = (self._fit.revision, start_ms)
                if start_ms >= until_ms or not self._fit.may_start(first):
                    break
            word = self._estimated(token)
            self._settled_ms = self._at(max(self._settled_ms + 1, word.start_ms))
            end_ms = max(self._settled_ms, word.end_ms)
            words.append(Word(word.word, self._settled_ms, end_ms, word.char_start, word.char_end))
            self._settled += 1
        return words

    def words(self) -> list[Word]:
        """All words with estimated times, with the best that are known now."""
        self._listen()
        return [self._estimated(token) for token in self._tokens]

    # ------------------------------------------------------------ heard

    def split(self, played_ms: float) -> tuple[str, str]:
        """The text as (heard, unheard) after `played_ms` of audio. A mark counts as heard from its middle on."""
        self._listen()
        self._estimate(played_ms)
        text = "".join(self._parts)
        count = len(self._marks if self._aligned else self._places)
        heard = bisect_right(range(count), played_ms, key=self._middle_ms)
        if heard == 0:
            return "", text
        at = self._place(heard - 1)[1]
        limit = self._place(heard)[0] if heard < count else len(text)
        while at < limit and not text[at].isspace() and not text[at].isalnum():
            at += 1  # the punctuation belongs to the word before it
        return text[:at], text[at:]

    # ------------------------------------------------------------ inside

    def _word(self, token: str, start: int) -> Word:
        """A token with the time that the engine's marks span, or none after the last mark before it."""
        end = start + len(token)
        first = bisect_right(self._marks, start, key=lambda mark: mark.char_end)
        inside = [mark for mark in self._marks[first:] if mark.char_start < end]
        if inside:
            return Word(token, inside[0].start_ms, inside[-1].end_ms, start, end)
        at = self._marks[first].start_ms if first < len(self._marks) else (self._marks or [_ZERO])[-1].end_ms
        return Word(token, at, at, start, end)

    def _estimate(self, until_ms: float = 0.0, tokens: int = 0) -> list[Word]:
        """Read the complete tokens: all if they are told, otherwise those near to what was heard, or to `until_ms`.

        So many `tokens` of the text are read in any case. The words that are to be told.
        """
        words: list[Word] = []
        if self._pending:
            self._listen()
        while self._pending and not self._aligned:
            if not (self._tells or len(self._tokens) < tokens or self._is_near(until_ms)):
                break
            text, start = self._pending.popleft()
            first = len(self._fit)
            self._mark(text, start)
            self._tokens.append((text, start, first, len(self._fit) - 1))
            if self._tells:
                words.append(self._estimated(self._tokens[-1]))
        return words

    def _is_near(self, until_ms: float) -> bool:
        """Whether the text that is read ends soon."""
        return self._fit.span(len(self._fit))[0] <= max(until_ms, self._fit.heard_ms) + self._ahead_ms

    def _mark(self, text: str, start: int) -> None:
        """The marks of a complete token."""
        said = TokenParts(0, len(text)) if self._breaks is None else self._breaks.read(text)
        if said.start:
            self._add(start, said.start, 0.0, said.pause_ms)
            start += said.start
        pieces, pause_ms = length(text[said.start : said.end], self._language)
        for index, (chars, ms) in enumerate(pieces):
            self._add(start, chars, ms, pause_ms if index == len(pieces) - 1 else 0.0)
            start += chars
        if said.end < len(text):
            self._add(start, len(text) - said.end, 0.0, 0.0)

    def _add(self, start: int, chars: int, ms: float, pause_ms: float) -> None:
        self._places.append((start, start + chars))
        self._fit.add(ms, pause_ms)

    def _estimated(self, token: _Token) -> Word:
        text, start, first, last = token
        start_ms, end_ms = self._fit.span(first)[0], self._fit.span(last)[1]
        return Word(text, self._at(start_ms), self._at(end_ms), start, start + len(text))

    def _listen(self) -> None:
        """Fit the estimates to all audio that there is."""
        if self._unheard:
            self._fit.hear(b"".join(self._unheard))
            self._unheard.clear()

    def _middle_ms(self, mark: int) -> float:
        """When half of a mark has been spoken."""
        if self._aligned:
            return (self._marks[mark].start_ms + self._marks[mark].end_ms) / 2
        start_ms, end_ms = self._fit.span(mark)
        return (round(start_ms) + round(end_ms)) / 2

    def _place(self, mark: int) -> tuple[int, int]:
        """Where a mark is in the text."""
        if self._aligned:
            return self._marks[mark].char_start, self._marks[mark].char_end
        return self._places[mark]

    def _at(self, ms: float) -> int:
        return round(ms) if self._audio_ms is None else min(round(ms), self._audio_ms)


def _certain(token: str) -> int:
    """After how many of its characters a time is known for the whole token: a number may be spoken in several parts."""
    return max((at for at, char in enumerate(token) if char.isdecimal()), default=0)


_ZERO = WordTime(0, 0, 0, 0)
