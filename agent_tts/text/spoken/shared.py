"""Rules that several languages of Europe share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from agent_tts.text.spoken.table import Money, Noun, Rule, Table, rule

_DAY, _MONTH, _YEAR = r"(?P<day>0?[1-9]|[12]\d|3[01])", r"(?P<month>0?[1-9]|1[0-2])", r"(?P<year>\d{4})"

SayDate = Callable[[int, int, int | None], str]
"""The words for a day, a month and a year."""


def words(given: str) -> list[str]:
    """The words of a text."""
    return given.split()


def invariable(names: Mapping[str, str], gender: str = "m") -> dict[str, Noun]:
    """Nouns that are the same in the plural."""
    return {sign: Noun(name, name, gender) for sign, name in names.items()}


def regular(names: Mapping[str, str], plural: Callable[[str], str], gender: str = "m") -> dict[str, Noun]:
    """Nouns whose plural follows a rule, which applies to their first word."""
    found = {}
    for sign, name in names.items():
        first, space, rest = name.partition(" ")
        found[sign] = Noun(name, plural(first) + space + rest, gender)
    return found


def money(**nouns: tuple[Noun, Noun | None]) -> dict[str, Money]:
    """Currencies by their signs and codes, from `usd`, `eur`, `gbp`, `jpy`, `brl`, `rub`."""
    signs = {
        "usd": ("$", "US$", "USD"),
        "eur": ("€", "EUR"),
        "gbp": ("£", "GBP"),
        "jpy": ("¥", "JPY"),
        "brl": ("R$", "BRL"),
        "rub": ("₽", "RUB", "руб.", "руб"),
    }
    return {sign: both for name, both in nouns.items() for sign in signs[name]}


def numeric_dates(separators: str, say: SayDate) -> tuple[Rule, ...]:
    """31/12/2024, with one of the separators, and 2024-12-31."""

    def said(match: re.Match[str], _: str) -> str:
        return say(int(match["day"]), int(match["month"]), int(match["year"]))

    separator = f"(?P<separator>[{re.escape(separators)}])"
    return (
        rule(rf"{_DAY}{separator}{_MONTH}(?P=separator){_YEAR}", said),
        rule(rf"{_YEAR}-{_MONTH}-{_DAY}", said),
    )


def telephone(table: Table, pattern: str = "") -> Rule:
    """An international number, or a pattern of national ones: digit by digit, with a pause between groups."""

    def said(match: re.Match[str], _: str) -> str:
        groups = ", ".join(table.digits(group) for group in re.findall(r"\d+", match[0]))
        return f"plus {groups}" if match[0][0] == "+" else groups

    national = f"|{pattern}" if pattern else ""
    return rule(rf"\+\d{{1,3}}(?:[\ ./-]?\(?\d{{1,8}}\)?){{1,5}}{national}", said)


def ranges(table: Table, word: str) -> Rule:
    """3-5, 2019–2023."""

    def said(match: re.Match[str], _: str) -> str | None:
        first, last = match.groups()
        if any(len(number) > 1 and number[0] == "0" for number in (first, last)) or int(first) >= int(last):
            return None
        return f"{table.integer(int(first))} {word} {table.integer(int(last))}"

    return rule(r"(\d{1,4})[-–](\d{1,4})", said)


def fractions(said: Mapping[str, str]) -> Rule:
    """1/2 and others that have a name."""
    return rule("|".join(map(re.escape, said)), lambda match, _: said[match[0]])


def before_noun(
    table: Table,
    ends: str,
    gender_of: Callable[[str], str | None],
    noun: str = r"[^\W\d_]{2,}",
    number: str | None = None,
) -> Rule:
    """A number that ends in one of the digits `ends`, and the word after it, with whose gender it agrees."""
    number = number or rf"\d{{0,8}}(?<!1)[{ends}]"

    def said(match: re.Match[str], _: str) -> str | None:
        gender = gender_of(match[2])
        return None if gender is None else f"{table.integer(int(match[1]), gender)} {match[2]}"

    return rule(rf"({number})\ ({noun})", said)


def any_of(found: Iterable[str]) -> str:
    """A pattern of any of these words, the longest first."""
    return "|".join(map(re.escape, sorted(found, key=len, reverse=True)))
