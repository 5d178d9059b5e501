"""The text of one request as tokens, in segments that are spoken one after the other, each with a prompt of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from agent_tts.directives import Directive, Language, Pause, Prosody, Say, Style
from agent_tts.engine.qwen3.delivery import Manner
from agent_tts.engine.slots import Feed, Opened, Point
from agent_tts.messages import End, Flush
from agent_tts.text.chars import CLAUSE_MARKS, CLOSERS, WIDE_CLAUSE_MARKS, Sink, is_cjk, is_silent
from agent_tts.text.directives import Directives
from agent_tts.text.feed import Reader, Reading
from agent_tts.text.segments import LONGER, MOST, Level, Segmenter
from agent_tts.text.tokens import TokenFeed

# A segment ends with the sentence in which it reaches so many tokens, a minute of speech: within the training of the
# model, and a cache of 2 048 positions. In a smaller cache it has fewer tokens.
SEGMENT_TOKENS = 200
SEGMENT_S = 60.0
POSITIONS_PER_TOKEN = 10
# So much text begins to be spoken without the end of a clause; a character of a script without spaces is a third.
FIRST_WORDS = 4
CHARS_PER_WORD = 3
_MARKS = CLAUSE_MARKS | WIDE_CLAUSE_MARKS | CLOSERS

PLAIN = Manner()


@dataclass(slots=True, eq=False)
class Segment:
    """Text that is spoken by one prompt. It neither begins nor ends with white space."""

    tokens: list[int] = field(default_factory=list)  # known, and not given to the model
    speakable: bool = False  # there is more than white space and punctuation in it
    complete: bool = False  # no more tokens will come
    flushes: list[str | None] = field(default_factory=list)  # ids of the flushes right after it
    rest_ms: int = 0  # silence after it, and before those points
    parts: list[str] = field(default_factory=list)  # of its text
    manner: Manner = PLAIN  # how it is spoken
    changes: bool = False  # the manner changes right after it
    chars: int = 0  # of its text
    words: float = 0.0
    known: int = 0  # tokens of it so far, given to the model or not
    # Tokens of the text up to the last place where they were counted, and characters behind that.
    counted: int = 0
    uncounted: int = 0
    # The last place of each level: the number of characters of its text before it, and words.
    places: dict[Level, tuple[int, float]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "".join(self.parts).rstrip()

    @property
    def seam(self) -> bool:
        """Whether the next one follows it within a sentence."""
        return self.changes and not (self.rest_ms or self.flushes)

    @property
    def is_shaped(self) -> bool:
        """Whether its audio is more than the model's frames."""
        return bool(self.rest_ms) or self.seam or self.manner.speed != 1 or self.manner.volume != 1

    @property
    def is_mute(self) -> bool:
        """Whether there is nothing to speak in it, and nothing will come."""
        return self.complete and not self.speakable

    @property
    def size(self) -> int:
        """At most so many tokens."""
        return self.counted + self.uncounted


