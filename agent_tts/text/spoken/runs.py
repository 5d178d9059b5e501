"""Languages that write numbers without spaces around them: Chinese, Japanese, Korean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agent_tts.text.spoken.table import SpokenRule, rule

MAX_RUN = 80  # characters that are looked at together

SIGNS = frozenset("-−–+.,:/~%°%‰℃$€£¥₩²³")
STARTS = frozenset("0123456789-−+$€£¥₩")  # of a run

# Full-width forms are read as their narrow ones.
_NARROW = {0xFF01 + place: 0x21 + place for place in range(94)} | {ord("￥"): "¥", ord("￦"): "₩", ord("〜"): "~"}
_AFTER_LATIN = re.compile(r"[A-Za-z][-_]?\Z")
_NUMBER = re.compile(r"[-−]?\d[\d.,]*")


@dataclass(frozen=True)
class Runs:
    """The rules of one language, tried in order at each number of a run.

    A run starts at one of `STARTS` and has digits, `SIGNS`, ASCII letters, the characters `inside`, and single spaces
    after digits and the characters `spaced`.
    """

    rules: tuple[SpokenRule, ...]
    inside: frozenset[str]
    spaced: str = ""  # of them, those that a single space may follow, too

    def goes_on(self, ch: str, before: str) -> bool:
        """Whether a run has `ch` after `before`."""
        if ch == " ":
            return before.isdecimal() or (before != "" and before in self.spaced)
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
            for each in self.rules:
                match = each.pattern.match(text, place)
                if match is not None and (said := each.say(match, text[:place])) is not None:
                    yield place - len(before), match.end() - len(before), said
                    place = match.end()
                    break
            else:
                place += 1


NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
END = r"(?![\d.:/]*\d)"  # a number does not go on
CLOCK = r"(?:[01]?\d|2[0-4]):[0-5]\d"
LETTER = r"(?![\d.,]*[A-Za-z])"  # a number is not part of a name: "4K"


def spans(said: SpokenRule, to: str, end: str) -> SpokenRule:
    """From one to another of what a rule says, where `end` is a pattern of either: 9:00-10:30."""

    def say(match: re.Match[str], before: str) -> str | None:
        first, last = (found and said.say(found, before) for found in map(said.pattern.fullmatch, match.groups()))
        return f"{first}{to}{last}" if first and last else None

    return rule(rf"({end})\ ?[-–~]\ ?({end}){END}", say)


def telephone(say: Callable[[str], str], plus: str, comma: str) -> SpokenRule:
    """An international number, whose groups `say` says."""

    def said(match: re.Match[str], _: str) -> str:
        return plus + comma.join(map(say, re.findall(r"\d+", match[0])))

    return rule(rf"\+\d{{1,3}}(?:[\ -]?\d{{1,11}}){{1,4}}{END}", said)


def month_and_day(say: Callable[[int, int], str]) -> SpokenRule:
    """12/25, which is no fraction."""
    pattern = rf"(0?[1-9]|1[0-2])/(1[3-9]|2\d|3[01]|0[1-9]){END}"
    return rule(pattern, lambda match, _: say(int(match[1]), int(match[2])))


def narrowed(text: str) -> str:
    """The text with narrow forms of full-width characters."""
    return text.translate(_NARROW)


def starts_run(ch: str) -> bool:
    """Whether a run starts at this character."""
    return narrowed(ch) in STARTS


def one_of(words: Iterable[str]) -> str:
    """A pattern of any of these words, the longest first."""
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
