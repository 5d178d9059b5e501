"""English."""

from __future__ import annotations

import re

from agent_tts.text.spoken.shared import words
from agent_tts.text.spoken.table import Table, cardinal, ordinal, roman, rule
from agent_tts.text.spoken.vocabulary import Noun, column

MONTHS = words("January February March April May June July August September October November December")
_SHORT = {month[:3]: month for month in MONTHS} | {"Sept": "September"}
_MONTH = f"(?P<month>{'|'.join((*MONTHS, *_SHORT))})"
_DAY = r"(?P<day>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?"
_YEAR = r"(?:,?\ (?P<year>\d{4}))?"

# After these, four digits are a year.
_BEFORE_YEAR = {"in", "since", "by", "from", "until", "till", "before", "after", "of", "during", "year", "to", "spring"}
_BEFORE_YEAR |= {"summer", "fall", "autumn", "winter", "q1", "q2", "q3", "q4"}
_BEFORE_YEAR |= {month.lower() for month in (*MONTHS, *_SHORT)}
# Those from 1900 on after these, too.
_BEFORE_RECENT_YEAR = {"and", "or", "the", "early", "late"}

# After these, a Roman numeral is a number.
_NUMBERED = frozenset(("war", "chapter", "part", "volume", "section", "act", "phase", "type", "title"))
# After these, it is that of a monarch or pope. One letter may be an initial, but V.
_MONARCHS = {"alexander", "benedict", "catherine", "charles", "edward", "elizabeth", "francis", "frederick", "george"}
_MONARCHS |= {"gregory", "henry", "innocent", "james", "leo", "louis", "napoleon", "nicholas", "paul", "philip", "pius"}
_MONARCHS |= {"ramses", "richard", "umberto", "urban", "wilhelm", "william"}

# A number of these is said digit by digit.
_NUMBERS = (
    "order|account|card|phone|telephone|tracking|reference|booking|confirmation|reservation|case|ticket|policy|customer"
    "|membership|member|serial|routing|invoice|claim|passport|patient"
)

# Words before a decade; behind others "40s" is of seconds.
_DECADES = frozenset(("the", "his", "her", "their", "my", "your", "our", "early", "mid", "late", "and"))

# Three or four digits after these are said in pairs: "room two oh four".
_PAIRED = {"room", "flight", "suite", "gate", "route", "highway", "apartment", "boeing", "rtx"}

_PER = {"mo": "month", "yr": "year", "hr": "hour", "wk": "week", "gal": "gallon", "lb": "pound"}
_PER |= {word: word for word in words("month year hour week day night person user minute item")}
_SCALES = {"thousand": "k K", "million": "M m mn", "billion": "B b bn", "trillion": "T tn"}  # after an amount of money

# fmt: off
_WORDS = {
    "Dr.": "Doctor", "Mr.": "Mister", "Mrs.": "Missus", "Prof.": "Professor", "vs.": "versus", "e.g.": "for example",
    "i.e.": "that is", "approx.": "approximately", "@": "at",
    "appt.": "appointment", "ext.": "extension", "w/": "with", "w/o": "without",
}
# fmt: on


