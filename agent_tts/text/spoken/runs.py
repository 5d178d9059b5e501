"""Languages that write numbers without spaces around them: Chinese, Japanese, Korean."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from agent_tts.text.spoken.table import Rule

MAX_RUN = 80  # characters that are looked at together

SIGNS = frozenset("-−–+.,:/~%°%‰℃$€£¥₩²³")
STARTS = frozenset("0123456789-−$€£¥₩")  # of a run

# Full-width forms are read as their narrow ones.
_NARROW = {0xFF01 + place: 0x21 + place for place in range(94)} | {ord("￥"): "¥", ord("￦"): "₩", ord("〜"): "~"}
_AFTER_LATIN = re.compile(r"[A-Za-z][-_]?\Z")
_NUMBER = re.compile(r"[-−]?\d[\d.,]*")


@dataclass(frozen=True)
class Runs:
    """The rules of one language, tried in order at each number of a run.

    A run starts at one of `STARTS` and has digits, `SIGNS`, ASCII letters, the characters `inside`, and single spaces
    after digits.
    """

    rules: tuple[Rule, ...]
    inside: frozenset[str]

    def goes_on(self, ch: str, before: str) -> bool:
        """Whether a run has `ch` after `before`."""
        if ch == " ":
            return before.isdecimal()
        narrow = narrowed(ch)
        return ch in self.inside or narrow in SIGNS or (narrow.isascii() and narrow.isalnum())

    def say(self, run: str, before: str) -> Iterable[tuple[int, int, str]]:
        """What is said in place of parts of a run: their start, their end, and the words. `before` is before it."""
        text = before + narrowed(run)
        place = len(before)
        while place < len(text):
            if text[place] not in STARTS:
                place += 1
                continue
            if _AFTER_LATIN.search(text, 0, place):  # a name: "GPT-4", "A4"
                name = _NUMBER.match(text, place)
                place = name.end() if name else place + 1
                continue
            for rule in self.rules:
                match = rule.pattern.match(text, place)
                if match is not None and (said := rule.say(match, text[:place])) is not None:
                    yield place - len(before), match.end() - len(before), said
                    place = match.end()
                    break
            else:
                place += 1


def narrowed(text: str) -> str:
    """The text with narrow forms of full-width characters."""
    return text.translate(_NARROW)


def starts_run(ch: str) -> bool:
    """Whether a run starts at this character."""
    return narrowed(ch) in STARTS


def one_of(words: Iterable[str]) -> str:
    """A pattern of any of these words, the longest first."""
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
