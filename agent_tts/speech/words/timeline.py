"""When each word of an utterance is spoken, from the engine or estimated; and which text a listener has heard.

`agent_tts.text.words` says what a word of the text without tags is. A *mark* is the smallest piece of text with its own
time: a word, or a part of a long one.
"""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial

from agent_tts.directives import Directive, Pause, Prosody, Say
from agent_tts.messages import Word
from agent_tts.protocol import heard
from agent_tts.speech.words.fitting import Fit
from agent_tts.text.breaks import WRAP
from agent_tts.text.lengths import CLAUSE_PAUSE_MS, LONG_PIECE, SENTENCE_PAUSE_MS, length
from agent_tts.text.words import END_CHARS
from agent_tts.text.words import words as words_in

# If words are not sent, text is read this far ahead of the audio. With pauses it is further, because their estimates
# may be far too long, and text that is read after its audio has begun counts as late.
READ_AHEAD_MS, READ_AHEAD_PAUSES_MS = 15_000.0, 60_000.0

# Characters that are read at once, in about a millisecond; the rest waits for `read`. Longer tokens are read in parts.
READ_CHARS = 256

# Of a word that goes on to come, so much is read at once, and as much is left for its end: a word of a script with
# spaces may be a long address.
TAIL_CHARS = 2 * LONG_PIECE

MAX_READ = 64  # words with the engine's times that are told at once
_LAST_DIGIT = re.compile(r".*\d", re.DOTALL)

# If words are not sent, text is read again after so many pieces of audio.
READ_EVERY = 12

# Calls that a `LateTimeline` keeps, of audio ten seconds to a minute; and characters in them.
MAX_NOTES, NOTED_CHARS = 128, 64

MAX_VOICES = 16
SLOWEST, FASTEST = 3.0, 0.33  # measured paces are clamped to these


# A token with estimated times: text ("" for a directive), start in the text, first and last mark.
_Token = tuple[str, int, int, int]


