"""Pauses in a text, by the one tag of SSML that speech APIs agree on: `<break time="500ms"/>`.

Anything that is not exactly such a tag is ordinary text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

MAX_BREAK_MS = 10_000  # a longer one is cut to this
MAX_TAG = 40  # characters

_START = "<break"
_VALUE = r"""(?P<quote>["'])(?P<number>\d{1,6}(?:\.\d{1,6})?)(?P<unit>ms|s)(?P=quote)"""
_TAG = re.compile(rf"{_START}\s+time\s*=\s*{_VALUE}\s*/?>", re.ASCII)
# What white space may follow within a tag.
_UNFINISHED = re.compile(rf"{_START}(?:\s+time(?:\s*=(?:\s*{_VALUE})?)?)?", re.ASCII)


def _pause_ms(tag: re.Match[str]) -> int:
    return min(MAX_BREAK_MS, round(float(tag["number"]) * (1_000 if tag["unit"] == "s" else 1)))


@dataclass(frozen=True, slots=True)
class Break:
    """Silence between the text before it and the text after it."""

    ms: int


class BreakReader:
    """Reads characters with their offsets: text goes to `sink`, each tag and the offset after it to `rest`.

    It holds back only what may still become a tag.
    """

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
            self._rest(Break(_pause_ms(tag)), offset + 1)
        elif ch == ">" or len(self._held) == MAX_TAG or not _START.startswith(self._held[: len(_START)]):
            self.flush()

    def flush(self) -> None:
        """What is held back is text."""
        held, self._held = self._held, ""
        for place, ch in enumerate(held, self._start):
            self._sink(ch, place)


class TokenParts(NamedTuple):
    """A token's text lies between `start` and `end`; what is before and after it belongs to tags."""

    start: int
    end: int
    pause_ms: int = 0  # of the tag before the text


class BreakTokens:
    """Finds tags in a text that was split at white space, which divides each of them into several tokens."""

    def __init__(self) -> None:
        # The tokens of an unfinished tag; empty outside of one.
        self._held = ""

    def read(self, token: str) -> TokenParts:
        """The parts of the next token."""
        start, pause_ms = 0, 0
        if self._held:
            held = f"{self._held} {token}"
            if tag := _TAG.match(held):
                start, pause_ms = len(token) - len(held) + tag.end(), _pause_ms(tag)
            elif _UNFINISHED.fullmatch(held):
                self._held = held
                return TokenParts(len(token), len(token))
        self._held = _START if token.endswith(_START, start) else ""
        return TokenParts(start, len(token) - len(self._held), pause_ms)