def table(*, day_first: bool = False) -> Table:
    day, month = (r"(?P<day>0?[1-9]|[12]\d|3[01])", r"(?P<month>0?[1-9]|1[0-2])")
    first, second = (day, month) if day_first else (month, day)
    return Table(
        "en",
        scales={
            word: Noun(word, word)
            for word in ("hundred", "thousand", "million", "billion", "trillion", "lakh", "crore")
        }
        | {sign: Noun(word, word) for word, signs in _SCALES.items() for sign in signs.split()},
        abbreviations=_WORDS,
        rules=(
            rule(r"(?P<year>\d{4})([-/])(?P<month>0\d|1[0-2])\2(?P<day>[0-2]\d|3[01])", _date),
            *(
                rule(rf"{one}(?P<separator>[/-]){other}(?P=separator)(?P<year>\d{{4}}|(?<=/)\d\d)", _date)
                for one, other in ((first, second), (second, first))
            ),
            rule(rf"{first}/{second}", _date_on),
            rule(rf"{_MONTH}\.?\ {_DAY}(?:[-–](?P<last>[1-9]|[12]\d|3[01]))?{_YEAR}", _date),
            rule(rf"{_DAY}\ {_MONTH}\.?{_YEAR}", _date),
            rule(r"([01]?\d|2[0-4])(?:[:.]([0-5]\d))?(?:\ ?([AaPp])\.?[Mm]\.?)", _clock),
            rule(r"([01]?\d|2[0-4]):([0-5]\d)", _clock_24),
            rule(r"(2[5-9]|[3-9]\d):([0-5]\d)", _minutes_seconds),
            rule(r"([IVX]{2,6}|V)(['’]s)?", _monarch),
            rule(r"(\d+)(?:st|nd|rd|th)", lambda match, _: ordinal(int(match[1])) if len(match[1]) < 7 else None),
            rule(r"(\d{4})[-–](\d{4})", _years),
            rule(r"[1-9]\d{2,3}", lambda match, before: _pairs(int(match[0])) if before in _PAIRED else None),
            rule(r"(v?)(\d{1,4}(?:\.\d{1,4}){2,}) | (v)(\d{1,3}(?:\.\d{1,3})?)", _version),
            rule(r"(?:(1)-)?(8\d\d)-([A-Z][A-Z-]{3,})", _vanity),
            rule(r"([Mm]id|[Ee]arly|[Ll]ate)-([2-9]0)s", lambda match, _: f"{match[1]} {_number(match[2])[:-1]}ies"),
            rule(r"([2-9]0)s", lambda match, before: f"{_number(match[1])[:-1]}ies" if before in _DECADES else None),
            rule(r"[2-9]11", lambda match, before: " ".join(map(_number, match[0])) if before == "call" else None),
            rule(r"([3-8])'(\d|1[01])", lambda match, _: f"{_number(match[1])} foot {_number(match[2])}"),
            rule(r"(\d{4})(s?)", _year_alone),
        ),
        per={sign: f"per {word}" for sign, word in _PER.items()},
        number_signs=("No.", "#"),
        address_signs={
            ":": "colon",
            "~": "tilde",
            "?": "question mark",
            "=": "equals",
            "&": "and",
            "#": "hash",
            "%": "percent",
        },
        phones=r"(?:1[\ .-])?\(?\d{3}\)?[\ .-]\d{3}[\ .-]\d{4} | \d{3}\ ?-\ ?\d{4}",
        labels=rf"(?:code|pin|passcode|extension|otp|(?:{_NUMBERS}) (?:number|no\.|id))(?: is| was)?"
        r"|(?:number|zip|id) is|end(?:s|ing) (?:in|with)|digits(?: are)?|dial",
        ago="ago",
        part=lambda each: Noun(each, f"{each}s"),
        roman_after=_NUMBERED,
        months=(*MONTHS, *_SHORT),
        dotted=frozenset(("a.m.", "p.m.")),
        openers=frozenset(("USD", "EUR", "GBP")),
    )


def _number(written: str) -> str:
    return cardinal(int(written))


def _version(match: re.Match[str], _: str) -> str:
    said = " point ".join(map(_number, (match[2] or match[4]).split(".")))
    return f"version {said}" if match[1] or match[3] else said


def _vanity(match: re.Match[str], _: str) -> str:
    """1-800-FLOWERS."""
    said = [*filter(None, (match[1] and "one", _pairs(int(match[2]))))]
    return f"{' '.join(said)} {match[3].replace('-', ' ')}"


def _date(match: re.Match[str], _: str) -> str:
    month, year = match["month"], match.groupdict().get("year")
    name = MONTHS[int(month) - 1] if month.isdecimal() else _SHORT.get(month, month)
    said = f"{name} {ordinal(int(match['day']))}"
    if last := match.groupdict().get("last"):
        said += f" to {ordinal(int(last))}"
    return said if year is None else f"{said}, {_year(year)}"


def _date_on(match: re.Match[str], before: str) -> str | None:
    if match[0] in column("en", "fraction") and before != "on":
        return None
    return _date(match, before) if before in ("on", "by", "until", "since", "before", "after") else None


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


def _year_alone(match: re.Match[str], before: str) -> str | None:
    written, plural = match.groups()
    recent = written >= "1900" and (before in _BEFORE_RECENT_YEAR or re.fullmatch(r"(?:19|20)\d\d,", before))
    if not "1100" <= written < "2100" or not (plural or recent or before.rstrip(".,") in _BEFORE_YEAR):
        return None
    if not plural:
        return _year(written)
    said = _year(written)
    return f"{said[:-1]}ies" if said.endswith("y") else f"{said}s"


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


def _monarch(match: re.Match[str], before: str) -> str | None:
    number = roman(match[1]) if before in _MONARCHS else 0
    return f"the {ordinal(number)}{match[2] or ''}" if number else None


def _minutes(written: str) -> str:
    return f"oh {_number(written)}" if written[0] == "0" else _number(written)


def _years(match: re.Match[str], _: str) -> str | None:
    first, last = match.groups()
    return f"{_year(first)} to {_year(last)}" if "1100" <= first < last < "2100" else None
