"""Where the characters of a clean text are in the text as it was sent. Pure."""

from __future__ import annotations

from bisect import bisect_right


class Offsets:
    """Clean offsets to raw ones. Memory grows with the number of tags."""

    def __init__(self) -> None:
        # The offset in the clean text, and that in the raw one, at which each run of equal characters starts.
        self._clean = [0]
        self._raw = [0]
        self.length = 0  # length of the clean text

    def add(self, length: int, raw: int) -> None:
        """So many more clean characters, which start at offset `raw` of the raw text."""
        if self._raw[-1] + self.length - self._clean[-1] != raw:
            if self._clean[-1] == self.length:
                self._raw[-1] = raw
            else:
                self._clean.append(self.length)
                self._raw.append(raw)
        self.length += length

    @property
    def is_shifted(self) -> bool:
        return len(self._clean) > 1 or self._raw[0] > 0

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The raw offsets of a span with at least one character. Tags at its sides do not belong to it."""
        return self._at(start), self._at(end - 1) + 1

    def _at(self, clean: int) -> int:
        run = bisect_right(self._clean, clean) - 1
        return self._raw[run] + clean - self._clean[run]
