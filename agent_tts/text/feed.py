"""The text of one request, as it comes from an LLM, cut into units that later text cannot change."""

from __future__ import annotations

from agent_tts.text.breaks import Break
from agent_tts.text.reader import Reader, Reading
from agent_tts.text.units import Cutter, Unit

__all__ = ["Break", "Reading", "TextFeed", "Unit"]


class TextFeed:
    """Text in, in any pieces; units and pauses out, as soon as they are certain.

    The units depend on the text and the places of its flushes, not on its split into pieces. Time is linear and memory
    constant; `reader.py` and `units.py` state how much is held back.

    Args:
        reading: how the text is read before it is cut.
        first_words: most words of the first unit, few so that speech starts early; each unit may have twice the words
            of the one before, up to `units.MAX_WORDS`.
    """

    def __init__(self, reading: Reading | None = None, *, first_words: int = 2) -> None:
        self._offset = 0  # of the next character in the raw text
        self._cutter = Cutter(first_words)
        self._reader = Reader(reading or Reading(), self._cutter.push, self._break)
        self._done: list[Unit | Break] = []  # up to the last pause, not yet taken

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

    def end(self) -> list[Unit | Break]:
        """No more text will come; returns everything that was held back."""
        return self.flush()

    def _break(self, rest: Break) -> None:
        self._cutter.cut()
        self._done += [*self._cutter.take(), rest]

    def _take(self) -> list[Unit | Break]:
        done, self._done = self._done, []
        return done + self._cutter.take()