class SegmentFeed(Feed):
    """Text in by any split, tokens out as soon as later text cannot change them.

    Equal texts with equal flushes give equal segments, unless `split` is called. A flush ends a segment: a model speaks
    its last words only when it knows that they are the last. `language` is the code of the language that is spoken,
    `directives` are those that have an effect. `limit` is the longest usual length of a segment in tokens. It ends with
    the sentence in which it reaches `usual` of them; where no sentence ends, its length depends on `limit` alone.
    """

    def __init__(
        self,
        opened: Opened,
        slot: int,
        tokens: TokenFeed,
        language: str = "en",
        directives: Directives | None = None,
        limit: int = SEGMENT_TOKENS,
        usual: int = SEGMENT_TOKENS,
    ) -> None:
        super().__init__(opened, slot)
        self._directives = directives or Directives(("pause",))
        self._speed = opened.options.speed
        # Characters read so far, those of the chunk that are to be spoken, and the last that came.
        self._offset = 0
        self._chars: list[str] = []
        self._last = ""
        self._reading = Reading.of(opened.options, language)
        take = self._chars.append  # a method of our own would be a cycle for the garbage collector
        self._sink: Sink = lambda chars, _: take(chars)
        self._reader = Reader(self._reading, self._sink, joined=True)
        self._segmenter = Segmenter(language)
        self._tokens = tokens
        self._limit = limit
        self._usual = min(usual, limit)
        # Text that has not been given to `_tokens`.
        self._text: list[str] = []
        # Those that are not spoken yet, the one that grows included. Empty when all of the request has been spoken.
        self.segments: deque[Segment] = deque([Segment(manner=Manner(self._speed))])

    def read(self, now: float) -> None:
        """Read a chunk of the text, unless the present segment is complete."""
        if self._unread and not self.segments[0].complete:
            self._read(*self.next_chunk(now))

    def _read(self, text: str, point: Point | None) -> None:
        self._reader.read(text, self._offset)
        self._offset += len(text)
        self._last = text[-1:] or self._last
        if isinstance(point, Flush):
            self._flush_text()
            self._flush(point.flush_id)
        elif isinstance(point, End):
            self._flush_text()
            self._end_segment()
            self.segments.pop()  # the new one
        else:
            if point:
                self._direct(point)
            self._take_chars()

    def renew(self) -> None:
        """The present segment ends here, unfinished; what of it is not spoken, and what comes, is a new one."""
        left = self.segments[0].tokens
        self.segments[0] = Segment(left, speakable=bool(left), counted=len(left), manner=self.segments[0].manner)

    @property
    def dry(self) -> bool:
        """Whether all text that came is in the segments."""
        return not self._unread

    # ---------------------------------------------------------------- a segment that ends before its time

    def can_split(self, *, paused: bool) -> bool:
        """Whether the segment that grows can end at a clause, or after some words; `paused`: after any word."""
        segment = self.segments[0]
        if segment.complete or not self.dry or segment.known != len(segment.tokens):
            return False
        if paused and self._word_ends:
            return segment.speakable or not all(map(is_silent, self._segmenter.held))
        words = max(words for _, words in [(0, 0.0), *segment.places.values()])
        enough = words >= (1 / CHARS_PER_WORD if paused else FIRST_WORDS)
        return segment.speakable and (enough or max(segment.places, default=Level.CHAR) >= Level.CLAUSE)

    @property
    def _word_ends(self) -> bool:
        """Whether the last character that came is behind a word."""
        return self._last.isspace() or self._last in _MARKS or (self._last != "" and is_cjk(self._last))

    def split(self, *, paused: bool) -> None:
        """End the segment that grows where it can be cut best; the rest is a new one. See `can_split`."""
        if paused and self._word_ends:
            self._flush_text()
            self._end_segment()
            return
        whole = self.segments.popleft()
        at = next(whole.places[level][0] for level in reversed(Level) if level in whole.places)
        text = "".join(whole.parts)
        rest = text[at:]
        self.segments.append(Segment(manner=whole.manner))
        self._tokens.flush()
        self._add(text[:at])
        self._end_segment()
        if rest:
            self._add(rest)
            self._tokenise()
            places = {level: (place - at, 0.0) for level, (place, _) in whole.places.items() if place > at}
            self.segments[-1].places = places

    # ---------------------------------------------------------------- reading

    def _take_chars(self) -> None:
        chars = "".join(self._chars)
        self._chars.clear()
        self._take_parts(self._segmenter.feed(chars))
        self._tokenise()

    def _flush_text(self) -> None:
        self._reader.flush(self._offset)
        self._take_chars()
        self._take_parts(self._segmenter.flush())
        self._tokenise()

    def _take_parts(self, parts: Iterable[str | Level]) -> None:
        for part in parts:
            if isinstance(part, Level):
                self._take_place(part)
            else:
                self._add(part)

    def _take_place(self, level: Level) -> None:
        """The text can be cut here, behind the white space that came last."""
        segment = self.segments[-1]
        most = LONGER[level] * (self._usual if level is Level.SENTENCE else self._limit)
        if level >= Level.CLAUSE or segment.size >= most:
            self._tokenise()
            segment.counted, segment.uncounted = segment.known + self._tokens.held, 0
        if segment.speakable and segment.size >= most:
            self._end_segment()
            return
        segment.words += 1 / CHARS_PER_WORD if level is Level.CHAR else 1
        segment.places[level] = segment.chars, segment.words

    def _add(self, part: str) -> None:
        """A word, a part of one, or white space."""
        while part:
            segment = self.segments[-1]
            if part.isspace() and not segment.chars:
                return
            room = MOST * self._limit - segment.size
            if room <= 0:
                self._end_segment()
                continue
            text, part = part[:room], part[room:]
            self._text.append(text)
            segment.chars += len(text)
            segment.uncounted += len(text)
            segment.speakable = segment.speakable or not all(map(is_silent, text))

    def _tokenise(self) -> None:
        if self._text:
            text, self._text = "".join(self._text), []
            self.segments[-1].parts.append(text)
            self._keep(self._tokens.append(text))

    def _keep(self, tokens: list[int]) -> None:
        self.segments[-1].tokens += tokens
        self.segments[-1].known += len(tokens)

    def _direct(self, directive: Directive) -> None:
        taken = self._directives.take(directive)
        if isinstance(taken, Say):
            self._offset = self._reader.say(taken, self._offset)
        elif taken:
            self._flush_text()
            if isinstance(taken, Pause):
                self._rest(taken)
            else:
                self._change(taken)

    def _change(self, directive: Prosody | Style | Language) -> None:
        """Another manner begins a segment, also where the prompt of the first may have been computed without text."""
        if self.segments[-1].speakable or len(self.segments) == 1:
            self.segments[-1].changes = True
            self._end_segment()
        segment = self.segments[-1]
        segment.manner = segment.manner.after(directive, self._speed)
        if isinstance(directive, Language):
            self._reader = Reader(self._reading.in_language(directive.code), self._sink, joined=True)

    def _rest(self, pause: Pause) -> None:
        """A pause ends a segment: it is exact between what two prompts say."""
        if self.segments[-1].speakable or len(self.segments) == 1 or self.segments[-2].flushes:
            self._end_segment()
        self.segments[-2].rest_ms += pause.ms

    def _end_segment(self) -> None:
        self._tokenise()
        self._keep(self._tokens.flush(strip=True))
        self.segments[-1].complete = True
        self.segments.append(Segment(manner=self.segments[-1].manner))

    def _flush(self, flush_id: str | None) -> None:
        if self.segments[-1].speakable or len(self.segments) == 1:
            self._end_segment()
        self.segments[-2].flushes.append(flush_id)
