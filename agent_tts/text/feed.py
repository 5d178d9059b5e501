"""The text of one request, as it comes from an LLM: markup cleaned, numbers said in words, cut into units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent_tts.events import SpeechOptions
from agent_tts.text.breaks import Break, BreakReader
from agent_tts.text.chars import is_unspeakable
from agent_tts.text.clean import Cleaner
from agent_tts.text.normalize import Normalizer
from agent_tts.text.units import Cutter, Unit

__all__ = ["Break", "Reader", "Reading", "TextFeed", "Unit"]

Sink = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Reading:
    """How a text is read. Control characters and lone surrogates are always dropped: no engine takes them."""

    clean: bool = True  # make markdown, links and emoji speakable
    normalize: str | None = None  # say numbers and signs in words of this language; None leaves them
    breaks: bool = False  # obey `<break time="500ms"/>`; otherwise it is text

    @classmethod
    def of(cls, options: SpeechOptions, language: str) -> Reading:
        """The reading that a request asks for; `language` is a code."""
        return cls(options.clean, language if options.normalize else None, options.breaks)


class Reader:
    """Takes raw characters with their offsets and passes what is to be said to `sink`.

    The output depends on the characters and the flushes alone. `rest` takes each pause, after everything before it.
    """

    def __init__(self, reading: Reading, sink: Sink, rest: Callable[[Break], None]) -> None:
        self._rest = rest
        self._normalizer = Normalizer(sink, reading.normalize) if reading.normalize else None
        self._said = self._normalizer.push if self._normalizer else sink
        self._cleaner = Cleaner(self._said) if reading.clean else None
        text = self._cleaner.push if self._cleaner else self._plain
        self._breaks = BreakReader(text, self._break) if reading.breaks else None
        self.push: Sink = self._breaks.push if self._breaks else text

    def flush(self, offset: int) -> None:
        """All text so far is complete: pass on everything that is held back."""
        if self._breaks:
            self._breaks.flush()
        self._flush_text(offset)

    def _flush_text(self, offset: int) -> None:
        if self._cleaner:
            self._cleaner.flush(offset)
        if self._normalizer:
            self._normalizer.flush(offset)

    def _break(self, rest: Break, offset: int) -> None:
        self._flush_text(offset)
        self._rest(rest)

    def _plain(self, ch: str, offset: int) -> None:
        if not is_unspeakable(ch):
            self._said(ch, offset)


class TextFeed:
    """Text in, in any pieces; units and pauses out, as soon as they are certain.

    The units depend on the text and the places of its flushes, not on its split into pieces. Time is linear and memory
    constant; `Reader` and `units.py` state how much is held back.

    Args:
        first_words: most words of the first unit, few so that speech starts early; each unit may have twice the words
            of the one before, up to `units.MAX_WORDS`.
    """

    def __init__(self, reading: Reading | None = None, *, first_words: int = 2) -> None:
        self._offset = 0  # of the next character in the raw text
        self._done: list[Unit | Break] = []  # not yet taken
        self._cutter = Cutter(first_words, self._done.append)
        self._reader = Reader(reading or Reading(), self._cutter.push, self._break)

    def append(self, text: str) -> list[Unit | Break]:
        """More text; returns what it completes."""
        push = self._reader.push
        for offset, ch in enumerate(text, self._offset):
            push(ch, offset)
        self._offset += len(text)
        return self._take()

    def flush(self) -> list[Unit | Break]:
        """All text so far is complete words; returns everything that was held back."""
        self._reader.flush(self._offset)
        self._cutter.cut()
        return self._take()

    def _break(self, rest: Break) -> None:
        self._cutter.cut()
        self._done.append(rest)

    def _take(self) -> list[Unit | Break]:
        done = self._done.copy()
        self._done.clear()
        return done
