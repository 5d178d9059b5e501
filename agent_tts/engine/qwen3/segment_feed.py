"""The text of one request as tokens, in segments that are spoken one after the other, each with a prompt of its own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from agent_tts.engine.base import AddText, StartRequest
from agent_tts.engine.qwen3.delivery import Manner
from agent_tts.engine.slots import Feed
from agent_tts.events import Directive, Language, Pause, Prosody, Say, Style
from agent_tts.text.chars import is_silent
from agent_tts.text.directives import Directives
from agent_tts.text.feed import Reader, Reading
from agent_tts.text.segments import Segmenter
from agent_tts.text.tokens import TokenFeed

# A segment ends with the sentence in which it reaches so many characters, a minute of speech. With a sentence that
# doubles it, it is still within the model's training and a cache of 2 048 positions.
SEGMENT_CHARS = 1_000

PLAIN = Manner()


@dataclass(slots=True, eq=False)
class Segment:
    """Text that is spoken by one prompt."""

    tokens: list[int] = field(default_factory=list)  # known, and not given to the model
    speakable: bool = False  # there is more than white space and punctuation in it
    complete: bool = False  # no more tokens will come
    flushes: int = 0  # flush points right after it
    rest_ms: int = 0  # silence after it, and before those points
    parts: list[str] = field(default_factory=list)  # of its text
    manner: Manner = PLAIN  # how it is spoken
    changes: bool = False  # the manner changes right after it

    @property
    def text(self) -> str:
        """What is to be spoken, as far as it is known."""
        return "".join(self.parts)

    @property
    def seam(self) -> bool:
        """Whether the next one follows it within a sentence."""
        return self.changes and not (self.rest_ms or self.flushes)

    @property
    def is_shaped(self) -> bool:
        """Whether its audio is more than the model's frames."""
        return bool(self.rest_ms) or self.seam or not self.manner.is_plain

    @property
    def is_mute(self) -> bool:
        """Whether there is nothing to speak in it, and nothing will come."""
        return self.complete and not self.speakable


class SegmentFeed(Feed):
    """Text in by any split, tokens out as soon as later text cannot change them.

    Equal texts with equal flushes give equal segments. A flush ends a segment: a model speaks its last words only when
    it knows that they are the last. `language` is the code of the language that is spoken, `directives` are those that
    have an effect.
    """

    def __init__(
        self, opened: StartRequest, tokens: TokenFeed, language: str = "en", directives: Directives | None = None
    ) -> None:
        super().__init__(opened)
        self._directives = directives or Directives(("pause",))
        self._speed = opened.options.speed
        # Characters read so far, and those of the chunk that are to be spoken.
        self._offset = 0
        self._chars: list[str] = []
        self._reading = Reading.of(opened.options, language)
        self._reader = Reader(self._reading, self._take)
        self._segmenter = Segmenter(SEGMENT_CHARS)
        self._tokens = tokens
        # Those that are not spoken yet, the one that grows included. Empty when all of the request has been spoken.
        self.segments: deque[Segment] = deque([Segment(manner=Manner(self._speed))])

    def read(self) -> None:
        """Read a chunk of the text, unless the present segment is complete."""
        if self._unread and not self.segments[0].complete:
            self._read(self.next_chunk())

    def _read(self, text: AddText) -> None:
        for char in text.text:
            self._reader.push(char, self._offset)
            self._offset += 1
        if text.directive:
            self._direct(text.directive)
        if text.flush or text.last:
            self._reader.flush(self._offset)
        self._cut()
        if text.flush:
            self._segmenter.cut()
            self._flush()
        if text.last:
            self._end_segment()
            self.segments.pop()  # the new one

    def renew(self) -> None:
        """The present segment ends here, unfinished; what of it is not spoken, and what comes, is a new one."""
        left = self.segments[0].tokens
        self.segments[0] = Segment(left, speakable=bool(left), manner=self.segments[0].manner)

    @property
    def dry(self) -> bool:
        """Whether all text that came is in the segments."""
        return not self._unread

    def _take(self, char: str, _: int) -> None:
        self._chars.append(char)

    def _cut(self) -> None:
        """Hand the characters to the segments."""
        chars, self._chars = "".join(self._chars), []
        for part in self._segmenter.feed(chars):
            if part is None:
                self._end_segment()
            else:
                segment = self.segments[-1]
                segment.parts.append(part)
                segment.tokens += self._tokens.append(part)
                segment.speakable = segment.speakable or not all(map(is_silent, part))

    def _direct(self, directive: Directive) -> None:
        taken = self._directives.take(directive)
        if isinstance(taken, Say):
            self._offset = self._reader.say(taken, self._offset)
        elif taken:
            self._reader.flush(self._offset)
            self._cut()
            self._segmenter.cut()
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
            self._reader = Reader(self._reading.in_language(directive.code), self._take)

    def _rest(self, pause: Pause) -> None:
        """A pause ends a segment: it is exact between what two prompts say."""
        if self.segments[-1].speakable or len(self.segments) == 1 or self.segments[-2].flushes:
            self._end_segment()
        self.segments[-2].rest_ms += pause.ms

    def _end_segment(self) -> None:
        segment = self.segments[-1]
        segment.tokens += self._tokens.flush()
        segment.complete = True
        self.segments.append(Segment(manner=segment.manner))

    def _flush(self) -> None:
        if self.segments[-1].speakable or len(self.segments) == 1:
            self._end_segment()
        self.segments[-2].flushes += 1
