"""English."""

from __future__ import annotations

import re

from agent_tts.text.spoken.table import Noun, Table, cardinal, ordinal, rule

MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September", "October"),
    *("November", "December"),
)
_SHORT = {month[:3]: month for month in MONTHS} | {"Sept": "September"}
_MONTH = f"(?P<month>{'|'.join((*MONTHS, *_SHORT))})"
_DAY = r"(?P<day>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?"
_YEAR = r"(?:,?\ (?P<year>\d{4}))?"
_TOP_LEVEL = "com|org|net|edu|gov|io|ai|dev|app|info|biz|co|uk|us|ca|au|de|fr|es|it|nl|eu|tv|me"

# After these, four digits are a year.
_BEFORE_YEAR = {"in", "since", "by", "from", "until", "till", "before", "after", "of", "during", "year", "to"}

_FRACTIONS = {
    "1/2": "one half",
    "1/3": "one third",
    "2/3": "two thirds",
    "1/4": "one quarter",
    "3/4": "three quarters",
    "½": "one half",
    "¼": "one quarter",
    "¾": "three quarters",
    "24/7": "twenty four seven",
}

# Spelled although they have a vowel; abbreviations without a vowel always are.
# fmt: off
_SPELLED = frozenset((
    "AC", "AI", "API", "APIs", "ATM", "CEO", "CEOs", "CIA", "CPU", "CPUs", "DIY", "DNA", "EU", "FAQ", "FAQs", "FBI",
    "GPU", "GPUs", "HIV", "ID", "IDs", "IP", "IQ", "ISO", "IoT", "NBA", "NGO", "OK", "QA", "RPA", "SEO", "SUV", "UFO",
    "UI", "UK", "UN", "URL", "URLs", "USA", "USB", "UX", "VIP",
))
# fmt: on

_ADDRESS_SIGNS = {".": "dot", "-": "dash", "_": "underscore", "/": "slash", "+": "plus", "@": "at", ":": "colon"}
_ADDRESS_SIGNS |= {"~": "tilde", "?": "question mark", "=": "equals", "&": "and", "#": "hash", "%": "percent"}


def table() -> Table:
    """See `Table`."""
    return Table(
        "en",
        percent=Noun("percent", "percent"),
        currencies={
            **dict.fromkeys(("$", "US$", "USD"), (Noun("dollar", "dollars"), Noun("cent", "cents"))),
            **dict.fromkeys(("€", "EUR"), (Noun("euro", "euros"), Noun("cent", "cents"))),
            **dict.fromkeys(("£", "GBP"), (Noun("pound", "pounds"), Noun("penny", "pence"))),
            **dict.fromkeys(("¥", "JPY"), (Noun("yen", "yen"), None)),
            **dict.fromkeys(("₹", "INR"), (Noun("rupee", "rupees"), Noun("paisa", "paise"))),
        },
        hundredths_join=" and ",
        scales={word: Noun(word, word) for word in ("hundred", "thousand", "million", "billion", "trillion")},
        units=_units(),
        words={
            "Dr.": "Doctor",
            "Mr.": "Mister",
            "Mrs.": "Missus",
            "Prof.": "Professor",
            "vs.": "versus",
            "e.g.": "for example",
            "i.e.": "that is",
            "approx.": "approximately",
            "&": "and",
            "@": "at",
        },
        rules=(
            rule(r"([\w.+-]+@[\w-]+(?:\.[\w-]+)+)", _address),
            rule(rf"(?:https?://)?(?:www\.)?((?:[\w-]+\.)+(?:{_TOP_LEVEL})(?::\d+)?(?:/[^\s]*?)?)/?", _address),
            rule(r"https?://(?:www\.)?(\S+?)/?", _address),
            rule(
                r"\+\d{1,3}(?:[\ .-]?\(?\d{1,4}\)?){1,5} | (?:1[\ .-])?\(?\d{3}\)?[\ .-]\d{3}[\ .-]\d{4} | \d{3}-\d{4}",
                _phone,
            ),
            rule(r"(?P<year>\d{4})-(?P<month>0\d|1[0-2])-(?P<day>[0-2]\d|3[01])", _date),
            rule(r"(?P<month>0?[1-9]|1[0-2])/(?P<day>0?[1-9]|[12]\d|3[01])/(?P<year>\d{4}|\d\d)", _date),
            rule(rf"{_MONTH}\.?\ {_DAY}{_YEAR}", _date),
            rule(rf"{_DAY}\ {_MONTH}\.?{_YEAR}", _date),
            rule(r"([01]?\d|2[0-4])(?::([0-5]\d))?(?:\ ?([AaPp])\.?[Mm]\.?)", _clock),
            rule(r"([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?", _clock_24),
            rule(r"(\d+)(?:st|nd|rd|th)", lambda match, _: ordinal(int(match[1])) if len(match[1]) < 7 else None),
            rule(r"½|¼|¾|\d+/\d+", lambda match, _: _FRACTIONS.get(match[0])),
            rule(r"(?:No\.|\#)\ ?(\d{1,6})", lambda match, _: f"number {cardinal(int(match[1]))}"),
            rule(r"~(\d{1,9})", lambda match, _: f"about {cardinal(int(match[1]))}"),
            rule(r"(\d{1,4})[-–](\d{1,4})", _range),
            rule(r"(\d{1,4}(?:\.\d{1,4}){2,})", lambda match, _: " point ".join(map(_number, match[1].split(".")))),
            rule(r"(\d{4})(s?)", _year_alone),
            rule(r"[A-Z]{2,6}s?|IoT", _spelled),
        ),
        months=(*MONTHS, *_SHORT),
        openers=frozenset(("No.", "#", "USD", "EUR", "GBP")),
    )