class WordTimeline:
    """Text and word times of one utterance. Pure.

    With `aligned` the times come from the engine (`align`). Otherwise every complete word gets an estimate when its
    text arrives, and better times when its audio is made: `hear` takes the audio, `settle` returns final times.

    Reading a long text at once would block the event loop for milliseconds: each call reads `READ_CHARS`, and `read`
    goes on. Without `tells` only `split` is used, and text is read as its audio comes near.
    """

    def __init__(
        self,
        *,
        aligned: bool,
        speed: float = 1.0,
        language: str = "en",
        pace: float = 1.0,
        tells: bool = True,
    ) -> None:
        # Whether the words that the text methods, `align` and `finish` return have final times.
        self.aligned = aligned
        self._tells = tells
        self._language = language
        self._ahead_ms = READ_AHEAD_MS
        self._parts: list[str] = []
        self._length = 0
        # Where the text ends, without white space at its end.
        self.place = 0
        # The last token, while it may continue; the white space before it, and where its line begins.
        self._tail = self._gap = ""
        self._line = 0
        # Complete tokens without times: (text, char_start), and between them, if the engine has no times, the
        # directives that change these, and in ms the pauses of line breaks. Of the first, so many characters are read;
        # its first mark. The pause after the last one read, in ms.
        self._pending: deque[tuple[str | Pause | Prosody | float, int]] = deque()
        self._paused_ms = 0.0
        # The factor of the speed from `Prosody`.
        self._speed = 1.0
        # Where text begins and ends that is said in another way than it is written, in text order; and for what is
        # not read yet, the end and how much longer it takes than the text as it is written.
        self._said: list[tuple[int, int]] = []
        self._longer: deque[tuple[int, float]] = deque()
        self._read_chars = self._read_from = 0
        # The engine's times, in text order, and where the text begins that it has none for.
        self._marks: list[Word] = []
        self._known: float = 0
        self._fit = Fit(speed, pace)
        self._pieces = 0
        # Character offsets of the estimated marks.
        self._starts, self._ends = array("q"), array("q")
        # Tokens with estimates: texts, and the other three of `_Token`. A text in a script without spaces has one for
        # each character, so they take a few bytes. The number of settled ones; start of the last settled one, in ms.
        self._texts: list[str] = []
        self._numbers = array("q")
        self._settled = 0
        self._settled_ms = -1
        # (revision of the fit, start in ms of the next token to settle); invalid for other revisions.
        self._next = (-1, 0.0)
        # Each unanswered flush has here the number of estimated tokens before it.
        self._flushes: list[int] = []
        # Length of the audio; None before its end.
        self._audio_ms: int | None = None

    @property
    def pace(self) -> float:
        """Learned pace of the voice, for its next utterance; see `Paces`."""
        return self._fit.pace

    # ------------------------------------------------------------ text in, words out

    def append(self, text: str) -> list[Word]:
        """Append text; returns the words that can be sent now."""
        self._parts.append(text)
        if said := len(text.rstrip()):
            self.place = self._length + said
        self._length += len(text)
        head, goes_on = self._tail[:-END_CHARS], bool(self._tail)
        chunk, self._tail = self._tail[-END_CHARS:] + text, ""
        start, end = self._length - len(chunk), 0
        for place, word in words_in(chunk):
            self._gap += chunk[end:place]
            end, at = place + len(word), start + place - len(head)
            if not goes_on:
                self._begin_word(word[0], at)
            word, head, goes_on = head + word, "", False
            if end == len(chunk):
                self._tail = word
            else:
                self._pending.append((word, at))
        self._gap += chunk[end:]
        return self._estimate()

    def _begin_word(self, first: str, start: int) -> None:
        """A pause before a word with which a line begins, unless the line before it was filled."""
        lines, self._gap = self._gap.count("\n"), ""
        if lines:
            if (lines > 1 or start - self._line < WRAP or not first.isalpha()) and not self.aligned:
                self._pending.append((SENTENCE_PAUSE_MS if lines > 1 else CLAUSE_PAUSE_MS, start))
            self._line = start

    def direct(self, directive: Directive) -> list[Word]:
        """Append a directive; returns the words that can be sent now."""
        if isinstance(directive, Say):
            return self._say(directive)
        if self.aligned or not isinstance(directive, Pause | Prosody):
            return []
        words = self.complete() if isinstance(directive, Pause) else []
        self._pending.append((directive, self._length))
        self._ahead_ms = READ_AHEAD_PAUSES_MS
        return words

    def _say(self, say: Say) -> list[Word]:
        end = self._length + len(say.text)
        self._said.append((self._length, end))
        if not self.aligned and say.alias is not None:
            self._longer.append((end, self._spoken_ms(say.alias) - self._spoken_ms(say.text)))
        return self.append(say.text)

    def _spoken_ms(self, text: str) -> float:
        return sum(ms for token in text.split() for _, ms in length(token, self._language).pieces)

    def complete(self) -> list[Word]:
        """The last word is complete; returns the words that can be sent now."""
        if self._tail:
            self._pending.append((self._tail, self._length - len(self._tail)))
            self._tail = ""
        return self._estimate()

    def flush(self) -> list[Word]:
        """The last word is complete; `flushed` follows once it is spoken. Returns the words that can be sent now."""
        words = self.complete()
        self._flushes.append(len(self._texts) + len(self._pending))
        return words

    @property
    def is_unread(self) -> bool:
        return self._tells and bool(self._pending) and (not self.aligned or self._is_certain())

    def read(self) -> list[Word]:
        """The next words that can be sent now, if another method left some."""
        return self._completed() if self.aligned else self._estimate()

    # ------------------------------------------------------------ times from the engine

    def align(self, times: Sequence[Word]) -> list[Word]:
        """Take times from the engine, in text order; returns the words that they complete.

        Tokens that are not spoken (a dash, an emoji) have no length and lie just before the next spoken word. If words
        are estimated, the times are those of whole pieces of the text, complete words between which estimates lie.
        """
        if not self.aligned:
            return [word for piece in times for word in self._pin(piece)]
        self._marks += times
        if times:
            self._known = times[-1].char_end
        return self._completed()

    def _completed(self) -> list[Word]:
        """The next words whose times are certain, `MAX_READ` of them."""
        words: list[Word] = []
        while self._is_certain() and len(words) < MAX_READ:
            token, start = self._pending.popleft()
            assert isinstance(token, str)
            words.append(self._word(token, start))
        return words

    def _is_certain(self) -> bool:
        """Whether the engine's times cover the next word. A number may be spoken in several parts."""
        if not self._pending:
            return False
        token, start = self._pending[0]
        digits = _LAST_DIGIT.match(str(token))
        return start + (digits.end() - 1 if digits else 0) < self._known

    def _pin(self, piece: Word) -> list[Word]:
        words = self.complete() if self._length - len(self._tail) < piece.char_end else []
        while self._pending and (not self._ends or self._ends[-1] < piece.char_end):
            self._estimate(tokens=len(self._texts) + 1)
        first = bisect_right(self._ends, piece.char_start)
        self._fit.reach(first, piece.start_ms, sounds=True)
        self._fit.reach(bisect_left(self._starts, piece.char_end), piece.end_ms, sounds=True)
        return words

    # ------------------------------------------------------------ times from the audio

    def hear(self, samples: int, peaks: bytes) -> None:
        """Take the next piece of audio from the engine; see `Silences.hear`."""
        if self.aligned:
            return
        self._fit.hear(samples, peaks)
        self._pieces += 1
        if not self._tells and self._pieces % READ_EVERY == 0:
            self._estimate()

    def flushed(self, audio_ms: int) -> None:
        """All text before the oldest unanswered `flush` lies within the first `audio_ms` of audio."""
        if not self._flushes:
            return
        count = self._flushes.pop(0)
        if not self.aligned:
            self._estimate(tokens=count)
            self._fit.reach(self._token(count)[2] if count < len(self._texts) else len(self._fit), audio_ms)

    def finish(self, audio_ms: int, *, cut: bool = False) -> list[Word]:
        """All audio has been made; returns words that were never sent, of which `read` may have more. `cut`: the audio
        ended before the text.
        """
        left = self.complete()
        if self.aligned:
            self._known = math.inf
            left = self._completed()
        elif not cut:
            left += self._estimate(math.inf)
        self._audio_ms = audio_ms
        if not cut:
            self._fit.reach(len(self._fit), audio_ms)
        return left

    def settle(self, until_ms: float | None = None, most: int | None = None) -> list[Word]:
        """Words with final times, once each: those that start before `until_ms` of audio, or all remaining; `most` of
        them at once.

        Applies to estimates only. Final times are fitted to the audio heard so far, follow earlier settled words, and
        lie within the audio once its end is known.
        """
        words: list[Word] = []
        if until_ms is not None and self._next[0] == self._fit.revision and until_ms <= self._next[1]:
            return words
        while self._settled < len(self._texts) and len(words) != most:
            text, _, first, _ = token = self._token(self._settled)
            if not text:
                self._settled += 1
                continue
            if until_ms is not None:
                if self._flushes and self._settled >= self._flushes[0]:
                    break  # it starts behind the flush, whose answer tells where that is
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
        return [self._estimated(token) for token in map(self._token, range(len(self._texts))) if token[0]]

    # ------------------------------------------------------------ heard

    def split(self, played_ms: float) -> tuple[str, str]:
        """The text as (heard, unheard) after `played_ms` of audio, by the rule of `heard.split`."""
        self._estimate(played_ms, ahead=False)
        # What is said in another way has no parts.
        count = len(self._marks if self.aligned else self._starts)
        return heard.split("".join(self._parts), count, self._timed, played_ms, self._said)

    # ------------------------------------------------------------ inside

    def _word(self, token: str, start: int) -> Word:
        """A token with the time of the engine's marks in it, or no length if there are none."""
        end = start + len(token)
        first = bisect_right(self._marks, start, key=lambda mark: mark.char_end)
        inside = [mark for mark in self._marks[first:] if mark.char_start < end]
        if inside:
            return Word(token, inside[0].start_ms, inside[-1].end_ms, start, end)
        at = 0
        if self._marks:
            at = self._marks[first].start_ms if first < len(self._marks) else self._marks[-1].end_ms
        return Word(token, at, at, start, end)

    def _estimate(self, until_ms: float = 0.0, tokens: int = 0, *, ahead: bool = True) -> list[Word]:
        """Read complete tokens: `READ_CHARS` of them with `tells`, unless it is not to read ahead; those that are due;
        and at least the first `tokens`. Returns the words to send.
        """
        words: list[Word] = []
        chars = READ_CHARS if self._tells and ahead else 0
        while not self.aligned and (self._pending or len(self._tail) >= self._read_chars + 2 * TAIL_CHARS):
            if chars <= 0 and not (len(self._texts) < tokens or self._is_due(until_ms)):
                break
            comes = not self._pending
            text, start = (self._tail, self._length - len(self._tail)) if comes else self._pending[0]
            if not self._read_chars:
                self._read_from = len(self._fit)
            if not isinstance(text, str):
                del self._pending[0]
                self._obey(text, start)
                self._add_token("", start)
                continue
            part = text[self._read_chars : self._read_chars + (TAIL_CHARS if comes else READ_CHARS)]
            self._read_chars += len(part)
            is_end = not comes and self._read_chars == len(text)
            self._mark(part, start + self._read_chars - len(part), is_end=is_end)
            chars -= len(part) + 1
            if is_end:
                del self._pending[0]
                self._read_chars = 0
                self._add_token(text, start)
                if self._tells:
                    words.append(self._estimated(self._token(len(self._texts) - 1)))
        return words

    def _obey(self, directive: Pause | Prosody | float, start: int) -> None:
        if isinstance(directive, float):
            if not self._paused_ms:
                self._add(start, 0, 0.0, directive)
        elif isinstance(directive, Pause):
            self._add(start, 0, 0.0, directive.ms)
        else:
            self._speed = directive.speed

    def _is_due(self, until_ms: float) -> bool:
        """Whether the next token must be read now: it begins before `until_ms`, or, without `tells`, less than
        `_ahead_ms` of the text is read ahead.
        """
        begins_ms = self._fit.span(len(self._fit))[0]
        if self._tells:
            return begins_ms < until_ms
        return begins_ms <= max(until_ms, self._fit.heard_ms) + self._ahead_ms

    def _mark(self, text: str, start: int, *, is_end: bool) -> None:
        """A word, or a part of one, its end or not."""
        pieces, pause_ms = length(text, self._language)
        pause_ms = pause_ms if is_end else 0.0
        self._paused_ms = pause_ms
        for index, (chars, ms) in enumerate(pieces):
            while self._longer and self._longer[0][0] <= start + chars:
                ms = max(0.0, ms + self._longer.popleft()[1])
            self._add(start, chars, ms / self._speed, pause_ms if index == len(pieces) - 1 else 0.0)
            start += chars

    def _add(self, start: int, chars: int, ms: float, pause_ms: float) -> None:
        self._starts.append(start)
        self._ends.append(start + chars)
        self._fit.add(ms, pause_ms)

    def _add_token(self, text: str, start: int) -> None:
        self._texts.append(text)
        self._numbers.extend((start, self._read_from, len(self._fit) - 1))

    def _token(self, place: int) -> _Token:
        start, first, last = self._numbers[3 * place : 3 * place + 3]
        return self._texts[place], start, first, last

    def _estimated(self, token: _Token) -> Word:
        text, start, first, last = token
        start_ms, end_ms = self._fit.span(first)[0], self._fit.span(last)[1]
        return Word(text, self._at(start_ms), self._at(end_ms), start, start + len(text))

    def _timed(self, mark: int) -> Word:
        if self.aligned:
            return self._marks[mark]
        start_ms, end_ms = self._fit.span(mark)
        return Word("", round(start_ms), round(end_ms), self._starts[mark], self._ends[mark])

    def _at(self, ms: float) -> int:
        return round(ms) if self._audio_ms is None else min(round(ms), self._audio_ms)


