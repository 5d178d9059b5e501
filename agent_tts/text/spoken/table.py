"""What all languages share: numbers in words, by num2words, and the signs and words beside them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

from num2words import CONVERTER_CLASSES, num2words

Say = Callable[["re.Match[str]", str], str | None]
"""The words for a match; the second argument is the word before it. None: the rule does not apply."""

MAX_DIGITS = 15  # a longer number is said digit by digit

# Languages that use the numbers of another; those of Portuguese are Brazil's, which has most speakers.
_SAME = {"pt": "pt_BR", "nb": "no", "nn": "no", "hr": "sr", "bs": "sr", "gl": "pt", "kk": "kz"}


class Noun(NamedTuple):
    """What is counted."""

    one: str
    many: str
    gender: str = "m"  # "f" or "n" otherwise: some number words agree with it
    few: str = ""  # after 2, 3 and 4 in Slavic languages


Money = tuple[Noun, Noun | None]  # and its hundredth, if it is said


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
    dots: bool = False  # a point with one or two digits after it is one before decimals, too
    percent: Noun | None = None
    currencies: Mapping[str, Money] = field(default_factory=dict)  # by sign or code
    hundredths_join: str = " "  # between the two
    scales: Mapping[str, Noun] = field(default_factory=dict)  # "million": after an amount, before its currency is said
    units: Mapping[str, Noun] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)  # replaces a word, written with its point
    rules: tuple[Rule, ...] = ()  # tried before those of all languages
    last_rules: tuple[Rule, ...] = ()  # tried after them, before that of a number alone
    months: tuple[str, ...] = ()  # words that a day may follow or precede
    dotted: frozenset[str] = frozenset()  # abbreviations that a number may precede, besides those of units
    openers: frozenset[str] = frozenset()  # words that a number may follow: "No."
    joins: frozenset[str] = frozenset()  # words that may be within a number's words, after a number: "de"
    ordinal_point: bool = False  # a point after one or two digits may be that of an ordinal: "3. Mai"

    # ------------------------------------------------------------ numbers

    @cached_property
    def number(self) -> str:
        """A pattern of a number as this language writes it: 1,234.5; without groups of its own."""
        point, groups = re.escape(self.point), re.escape(self.groups)
        dots = r"\d+\.\d{1,2}(?!\d)|" if self.dots else ""
        return rf"(?:{dots}(?:\d{{1,3}}(?:[{groups}]\d{{3}})+|\d+)(?:{point}\d+)?)"

    def parts(self, written: str) -> tuple[str, str]:
        """The digits of a number without a sign, and its decimals."""
        point = "." if self.dots and re.fullmatch(r"\d+\.\d{1,2}", written) else self.point
        whole, _, decimals = written.partition(point)
        return "".join(char for char in whole if char.isdecimal()), decimals

    def say_number(self, written: str) -> str:
        """A number in words; digit by digit if it starts with a zero or is longer than `MAX_DIGITS`."""
        whole, decimals = self.parts(written.lstrip("-−"))
        said = self.digits(whole) if _is_spelled(whole) else self.integer(int(whole))
        if decimals:
            said += f" {self.point_word} {self.digits(decimals)}"
        return f"{self.minus} {said}" if written[0] in "-−" else said

    def digits(self, written: str) -> str:
        """One digit after the other."""
        return " ".join(cardinal(int(char), self.code) for char in written if char.isdecimal())

    def integer(self, number: int, gender: str = "") -> str:
        """A whole number in words, as it stands before a noun of this gender; "" alone."""
        return cardinal(number, self.code)

    def form(self, number: int | None, noun: Noun) -> str:
        """The noun after a whole number, or after one with decimals (None)."""
        return noun.one if number == 1 else noun.many

    def after_scale(self, noun: Noun) -> str:
        """The noun after "million"."""
        return noun.many

    def counted(self, written: str, noun: Noun) -> str:
        """A number and what it counts."""
        whole, decimals = self.parts(written.lstrip("-−"))
        if decimals or _is_spelled(whole):
            return f"{self.say_number(written)} {self.form(None if decimals else 2, noun)}"
        number = int(whole)
        minus = f"{self.minus} " if written[0] in "-−" else ""
        millions = number > 0 and number % 1_000_000 == 0
        said = self.after_scale(noun) if millions else self.form(number, noun)
        return f"{minus}{self.integer(number, noun.gender)} {said}"

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
            percent = self.percent
            found.append(rule(rf"([-−]?{self.number})\ ?%", lambda match, _: self.counted(match[1], percent)))
        if self.units:
            unit = "|".join(map(re.escape, sorted(self.units, key=len, reverse=True)))
            found.append(rule(rf"([-−]?{self.number})\ ?({unit})", self._unit))
        if short := {scale: noun for scale, noun in self.scales.items() if noun.one != scale != noun.many}:
            scale = "|".join(map(re.escape, short))
            found.append(
                rule(rf"({self.number})\ ?({scale})", lambda match, _: self.counted(match[1], short[match[2]]))
            )
        found += self.last_rules
        found.append(rule(rf"[-−]?{self.number}", lambda match, _: self.say_number(match[0])))
        return tuple(found)

    def _currency(self, match: re.Match[str], _: str) -> str:
        main, small = self.currencies[match["sign"]]
        number, scale = match["number"], match["scale"]
        minus = f"{self.minus} " if match["minus"] or match.groupdict().get("minus2") else ""
        whole, decimals = self.parts(number)
        if scale is not None:
            return f"{minus}{self.counted(number, self.scales[scale])} {self.after_scale(main)}"
        if small is None or len(decimals) not in (0, 2):
            return minus + self.counted(number, main)
        parts = []
        if not int(decimals or 0) or int(whole):
            parts.append(self.counted(whole, main))
        if int(decimals or 0):
            parts.append(self.counted(str(int(decimals)), small))
        return minus + self.hundredths_join.join(parts)

    def _unit(self, match: re.Match[str], _: str) -> str:
        return self.counted(match[1], self.units[match[2]])

    # ------------------------------------------------------------ words that belong together

    @cached_property
    def _open(self) -> re.Pattern[str]:
        """A word whose meaning may depend on the next one."""
        signs = "|".join(map(re.escape, self.currencies)) or "(?!)"
        return re.compile(rf"[-−+(#~]*(?:{signs})?[-−]?\(?\d[\d.,:()/–-]*(?<![.,:])|{signs}")

    @cached_property
    def _dotted(self) -> frozenset[str]:
        """Abbreviations after a number: the next word tells whether their point ends a sentence."""
        found = (*self.units, *self.currencies, *self.dotted)
        return frozenset(word for word in found if word.endswith("."))

    def goes_on(self, words: list[str]) -> bool:
        """Whether the reading of these words may depend on the next one."""
        last = words[-1]
        if last in self.openers or last.rstrip(",").rstrip(".") in self.months:
            return True
        if last[-1] == "," and len(words) > 1 and words[-2].rstrip(".") in self.months:
            return True  # "March 5, 2024"
        if (last in self.scales or last in self._dotted) and len(words) > 1:
            return self._open.fullmatch(words[-2]) is not None
        if last in self.joins and len(words) > 1:
            return words[-2].isdecimal() or words[-2] in self.months
        if self.ordinal_point and re.fullmatch(r"[\"'“‘«„(\[]*\d{1,2}\.(?:\d{1,2}\.)?", last):
            return True
        return self._open.fullmatch(last.lstrip("\"'“‘«[")) is not None


def _is_spelled(whole: str) -> bool:
    """Whether digits are said one by one."""
    return len(whole) > MAX_DIGITS or (len(whole) > 1 and whole[0] == "0")


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