def _units() -> dict[str, Noun]:
    names = {
        "km/h": "kilometer",
        "mph": "mile",
        "kph": "kilometer",
        "km": "kilometer",
        "m": "meter",
        "cm": "centimeter",
        "mm": "millimeter",
        "mi": "mile",
        "yd": "yard",
        "kg": "kilogram",
        "g": "gram",
        "mg": "milligram",
        "lb": "pound",
        "lbs": "pound",
        "oz": "ounce",
        "l": "liter",
        "L": "liter",
        "ml": "milliliter",
        "mL": "milliliter",
        "gal": "gallon",
        "ms": "millisecond",
        "sec": "second",
        "min": "minute",
        "mins": "minute",
        "hr": "hour",
        "hrs": "hour",
        "KB": "kilobyte",
        "MB": "megabyte",
        "GB": "gigabyte",
        "TB": "terabyte",
        "Mbps": "megabit",
        "Gbps": "gigabit",
        "W": "watt",
        "kW": "kilowatt",
        "MW": "megawatt",
        "kWh": "kilowatt hour",
        "V": "volt",
        "mAh": "milliamp hour",
        "dB": "decibel",
        "px": "pixel",
    }
    per = {"km/h": " per hour", "mph": " per hour", "kph": " per hour", "Mbps": " per second", "Gbps": " per second"}
    found = {unit: Noun(name + per.get(unit, ""), f"{name}s{per.get(unit, '')}") for unit, name in names.items()}
    found |= {unit: Noun(name, name) for unit, name in (("Hz", "hertz"), ("kHz", "kilohertz"), ("MHz", "megahertz"))}
    found |= {"GHz": Noun("gigahertz", "gigahertz"), "ft": Noun("foot", "feet"), "in.": Noun("inch", "inches")}
    found |= {"°": Noun("degree", "degrees"), "°C": Noun("degree Celsius", "degrees Celsius")}
    return found | {"°F": Noun("degree Fahrenheit", "degrees Fahrenheit")}


def _number(written: str) -> str:
    return cardinal(int(written))


def _address(match: re.Match[str], _: str) -> str:
    said = "".join(f" {_ADDRESS_SIGNS[char]} " if char in _ADDRESS_SIGNS else char for char in match[1])
    return " ".join(said.split())


def _phone(match: re.Match[str], _: str) -> str:
    groups = re.findall(r"\d+", match[0])
    said = ", ".join(" ".join(_number(digit) for digit in group) for group in groups)
    return f"plus {said}" if match[0][0] == "+" else said


def _date(match: re.Match[str], _: str) -> str:
    month, year = match["month"], match["year"]
    name = MONTHS[int(month) - 1] if month.isdecimal() else _SHORT.get(month, month)
    said = f"{name} {ordinal(int(match['day']))}"
    return said if year is None else f"{said}, {_year(year)}"


def _year(written: str) -> str:
    number = int(written)
    if len(written) == 2:
        number += 2_000 if number < 70 else 1_900
    century, rest = divmod(number, 100)
    if not 1_100 <= number < 2_100 or 2_000 <= number < 2_010:
        return cardinal(number)
    if not rest:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def _year_alone(match: re.Match[str], before: str) -> str | None:
    written, plural = match.groups()
    if not "1100" <= written < "2100" or not (plural or before in _BEFORE_YEAR):
        return None
    if not plural:
        return _year(written)
    said = _year(written)
    return f"{said[:-1]}ies" if said.endswith("y") else f"{said}s"


def _clock(match: re.Match[str], _: str) -> str | None:
    minutes = f" {_minutes(match[2])}" if match[2] and match[2] != "00" else ""
    return f"{_number(match[1])}{minutes} {match[3].upper()}M" if 0 < int(match[1]) <= 12 else None


def _clock_24(match: re.Match[str], _: str) -> str:
    hour, minutes, seconds = match.groups()
    if seconds is not None:
        return f"{_number(hour)} {_minutes(minutes)} and {_number(seconds)} seconds"
    if minutes != "00":
        return f"{_number(hour)} {_minutes(minutes)}"
    return f"{_number(hour)} o'clock" if 0 < int(hour) <= 12 else f"{_number(hour)} hundred"


def _minutes(written: str) -> str:
    return f"oh {_number(written)}" if written[0] == "0" else _number(written)


def _range(match: re.Match[str], _: str) -> str | None:
    first, last = match.groups()
    if any(len(number) > 1 and number[0] == "0" for number in (first, last)) or int(first) >= int(last):
        return None
    years = len(first) == 4 and len(last) == 4 and first >= "1100" and last < "2100"
    say = _year if years else _number
    return f"{say(first)} to {say(last)}"


def _spelled(match: re.Match[str], _: str) -> str | None:
    written = match[0]
    letters = written.removesuffix("s")
    if written not in _SPELLED and (re.search("[AEIOUY]", letters) or not 2 <= len(letters) <= 5):
        return None
    return " ".join(letters.upper()) + ("s" if written.endswith("s") else "")