class LateTimeline:
    """A timeline of estimates for a listener who gets no words: they are computed when `split` or `finish` asks.

    Most utterances are never cut, and their audio costs nothing. What has come meanwhile is noted, and taken in as it
    has come; at the latest after `MAX_NOTES` or `NOTED_CHARS`, which takes about a millisecond: a session may have all
    its contexts cut at once.
    """

    place = 0  # where marks would be, of which the listener is not told
    is_unread = False

    def __init__(self, timeline: WordTimeline) -> None:
        self._timeline = timeline
        self._notes: list[Callable[[], object]] = []
        self._chars = 0  # in them

    def __getattr__(self, name: str) -> Callable[..., list[Word]]:
        """A method of the timeline that takes something in: its calls wait."""
        return partial(self._note, getattr(self._timeline, name))

    def finish(self, audio_ms: int, *, cut: bool = False) -> list[Word]:
        return self._taken_in().finish(audio_ms, cut=cut)

    def split(self, played_ms: float) -> tuple[str, str]:
        return self._taken_in().split(played_ms)

    def _note(self, call: Callable[..., object], *given: object) -> list[Word]:
        self._notes.append(partial(call, *given))
        self._chars += sum(len(text) for text in given if isinstance(text, str))
        if len(self._notes) >= MAX_NOTES or self._chars > NOTED_CHARS:
            self._taken_in()
        return []

    def _taken_in(self) -> WordTimeline:
        for call in self._notes:
            call()
        self._notes.clear()
        self._chars = 0
        return self._timeline


class Paces:
    """Measured paces of the last voices (real time / nominal time at speed 1), for their next utterances."""

    def __init__(self) -> None:
        self._paces: OrderedDict[str | None, float] = OrderedDict()

    def of(self, voice: str | None) -> float:
        """Real time / nominal time; 1 for an unknown voice."""
        return self._paces.get(voice, 1.0)

    def learn(self, voice: str | None, pace: float) -> None:
        """Store the pace of a voice. Beyond `MAX_VOICES` the least recent voice is removed."""
        self._paces[voice] = min(max(pace, FASTEST), SLOWEST)
        self._paces.move_to_end(voice)
        if len(self._paces) > MAX_VOICES:
            self._paces.popitem(last=False)
