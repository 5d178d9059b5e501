"""German."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from agent_tts.text.spoken.table import SpokenRule, Table, any_of, cardinal, full_year, ordinal, rule, say_year
from agent_tts.text.spoken.vocabulary import Noun


@dataclass(frozen=True)
class German(Table):
    dative: bool = False  # this is the table behind one of `datives`
    datives: frozenset[str] = frozenset()
    nominatives: frozenset[str] = frozenset()
    dative_ordinals: frozenset[str] = frozenset()
    before_year: frozenset[str] = frozenset()
    ordered: Mapping[str, str] = field(default_factory=dict)

    def after(self, before: str) -> Table:
        return _dative() if before in self.datives else self

    def half(self, noun: str, before: str) -> str | None:
        """Behind a verb it is most often what is taken or given: "Nehmen Sie einen halben Liter"."""
        gender = self.gender_of(noun, 1) or ""
        if self.dative:
            return f"{self.integer(1, gender)} halben {noun}"
        given = gender == "m" and before[-1:].isalpha() and before not in self.nominatives
        return f"einen halben {noun}" if given else super().half(noun, before)

    def part(self, each: str) -> Noun:
        return Noun(f"{each}l".capitalize(), f"{each}l".capitalize())

    def rules(self) -> tuple[SpokenRule, ...]:
        months = any_of(self.all_months)
        return (
            rule(rf"(\d{{1,2}})\.\ ?({months})\.?(?:\ (\d{{4}}))?", self._named_date),
            rule(r"(\d{1,2})\.\ ?(\d{1,2})\.(?:\ ?(\d{4}|\d\d))?", self._pointed_date),
            *self.dates(),
            rule(r"([01]?\d|2[0-4])(?=:|.*Uhr)(?:[:.]([0-5]\d))?(?:\ Uhr)?", _clock),
            rule(r"(\d{1,2})\.\ ([^\W\d_]{2,})", self._ordinal),
            rule(rf"(\d{{1,2}})\.[-–](\d{{1,2}})\.\ ({months})", self._days_of_month),
            rule(r"(1[1-9]\d\d|[2-9]0)(?:(er)(-[A-Z]\w+)?)?", self._year_alone),
            rule(r"(\d[\d.]*),[-–]{1,2}(?:\ ?€)?", lambda match, _: f"{self.say_number(match[1])} Euro"),
        )

    def date(self, day: int, month: int, year: int | None, before: str) -> str:
        said = f"{self._ordered(day, before)} {self.months[month - 1]}"
        return said if year is None else f"{said} {say_year(year, 'de')}"

    def _ordered(self, number: int, before: str) -> str:
        """An ordinal: "am dritten", "der dritte", "dritter"."""
        said = ordinal(number, "de")
        if before in self.dative_ordinals:
            return f"{said}n"
        return said if before in ("der", "die", "das") else f"{said}r"

    def _pointed_date(self, match: re.Match[str], before: str) -> str | None:
        day, month = int(match[1]), int(match[2])
        certain = len(match[3] or "") == 4 or before in self.dative_ordinals or self._is_day(before)
        if not certain or not 0 < day <= 31 or not 0 < month <= 12:
            return None
        return self.date(day, month, full_year(match[3]), before)

    def _ordinal(self, match: re.Match[str], before: str) -> str | None:
        """After an article; otherwise the point may end a sentence, or number a list, but not before some nouns."""
        if before not in (*self.dative_ordinals, "der", "die", "das"):
            ending = self.ordered.get(match[2])
            return None if ending is None else f"{ordinal(int(match[1]), 'de')}{ending} {match[2]}"
        return f"{self._ordered(int(match[1]), before)} {match[2]}"

    def _days_of_month(self, match: re.Match[str], before: str) -> str:
        last = self.date(int(match[2]), self.month(match[3]), None, "bis")
        return f"{self._ordered(int(match[1]), before)} bis {last}"

    def _year_alone(self, match: re.Match[str], before: str) -> str | None:
        if len(match[1]) == 2:
            return f"{cardinal(int(match[1]), 'de')}er{match[3] or ''}" if match[2] else None
        if match[2]:
            return f"{say_year(int(match[1]), 'de')}er{match[3] or ''}"
        word = before.rstrip(".")
        is_year = word in self.before_year or not word or word.capitalize() in self.all_months
        return say_year(int(match[1]), "de") if is_year else None


@cache
def _dative() -> German:
    forms = ("f:^eins$>einer", "m|n:^eins$>einem", *German.of("de").forms)
    return German.of("de", dative=True, forms=forms)


def _clock(match: re.Match[str], _: str) -> str:
    hour, minutes = int(match[1]), int(match[2] or 0)
    said = "ein" if hour == 1 else cardinal(hour, "de")
    return f"{said} Uhr {cardinal(minutes, 'de')}" if minutes else f"{said} Uhr"
