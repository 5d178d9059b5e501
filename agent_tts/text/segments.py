"""Cuts a long text into pieces that are spoken one by one."""

from __future__ import annotations

import unicodedata

SENTENCE_ENDS = frozenset(".!?…")
WIDE_SENTENCE_ENDS = frozenset("。！？")  # no space follows these

# What a wide character (Chinese, Japanese, Korean) counts: it takes as long to say as three letters.
WIDE_CHARS = 3


class Segmenter:
    """Cuts an endless text into pieces of limited length, at the end of a sentence if possible.

    A piece ends with its sentence after `limit` characters, with its word after twice as many, anywhere after three
    times as many. A wide character counts as `WIDE_CHARS`.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Of the current piece.
        self._length = 0
        self._last = ""

    def feed(self, text: str) -> list[str | None]:
        """The parts of the text in order, with None where a piece ends."""
        pieces: list[str | None] = []
        start = 0
        for index, char in enumerate(text):
            self._length += WIDE_CHARS if unicodedata.east_asian_width(char) in "WF" else 1
            sentence = char in WIDE_SENTENCE_ENDS or (char.isspace() and self._last in SENTENCE_ENDS)
            self._last = char
            if (
                (self._length >= self._limit and sentence)
                or (self._length >= 2 * self._limit and char.isspace())
                or self._length >= 3 * self._limit
            ):
                pieces += [text[start : index + 1], None]
                start = index + 1
                self._length = 0
        if start < len(text):
            pieces.append(text[start:])
        return pieces

    def cut(self) -> None:
        """End the current piece."""
        self._length, self._last = 0, ""
