"""English."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent_tts.text.spoken.table import SpokenRule, Table, any_of, cardinal, full_year, ordinal, roman, rule, say_year
from agent_tts.text.spoken.vocabulary import column

_DAY = r"(?P<day>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?"
_LAST = r"(?:\ ?[-–]\ ?(?P<last>[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?)?"
_YEAR = r"(?:,?\ (?P<year>\d{4}))?"
_HOUR = r"([01]?\d|2[0-4])"


@dataclass(frozen=True)
class English(Table):
    day_first: bool = False  # it is everywhere but in America
    paired: frozenset[str] = frozenset()
    decades: frozenset[str] = frozenset()
    before_year: frozenset[str] = frozenset()
    before_recent_year: frozenset[str] = frozenset()
    monarchs: frozenset[str] = frozenset()
    minutes: tuple[str, ...] = ()
    people: tuple[str, ...] = ()

    def rules(self) -> tuple[SpokenRule, ...]:
        name = rf"(?P<month>{any_of(self.all_months)})\.?"
        return (
            *self.dates(),
            rule(rf"{name}\ {_DAY}{_LAST}{_YEAR}", self._with_name),
            rule(rf"{_DAY}{_LAST}\ {name}{_YEAR}", self._with_name),
            rule(rf"{_HOUR}(?:[:.]([0-5]\d))?(?:\ ?([AaPp])\.?[Mm]\.?)", _clock),
            rule(r"(\d{1,2}):([0-5]\d)", _clock_24),
            rule(r"([IVX]{2,6}|V)(['’]s)?", self._monarch),
            rule(r"(\d+)(?:st|nd|rd|th)", lambda match, _: ordinal(int(match[1])) if len(match[1]) < 7 else None),
            rule(r"[1-9]\d{2,3}", lambda match, before: _pairs(int(match[0])) if before in self.paired else None),
            rule(r"(v?)(\d{1,4}(?:\.\d{1,4}){2,}) | (v)(\d{1,3}(?:\.\d{1,3})?)", _version),
            rule(r"(?:(1)-)?(8\d\d)-([A-Z][A-Z-]{3,})", _vanity),
            rule(r"(?:([Mm]id|[Ee]arly|[Ll]ate)-)?([2-9]0)s", self._decade),
            rule(r"[2-9]11", lambda match, before: " ".join(map(_number, match[0])) if before == "call" else None),
            rule(r"([3-8])'(\d|1[01])", lambda match, _: f"{_number(match[1])} foot {_number(match[2])}"),
            rule(rf"(\d+)m\ ({any_of(self.minutes)})", lambda m, _: f"{self.counted(m[1], self.units['min'])} {m[2]}"),
            rule(rf"({self.number})([kmMbB])\ ({any_of(self.people)})", self._people),
            rule(r"(\d{4})(s?)", self._year_alone),
        )

    def date(self, day: int, month: int, year: int | None, before: str, last: int = 0) -> str:
        the = "the " if self.day_first and before != "the" else ""
        days, name = " to ".join(the + ordinal(each) for each in (day, last) if each), self.months[month - 1]
        said = f"{days} of {name}" if self.day_first else f"{name} {days}"
        return said if year is None else f"{said}, {say_year(year)}"

    def opens_date(self, written: str, before: str) -> bool:
        return super().opens_date(written, before) and (before == "on" or written not in column("en", "fraction"))

    def _with_name(self, match: re.Match[str], before: str) -> str:
        month, year = self.month(match["month"]), full_year(match["year"])
        return self.date(int(match["day"]), month, year, before, int(match["last"] or 0))

    def _decade(self, match: re.Match[str], before: str) -> str | None:
        said = f"{_number(match[2])[:-1]}ies"
        return f"{match[1]} {said}" if match[1] else said if before in self.decades else None

    def _people(self, match: re.Match[str], _: str) -> str:
        return f"{self.counted(match[1], self.scales[match[2]])} {match[3]}"

    def _monarch(self, match: re.Match[str], before: str) -> str | None:
        number = roman(match[1]) if before in self.monarchs else 0
        return f"the {ordinal(number)}{match[2] or ''}" if number else None

    def _year_alone(self, match: re.Match[str], before: str) -> str | None:
        written, plural = match.groups()
        word = before.rstrip(".,")
        recent = written >= "1900" and (before in self.before_recent_year or re.fullmatch(r"(?:19|20)\d\d,", before))
        is_year = plural or recent or word in self.before_year or word.capitalize() in self.all_months
        if not is_year or not "1100" <= written < "2100":
            return None
        said = say_year(int(written))
        return f"{said[:-1]}ies" if plural and said.endswith("y") else said + plural


def _number(written: str) -> str:
    return cardinal(int(written))


def _version(match: re.Match[str], _: str) -> str:
    said = " point ".join(map(_number, (match[2] or match[4]).split(".")))
    return f"version {said}" if match[1] or match[3] else said


def _vanity(match: re.Match[str], _: str) -> str:
    """1-800-FLOWERS."""
    said = [*filter(None, (match[1] and "one", say_year(int(match[2]))))]
    return f"{' '.join(said)} {match[3].replace('-', ' ')}"


def _pairs(number: int) -> str:
    """Three or four digits in pairs: twelve thirty four, two oh four, ten oh five."""
    return f"{cardinal(number // 100)} oh {cardinal(number % 10)}" if 0 < number % 1_000 < 10 else say_year(number)


def _clock(match: re.Match[str], _: str) -> str | None:
    minutes = f" {_minutes(match[2])}" if match[2] and match[2] != "00" else ""
    return f"{_number(match[1])}{minutes} {match[3].upper()}M" if 0 < int(match[1]) <= 12 else None


def _clock_24(match: re.Match[str], _: str) -> str:
    """Also 45:30, no time of the day: a duration, a ratio and a split are said alike."""
    hour, minutes = match.groups()
    if minutes != "00":
        return f"{_number(hour)} {_minutes(minutes)}"
    what = "minutes" if int(hour) > 24 else "o'clock" if 0 < int(hour) <= 12 else "hundred"
    return f"{_number(hour)} {what}"


def _minutes(written: str) -> str:
    return f"oh {_number(written)}" if written[0] == "0" else _number(written)
