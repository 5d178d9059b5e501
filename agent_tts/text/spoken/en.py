"""English."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent_tts.text.spoken.table import SpokenRule, Table, any_of, cardinal, ordinal, roman, rule
from agent_tts.text.spoken.vocabulary import column

_DAY = r"(?P<day>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?"
_LAST = r"(?:\ ?[-–]\ ?(?P<last>[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?)?"
_YEAR = r"(?:,?\ (?P<year>\d{4}))?"
_HOUR = r"([01]?\d|2[0-4])"


@dataclass(frozen=True)
class English(Table):
    """Its words are those of `languages.toml`, which says what they are."""

    day_first: bool = False  # as everywhere but in America: 31/12 is the thirty first of December
    paired: frozenset[str] = frozenset()
    decades: frozenset[str] = frozenset()
    before_year: frozenset[str] = frozenset()
    before_recent_year: frozenset[str] = frozenset()
    monarchs: frozenset[str] = frozenset()
    minutes: tuple[str, ...] = ()
    people: tuple[str, ...] = ()

    def rules(self) -> tuple[SpokenRule, ...]:
        day, month = (r"(?P<day>0?[1-9]|[12]\d|3[01])", r"(?P<month>0?[1-9]|1[0-2])")
        first, second = (day, month) if self.day_first else (month, day)
        name = rf"(?P<month>{any_of(self.all_months)})\.?"
        return (
            rule(r"(?P<year>\d{4})([-/])(?P<month>0\d|1[0-2])\2(?P<day>[0-2]\d|3[01])", self._date),
            *(
                rule(rf"{one}(?P<separator>[/-]){other}(?P=separator)(?P<year>\d{{4}}|(?<=/)\d\d)", self._date)
                for one, other in ((first, second), (second, first))
            ),
            rule(rf"{first}/{second}", self._date_on),
            rule(rf"{name}\ {_DAY}{_LAST}{_YEAR}", self._date),
            rule(rf"{_DAY}{_LAST}\ {name}{_YEAR}", self._date),
            rule(rf"{_HOUR}(?:[:.]([0-5]\d))?(?:\ ?([AaPp])\.?[Mm]\.?)", _clock),
            rule(rf"{_HOUR}:([0-5]\d)", _clock_24),
            rule(r"(2[5-9]|[3-9]\d):([0-5]\d)", _minutes_seconds),
            rule(r"([IVX]{2,6}|V)(['’]s)?", self._monarch),
            rule(r"(\d+)(?:st|nd|rd|th)", lambda match, _: ordinal(int(match[1])) if len(match[1]) < 7 else None),
            rule(r"(\d{4})[-–](\d{4})", _years),
            rule(r"[1-9]\d{2,3}", lambda match, before: _pairs(int(match[0])) if before in self.paired else None),
            rule(r"(v?)(\d{1,4}(?:\.\d{1,4}){2,}) | (v)(\d{1,3}(?:\.\d{1,3})?)", _version),
            rule(r"(?:(1)-)?(8\d\d)-([A-Z][A-Z-]{3,})", _vanity),
            rule(r"([Mm]id|[Ee]arly|[Ll]ate)-([2-9]0)s", lambda match, _: f"{match[1]} {_number(match[2])[:-1]}ies"),
            rule(
                r"([2-9]0)s", lambda match, before: f"{_number(match[1])[:-1]}ies" if before in self.decades else None
            ),
            rule(r"[2-9]11", lambda match, before: " ".join(map(_number, match[0])) if before == "call" else None),
            rule(r"([3-8])'(\d|1[01])", lambda match, _: f"{_number(match[1])} foot {_number(match[2])}"),
            rule(rf"(\d+)m\ ({any_of(self.minutes)})", self._minutes_left),
            rule(rf"({self.number})([kmMbB])\ ({any_of(self.people)})", self._people),
            rule(r"(\d{4})(s?)", self._year_alone),
        )

    def _date(self, match: re.Match[str], before: str) -> str:
        month, given = match["month"], match.groupdict()
        name = self.months[(int(month) if month.isdecimal() else self.month(month)) - 1]
        the = "the " if self.day_first and before != "the" else ""
        said = " to ".join(the + ordinal(int(day)) for day in (given["day"], given.get("last")) if day)
        said = f"{said} of {name}" if self.day_first else f"{name} {said}"
        return said if given.get("year") is None else f"{said}, {_year(given['year'])}"

    def _date_on(self, match: re.Match[str], before: str) -> str | None:
        if match[0] in column("en", "fraction") and before != "on":
            return None
        return self._date(match, before) if before in ("on", "by", "until", "since", "before", "after") else None

    def _minutes_left(self, match: re.Match[str], _: str) -> str:
        return f"{self.counted(match[1], self.units['min'])} {match[2]}"

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
        said = _year(written)
        return f"{said[:-1]}ies" if plural and said.endswith("y") else said + plural


def _number(written: str) -> str:
    return cardinal(int(written))


def _version(match: re.Match[str], _: str) -> str:
    said = " point ".join(map(_number, (match[2] or match[4]).split(".")))
    return f"version {said}" if match[1] or match[3] else said


def _vanity(match: re.Match[str], _: str) -> str:
    """1-800-FLOWERS."""
    said = [*filter(None, (match[1] and "one", _pairs(int(match[2]))))]
    return f"{' '.join(said)} {match[3].replace('-', ' ')}"


def _year(written: str) -> str:
    number = int(written)
    if len(written) == 2:
        number += 2_000 if number < 70 else 1_900
    return _pairs(number) if 1_100 <= number < 2_000 or 2_010 <= number < 2_100 else cardinal(number)


def _pairs(number: int) -> str:
    """Three or four digits in pairs: twelve thirty four, two oh four, fifteen hundred."""
    hundreds, rest = divmod(number, 100)
    if not rest:
        return f"{cardinal(hundreds)} hundred"
    return f"{cardinal(hundreds)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def _clock(match: re.Match[str], _: str) -> str | None:
    minutes = f" {_minutes(match[2])}" if match[2] and match[2] != "00" else ""
    return f"{_number(match[1])}{minutes} {match[3].upper()}M" if 0 < int(match[1]) <= 12 else None


def _clock_24(match: re.Match[str], _: str) -> str:
    hour, minutes = match.groups()
    if minutes != "00":
        return f"{_number(hour)} {_minutes(minutes)}"
    return f"{_number(hour)} o'clock" if 0 < int(hour) <= 12 else f"{_number(hour)} hundred"


def _minutes_seconds(match: re.Match[str], _: str) -> str:
    """45:30, no time of the day. A duration, a ratio and a split are said alike."""
    first, second = match.groups()
    return f"{_number(first)} {_minutes(second)}" if second != "00" else f"{_number(first)} minutes"


def _minutes(written: str) -> str:
    return f"oh {_number(written)}" if written[0] == "0" else _number(written)


def _years(match: re.Match[str], _: str) -> str | None:
    first, last = match.groups()
    return f"{_year(first)} to {_year(last)}" if "1100" <= first < last < "2100" else None
