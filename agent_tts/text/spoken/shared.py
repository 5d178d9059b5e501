"""Rules that several languages of Europe share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent_tts.text.spoken.table import SpokenRule, Table, cardinal, rule

_DAY, _MONTH, _YEAR = r"(?P<day>0?[1-9]|[12]\d|3[01])", r"(?P<month>0?[1-9]|1[0-2])", r"(?P<year>\d{4})"

SayDate = Callable[[int, int, int | None, str], str]
"""The words for a day, a month and a year, after a word."""


def words(given: str) -> list[str]:
    return given.split()


def day_first(language: str, months: Sequence[str], first: str, of: str) -> SayDate:
    """A day, which is a number but for the `first`, a month and a year, with `of` between them."""

    def say(day: int, month: int, year: int | None, _: str) -> str:
        said = f"{first if day == 1 else cardinal(day, language)}{of}{months[month - 1]}"
        return said if year is None else f"{said}{of}{cardinal(year, language)}"

    return say


def numeric_dates(separators: str, say: SayDate, opens: str = "") -> tuple[SpokenRule, ...]:
    """31/12/2024, with one of the separators, 12/31/2024 where that is certain, 2024-12-31, 31/12/24, and 31/12 after
    one of the words `opens`.
    """

    def said(match: re.Match[str], before: str) -> str | None:
        year = match.groupdict().get("year")
        if year is None and before not in opens.split():
            return None
        full = None if year is None else int(year) + 2_000 * (len(year) == 2)
        return say(int(match["day"]), int(match["month"]), full, before)

    separator = f"(?P<separator>[{re.escape(separators)}])"
    return (
        rule(rf"{_DAY}{separator}{_MONTH}(?P=separator){_YEAR}", said),
        rule(rf"{_MONTH}{separator}(?P<day>1[3-9]|2\d|3[01])(?P=separator){_YEAR}", said),
        rule(rf"{_YEAR}(?P<separator>[-/.]){_MONTH}(?P=separator){_DAY}", said),
        rule(rf"{_DAY}/{_MONTH}(?:/(?P<year>\d\d))?", said),
    )


def short_months(months: Sequence[str], say: SayDate) -> SpokenRule:
    """3 dic. 2024, 3 de dic., 3 дек.: a month by its first three letters or more, and a point."""

    def said(match: re.Match[str], before: str) -> str | None:
        found = [number for number, month in enumerate(months, 1) if month.startswith(match[2].lower())]
        return say(int(match[1]), found[0], int(match[3]) if match[3] else None, before) if found else None

    return rule(r"(0?[1-9]|[12]\d|3[01])\ (?:de\ )?([^\W\d_]{3,5})\.(?:\ (?:de\ )?(\d{4}))?", said)


@dataclass(frozen=True)
class Romance(Table):
    """Spanish, Italian, Portuguese: a decimal comma, and numbers that agree with the word after them."""

    point: str = ","
    groups: str = ". "
    dots: bool = True
    pairs: bool = True
    feminine: re.Pattern[str] = re.compile("(?!)")  # words that are, by their endings
    not_feminine: re.Pattern[str] = re.compile("(?!)")  # and those that only end so
    no_noun: frozenset[str] = frozenset()  # words that a number may stand before, without counting them

    def gender_of(self, noun: str, number: int) -> str | None:
        if noun in self.no_noun:
            return None
        return "f" if self.feminine.fullmatch(noun) and not self.not_feminine.fullmatch(noun) else "m"
