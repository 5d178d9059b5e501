"""What all languages share: numbers in words, by num2words, and the signs and words beside them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from num2words import CONVERTER_CLASSES, num2words

Say = Callable[["re.Match[str]", str], str | None]
"""The words for a match; the second argument is the word before it. None: the rule does not apply."""

MAX_DIGITS = 15  # a longer number is said digit by digit

# Languages that use the numbers of another.
_SAME = {"nb": "no", "nn": "no", "hr": "sr", "bs": "sr", "gl": "pt", "kk": "kz"}


@dataclass(frozen=True, slots=True)
class Rule:
    """Says what matches `pattern`: one or more words with single spaces, without the punctuation around them."""

    pattern: re.Pattern[str]
    say: Say


def rule(pattern: str, say: Say) -> Rule:
    """A rule with a verbose pattern: `\\ ` is a space."""
    return Rule(re.compile(pattern, re.VERBOSE), say)


@dataclass(frozen=True)
class Table:
    """One language. What it leaves out is not replaced."""

    code: str
    point: str = "."  # before the decimals
    groups: str = ","  # between the thousands
    point_word: str = "point"
    minus: str = "minus"
    percent: str | None = None
    # Sign or code of a currency: its singular and plural, those of its hundredths, or "".
    currencies: Mapping[str, tuple[str, str, str, str]] = field(default_factory=dict)
    hundredths_join: str = " "  # between the two
    scales: tuple[str, ...] = ()  # "million": words after an amount, before its currency is said
    units: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # singular, plural
    words: Mapping[str, str] = field(default_factory=dict)  # replaces a word, written with its point
    rules: tuple[Rule, ...] = ()  # tried before those of all languages
    months: tuple[str, ...] = ()  # words that a day may follow or precede
    openers: frozenset[str] = frozenset()  # words that a number may follow: "No."

    # ------------------------------------------------------------ numbers

    @cached_property
    def number(self) -> str:
        """A pattern of a number as this language writes it: 1,234.5; without groups of its own."""
        point, groups = re.escape(self.point), re.escape(self.groups)
        return rf"(?:\d{{1,3}}(?:[{groups}]\d{{3}})+|\d+)(?:{point}\d+)?"

    def say_number(self, written: str) -> str:
        """A number in words; digit by digit if it starts with a zero or is longer than `MAX_DIGITS`."""
        whole, _, decimals = written.lstrip("-−").partition(self.point)
        whole = "".join(char for char in whole if char.isdecimal())
        said = self.digits(whole) if len(whole) > MAX_DIGITS or (len(whole) > 1 and whole[0] == "0") else ""
        said = said or cardinal(int(whole), self.code)
        if decimals:
            said += f" {self.point_word} {self.digits(decimals)}"
        return f"{self.minus} {said}" if written[0] in "-−" else said

    def digits(self, written: str) -> str:
        """One digit after the other."""
        return " ".join(cardinal(int(char), self.code) for char in written if char.isdecimal())

    def is_one(self, written: str) -> bool:
        """Whether its unit is singular."""
        return written.lstrip("-−") == "1"

    # ------------------------------------------------------------ all rules

    @cached_property
    def all_rules(self) -> tuple[Rule, ...]:
        """All rules, in the order in which they are tried."""
        found = [*self.rules]
        signs = "|".join(map(re.escape, sorted(self.currencies, key=len, reverse=True)))
        if signs:
            scale = "|".join(map(re.escape, self.scales)) or "(?!)"
            amount = rf"(?P<minus>[-−]?)(?P<number>{self.number})(?:\ ?(?P<scale>{scale}))?"
            found += [
                rule(rf"(?P<minus2>[-−]?)(?P<sign>{signs})\ ?{amount}", self._currency),
                rule(rf"{amount}\ ?(?P<sign>{signs})", self._currency),
            ]
        if self.percent is not None:
            found.append(
                rule(rf"([-−]?{self.number})\ ?%", lambda match, _: f"{self.say_number(match[1])} {self.percent}")
            )
        if self.units:
            unit = "|".join(map(re.escape, sorted(self.units, key=len, reverse=True)))
            found.append(rule(rf"([-−]?{self.number})\ ?({unit})", self._unit))
        found.append(rule(rf"[-−]?{self.number}", lambda match, _: self.say_number(match[0])))
        return tuple(found)

    def _currency(self, match: re.Match[str], _: str) -> str:
        one, many, small, smalls = self.currencies[match["sign"]]
        number, scale = match["number"], match["scale"]
        minus = f"{self.minus} " if match["minus"] or match.groupdict().get("minus2") else ""
        whole, _, decimals = number.partition(self.point)
        if scale is not None:
            return f"{minus}{self.say_number(number)} {scale} {many}"
        if not small or len(decimals) not in (0, 2):
            return f"{minus}{self.say_number(number)} {one if self.is_one(number) else many}"
        cents = int(decimals or 0)
        parts = []
        if not cents or int(re.sub(r"\D", "", whole)):
            parts.append(f"{self.say_number(whole)} {one if self.is_one(whole) else many}")
        if cents:
            parts.append(f"{cardinal(cents, self.code)} {small if cents == 1 else smalls}")
        return minus + self.hundredths_join.join(parts)

    def _unit(self, match: re.Match[str], _: str) -> str:
        one, many = self.units[match[2]]
        return f"{self.say_number(match[1])} {one if self.is_one(match[1]) else many}"

    # ------------------------------------------------------------ words that belong together

    @cached_property
    def _open(self) -> re.Pattern[str]:
        """A word whose meaning may depend on the next one."""
        signs = "|".join(map(re.escape, self.currencies)) or "(?!)"
        return re.compile(rf"[-−+(#~]*(?:{signs})?[-−]?\(?\d[\d.,:()/–-]*(?<![.,:])|{signs}")

    def goes_on(self, words: list[str]) -> bool:
        """Whether the reading of these words may depend on the next one."""
        last = words[-1]
        if last in self.openers or last.rstrip(",").rstrip(".") in self.months:
            return True
        if last[-1] == "," and len(words) > 1 and words[-2].rstrip(".") in self.months:
            return True  # "March 5, 2024"
        return self._open.fullmatch(last.lstrip("\"'“‘«[")) is not None


def has_numbers(language: str) -> bool:
    """Whether num2words has the language; only the first part of its code counts."""
    return _name(language) in CONVERTER_CLASSES


@lru_cache(maxsize=4_096)
def cardinal(number: int, language: str = "en") -> str:
    """A whole number in words; in English if num2words lacks the language."""
    return _say(number, language, "cardinal")


@lru_cache(maxsize=1_024)
def ordinal(number: int, language: str = "en") -> str:
    """An ordinal number in words; in English if num2words lacks it in the language."""
    return _say(number, language, "ordinal")


def _say(number: int, language: str, how: str) -> str:
    try:
        said: str = num2words(number, to=how, lang=_name(language))
    except (NotImplementedError, OverflowError, LookupError):  # not in this language, or not so many
        said = num2words(number, to=how, lang="en")
    return said.replace("-", " ").replace(",", "")


def _name(language: str) -> str:
    code = language.lower().partition("-")[0]
    return _SAME.get(code, code)
