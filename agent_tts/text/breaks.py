"""Pauses that the text asks for, by the one tag of SSML that speech APIs agree on: `<break time="500ms"/>`.

Reads one character at a time and holds back no more than what may still become a tag. Whatever is not exactly such a
tag is text like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

MAX_BREAK_MS = 10_000  # a longer one is cut to this
MAX_TAG = 40  # characters

TAG_START = "<break"
_TAG = re.compile(r"""<break\s+time\s*=\s*(["'])(\d{1,6}(?:\.\d{1,6})?)(ms|s)\1\s*/?>""", re.ASCII)


@dataclass(frozen=True, slots=True)
class Break:
    """Silence between what is before it and what is after it."""

    ms: int


class BreakReader:
    """Takes raw characters, each with its offset; passes all but the tags on to `sink`, and tells `rest` of these."""

    def __init__(self, sink: Callable[[str, int], None], rest: Callable[[Break, int], None]) -> None:
        self._sink = sink
        self._rest = rest
        # What may become a tag, and where it starts in the raw text.
        self._held = ""
        self._start = 0

    def push(self, ch: str, offset: int) -> None:
        """The next character."""
        if ch == "<":
            self.flush()
            self._held, self._start = ch, offset
            return
        if not self._held:
            self._sink(ch, offset)
            return
        self._held += ch
        if ch == ">" and (tag := _TAG.fullmatch(self._held)):
            self._held = ""
            self._rest(Break(_ms(tag[2], tag[3])), offset + 1)
        elif ch == ">" or len(self._held) == MAX_TAG or not TAG_START.startswith(self._held[: len(TAG_START)]):
            self.flush()

    def flush(self) -> None:
        """What is held back is text."""
        held, self._held = self._held, ""
        for place, ch in enumerate(held, self._start):
            self._sink(ch, place)


def _ms(number: str, unit: str) -> int:
    return min(MAX_BREAK_MS, round(float(number) * (1_000 if unit == "s" else 1)))


class Found(NamedTuple):
    """A tag at the start of a text."""

    end: int  # where it ends
    ms: int


def break_in(text: str) -> Found | None:
    """The tag that a text starts with; None where there is none."""
    tag = _TAG.match(text)
    return None if tag is None else Found(tag.end(), _ms(tag[2], tag[3]))
