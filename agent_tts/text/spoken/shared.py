"""What several languages of Europe share: the day before the month, and words that numbers agree with."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent_tts.text.spoken.table import SpokenRule, Table, any_of, cardinal, ordinal, rule
from agent_tts.text.spoken.vocabulary import Noun

_DAY, _MONTH, _YEAR = r"(?P<day>0?[1-9]|[12]\d|3[01])", r"(?P<month>0?[1-9]|1[0-2])", r"(?P<year>\d{4})"
CLOCK = r"([01]?\d|2[0-4]):([0-5]\d)"


@dataclass(frozen=True)
class DayFirst(Table):
    """A day, a month, a year."""

    separators: str = ""  # of numeric dates
    opens: frozenset[str] = frozenset()  # words that 31/12 is a date after

    def date(self, day: int, month: int, year: int | None, before: str) -> str:
        """The words for a date, after a word."""
        raise NotImplementedError

    def dates(self) -> tuple[SpokenRule, ...]:
        """31/12/2024, with one of the separators, 12/31/2024 where that is certain, 2024-12-31, 31/12/24, and 31/12
        after one of the words `opens`; 3 dic. 2024, 3 de dic.: a month by its first three letters or more, and a point.
        """

        def numeric(match: re.Match[str], before: str) -> str | None:
            year = match.groupdict().get("year")
            if year is None and before not in self.opens:
                return None
            full = None if year is None else int(year) + 2_000 * (len(year) == 2)
            return self.date(int(match["day"]), int(match["month"]), full, before)

        def named(match: re.Match[str], before: str) -> str | None:
            month = self.month(match[2])
            return self.date(int(match[1]), month, int(match[3]) if match[3] else None, before) if month else None

        separator = f"(?P<separator>[{re.escape(self.separators)}])"
        return (
            rule(rf"{_DAY}{separator}{_MONTH}(?P=separator){_YEAR}", numeric),
            rule(rf"{_MONTH}{separator}(?P<day>1[3-9]|2\d|3[01])(?P=separator){_YEAR}", numeric),
            rule(rf"{_YEAR}(?P<separator>[-/.]){_MONTH}(?P=separator){_DAY}", numeric),
            rule(rf"{_DAY}/{_MONTH}(?:/(?P<year>\d\d))?", numeric),
            rule(r"(0?[1-9]|[12]\d|3[01])\ (?:de\ )?([^\W\d_]{3,5})\.(?:\ (?:de\ )?(\d{4}))?", named),
        )


@dataclass(frozen=True)
class Romance(DayFirst):
    """French, Italian, Portuguese, Spanish: a decimal comma, and numbers that agree with the word after them."""

    point: str = ","
    groups: str = ". "
    dots: bool = True
    pairs: bool = True
    first: str = ""  # the first day of a month
    date_join: str = ""  # between the day, the month and the year
    ordinals: str = "(?!)"  # a pattern of what stands behind their numbers
    no_noun: frozenset[str] = frozenset()  # words that a number may stand before, without counting them

    def gender_of(self, noun: str, number: int) -> str | None:
        if noun in self.no_noun:
            return None
        return "f" if self.feminine.fullmatch(noun) and not self.not_feminine.fullmatch(noun) else "m"

    def date(self, day: int, month: int, year: int | None, before: str) -> str:
        said = f"{self.first if day == 1 else cardinal(day, self.code)}{self.date_join}{self.months[month - 1]}"
        return said if year is None else f"{said}{self.date_join}{cardinal(year, self.code)}"

    def after_scale(self, noun: Noun) -> str:
        return f"de {noun.many}"

    def dates(self) -> tuple[SpokenRule, ...]:
        of = re.escape(self.date_join)
        first = rule(rf"1[º°]?{of}({any_of(self.months)})", self._first)
        return (*super().dates(), first, rule(rf"(\d{{1,3}})\.?({self.ordinals})", self._ordinal))

    def _first(self, match: re.Match[str], _: str) -> str:
        return f"{self.first}{self.date_join}{match[1]}"

    def _ordinal(self, match: re.Match[str], _: str) -> str | None:
        said = ordinal(int(match[1]), self.code)
        return re.sub(r"o\b", "a", said) if match[2][-1] in "ªa" else said

    def clock(self, hour: str, minutes: str | None, and_: str, whole: str = "") -> str:
        """A time of the day, `whole` behind an hour without minutes."""
        said = self.integer(int(hour), "f")
        past = int(minutes or 0)
        return f"{said}{and_}{cardinal(past, self.code)}" if past else said + whole
