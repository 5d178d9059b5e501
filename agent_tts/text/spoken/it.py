"""Italian."""

from __future__ import annotations

import re

from agent_tts.text.spoken.shared import (
    before_noun,
    fractions,
    invariable,
    money,
    numeric_dates,
    ranges,
    telephone,
    words,
)
from agent_tts.text.spoken.table import Noun, Table, cardinal, ordinal, rule

MONTHS = words("gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre")
_FEMININE = re.compile(r".*(?:a|zione|sione|gione|tà|tù|trice)|notte|parte|mano|volta|classe|chiave")
_NOT_FEMININE = re.compile(r".*(?:ema|amma|oma)|pianeta")
_NO_NOUN = {
    *words("e o a ad al di del della da in con su per tra fra che è il lo la i gli le un una non si come più ma")
}

# fmt: off
_UNITS = {
    "Hz": "hertz", "kHz": "kilohertz", "MHz": "megahertz", "GHz": "gigahertz", "W": "watt", "kW": "chilowatt",
    "kWh": "chilowattora", "V": "volt", "KB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte",
    "dB": "decibel",
}
# fmt: on


class _Italian(Table):
    def integer(self, number: int, gender: str = "") -> str:
        if number == 1 and gender:
            return "una" if gender == "f" else "un"
        return super().integer(number, gender)

    def after_scale(self, noun: Noun) -> str:
        return f"di {noun.many}"


def table() -> Table:
    """See `Table`."""
    bare = _Italian("it", point=",", groups=". ", point_word="virgola", dots=True)
    metres = {"km": "chilometr", "m": "metr", "cm": "centimetr", "mm": "millimetr"}
    litres = {"l": "litr", "L": "litr", "ml": "millilitr"}
    grams = {"kg": "chil", "g": "gramm", "mg": "milligramm", "min": "minut", "s": "second"}
    return _Italian(
        "it",
        point=",",
        groups=". ",
        point_word="virgola",
        minus="meno",
        dots=True,
        percent=Noun("per cento", "per cento", ""),
        currencies=money(
            eur=(Noun("euro", "euro"), Noun("centesimo", "centesimi")),
            usd=(Noun("dollaro", "dollari"), Noun("centesimo", "centesimi")),
            gbp=(Noun("sterlina", "sterline", "f"), Noun("penny", "pence")),
            jpy=(Noun("yen", "yen"), None),
        ),
        hundredths_join=" e ",
        scales={
            **{word: Noun(word, word) for word in ("milione", "milioni", "miliardo", "miliardi")},
            "mln": Noun("milione", "milioni"),
            "mld": Noun("miliardo", "miliardi"),
        },
        units={unit: Noun(f"{stem}o", f"{stem}i") for unit, stem in (metres | litres | grams).items()}
        | invariable(_UNITS)
        | {
            "km/h": Noun("chilometro all'ora", "chilometri all'ora"),
            "m/s": Noun("metro al secondo", "metri al secondo"),
            "m²": Noun("metro quadrato", "metri quadrati"),
            "km²": Noun("chilometro quadrato", "chilometri quadrati"),
            "°C": Noun("grado Celsius", "gradi Celsius"),
            "°F": Noun("grado Fahrenheit", "gradi Fahrenheit"),
            "°": Noun("grado", "gradi"),
            "t": Noun("tonnellata", "tonnellate", "f"),
            "h": Noun("ora", "ore", "f"),
        },
        words={"Sig.": "signor", "Dott.": "dottor", "Prof.": "professor", "ecc.": "eccetera", "&": "e"},
        rules=(
            telephone(bare),
            *numeric_dates("/.-", _date),
            rule(r"([01]?\d|2[0-4]):([0-5]\d)", lambda match, _: _clock(match)),
            rule(
                r"([01]?\d|2[0-4])\.([0-5]\d)",
                lambda match, before: _clock(match) if before in ("ore", "alle", "dalle", "all'") else None,
            ),
            rule(r"(\d{1,3})(º|°|ª)", _ordinal),
            fractions(
                {"1/2": "un mezzo", "1/3": "un terzo", "2/3": "due terzi", "1/4": "un quarto", "3/4": "tre quarti"}
            ),
            ranges(bare, "a"),
        ),
        last_rules=(before_noun(bare, "1", _gender),),
    )


def _gender(noun: str) -> str | None:
    if noun in _NO_NOUN:
        return None
    return "f" if _FEMININE.fullmatch(noun) and not _NOT_FEMININE.fullmatch(noun) else "m"


def _date(day: int, month: int, year: int | None) -> str:
    said = f"{'primo' if day == 1 else cardinal(day, 'it')} {MONTHS[month - 1]}"
    return said if year is None else f"{said} {cardinal(year, 'it')}"


def _clock(match: re.Match[str]) -> str:
    hour, minutes = int(match[1]), int(match[2])
    said = "una" if hour == 1 else cardinal(hour, "it")
    return f"{said} e {cardinal(minutes, 'it')}" if minutes else said


def _ordinal(match: re.Match[str], _: str) -> str:
    said = ordinal(int(match[1]), "it")
    return f"{said[:-1]}a" if match[2] == "ª" else said
