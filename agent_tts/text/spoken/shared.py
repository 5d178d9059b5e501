"""Rules that several languages of Europe share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent_tts.text.spoken.table import Money, Noun, SpokenRule, Table, rule

_DAY, _MONTH, _YEAR = r"(?P<day>0?[1-9]|[12]\d|3[01])", r"(?P<month>0?[1-9]|1[0-2])", r"(?P<year>\d{4})"

SayDate = Callable[[int, int, int | None, str], str]
"""The words for a day, a month and a year, after a word."""


def words(given: str) -> list[str]:
    return given.split()


def invariable(names: Mapping[str, str], gender: str = "m") -> dict[str, Noun]:
    """Nouns that are the same in the plural."""
    return {sign: Noun(name, name, gender) for sign, name in names.items()}


def with_s(word: str) -> str:
    return f"{word}s"


def regular(names: Mapping[str, str], gender: str = "m", plural: Callable[[str], str] = with_s) -> dict[str, Noun]:
    """Nouns whose plural follows a rule, which applies to their first word."""
    found = {}
    for sign, name in names.items():
        first, space, rest = name.partition(" ")
        found[sign] = Noun(name, plural(first) + space + rest, gender)
    return found


def fractions(*names: str) -> dict[str, str]:
    """The names of a half, a third, two thirds, a quarter and three quarters; of the last ones none may be given."""
    return dict(zip(("1/2", "1/3", "2/3", "1/4", "3/4"), names, strict=False))


def signs(*names: str) -> dict[str, str]:
    """The names of what stands in addresses: a point, a hyphen, an underscore, a slash, a plus, an at sign."""
    return dict(zip((".", "-", "_", "/", "+", "@"), names, strict=True))


def money(**nouns: tuple[Noun, Noun | None]) -> dict[str, Money]:
    """Currencies by their signs and codes, such as `usd`; a cent has a sign, too."""
    signs = {
        "usd": ("$", "US$", "USD"),
        "eur": ("€", "EUR"),
        "gbp": ("£", "GBP"),
        "jpy": ("¥", "JPY"),
        "brl": ("R$", "BRL"),
        "inr": ("₹", "INR", "Rs.", "Rs"),
        "aud": ("A$", "AU$", "AUD"),
        "cad": ("C$", "CA$", "CAD"),
        "rub": ("₽", "RUB", "руб.", "руб"),
    }
    found: dict[str, Money] = {sign: both for name, both in nouns.items() for sign in signs[name]}
    return found | ({"¢": (nouns["usd"][1], None)} if nouns["usd"][1] else {})


def numeric_dates(separators: str, say: SayDate, opens: str = "") -> tuple[SpokenRule, ...]:
    """31/12/2024, with one of the separators, 2024-12-31, 31/12/24, and 31/12 after one of the words `opens`."""

    def said(match: re.Match[str], before: str) -> str | None:
        year = match.groupdict().get("year")
        if year is None and before not in opens.split():
            return None
        full = None if year is None else int(year) + 2_000 * (len(year) == 2)
        return say(int(match["day"]), int(match["month"]), full, before)

    separator = f"(?P<separator>[{re.escape(separators)}])"
    return (
        rule(rf"{_DAY}{separator}{_MONTH}(?P=separator){_YEAR}", said),
        rule(rf"{_YEAR}-{_MONTH}-{_DAY}", said),
        rule(rf"{_DAY}/{_MONTH}(?:/(?P<year>\d\d))?", said),
    )


@dataclass(frozen=True)
class Romance(Table):
    """Spanish, Italian, Portuguese: a decimal comma, and numbers that agree with the word after them."""

    point: str = ","
    groups: str = ". "
    dots: bool = True
    pairs: bool = True
    to: str = " a "
    feminine: re.Pattern[str] = re.compile("(?!)")  # words that are, by their endings
    not_feminine: re.Pattern[str] = re.compile("(?!)")  # and those that only end so
    no_noun: frozenset[str] = frozenset()  # words that a number may stand before, without counting them

    def gender_of(self, noun: str, number: int) -> str | None:
        if noun in self.no_noun:
            return None
        return "f" if self.feminine.fullmatch(noun) and not self.not_feminine.fullmatch(noun) else "m"
