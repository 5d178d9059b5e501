"""The text of one stream, as it comes from an LLM, turned into units that later text cannot change."""

from __future__ import annotations

from agent_tts.text.chars import is_unspeakable
from agent_tts.text.clean import Cleaner
from agent_tts.text.units import Cutter, Unit

__all__ = ["TextFeed", "Unit"]


class TextFeed:
    """Text in by any pieces, units out as early as they are certain.

    However a text is split into pieces, the units are the same; a `flush` at a place of the text is part of the
    text. Time is linear and memory constant: `clean.py` and `units.py` say how much each of them holds back.

    Args:
        clean: make markdown, links and emoji speakable. Otherwise the text is cut as it is, without the control
            characters and lone surrogates that no engine takes.
        first_words: the first unit ends after as many words at the latest, so that speech starts early; each unit
            may have twice the words of the one before, up to `units.MAX_WORDS`.
    """

    def __init__(self, *, clean: bool = True, first_words: int = 2) -> None:
        self._offset = 0  # of the next character in the raw text
        self._cutter = Cutter(first_words)
        self._cleaner = Cleaner(self._cutter.push) if clean else None  # None speaks the text as it is

    def append(self, text: str) -> list[Unit]:
        """More text; returns the units that it finishes."""
        push = self._cleaner.push if self._cleaner else self._push_raw
        for offset, ch in enumerate(text, self._offset):
            push(ch, offset)
        self._offset += len(text)
        return self._cutter.take()

    def flush(self) -> list[Unit]:
        """All text so far is complete words: returns everything that is held back."""
        if self._cleaner:
            self._cleaner.flush(self._offset)
        self._cutter.cut()
        return self._cutter.take()

    def end(self) -> list[Unit]:
        """No more text will come: returns everything that is held back."""
        return self.flush()

    def _push_raw(self, ch: str, offset: int) -> None:
        if not is_unspeakable(ch):
            self._cutter.push(ch, offset)
