"""What all languages share: numbers in words, by num2words, and the signs and words beside them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Any, Self

from num2words import num2words

from agent_tts.text.data import data
from agent_tts.text.spoken.vocabulary import Between, Noun, column

_TOP_LEVEL = "com|org|net|edu|gov|io|ai|dev|app|info|biz|co|uk|us|ca|au|de|at|ch|fr|be|es|mx|it|nl|pt|br|ru|eu|tv|me"

Say = Callable[["re.Match[str]", str], str | None]
"""The words for a match; the second argument is the word before it. None: the rule does not apply."""

MAX_DIGITS = 15  # a longer number is said digit by digit
MIN_DIALLED = 7  # digits of a telephone number
MAX_CODE = 24  # characters of a code behind a label
MAX_PLAIN = 6  # digits; a longer number without groups is that of an order or an account, unless it ends in 000

SIGNS = "[-−+]"  # before a number

_VULGAR = "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_FRACTIONS = {ord(ch): unicodedata.normalize("NFKC", ch).replace("\u2044", "/") for ch in _VULGAR}

OPERATORS = {"*": "×", "/": "÷", "−": "-", "–": "-", ">=": "≥", "<=": "≤"}
OPERATOR = r"\ ?(?:[<>]=|[=+×÷<>≤≥*/−–-])\ ?"  # between two numbers

# Digits in groups, which may be those of a telephone, a card, an account; a group may have parentheses.
GROUPS = r"(?:\(\d{1,5}\)[\ -]?|\d{1,12}[\ -])(?:\(?\d{1,12}\)?[\ -]){0,6}\d{1,12}"
IBAN = r"([A-Z]{2})(\d\d)((?:\ ?[A-Z\d]{4}){2,7})(?:\ ?([A-Z\d]{1,4}))?"
_CAPITALS_AND_DIGITS = re.compile(r"[A-Z\d]{1,4}")
# Words after a number that may belong to the next word: "5 m ago", "1 h 30 min", "5 - 3 = 2".
_AFTER_NUMBER = frozenset(("h", "m", "min", *"-−–+×÷*/=<>≤≥"))
NOTHING = re.compile("(?!)")
LIMIT = "[<>]=?|[≤≥≈~±]"  # before a number that is not met or passed: ">90%"


# What all that has a rule has: a digit, the mark of an address or of a range, or a Roman numeral. Most words do not.
_MAY_BE_SAID = re.compile(f"[0-9{_VULGAR}@./:–IVX-]")

# A number that only English writes so, whatever the language.
_ENGLISH = re.compile(r"\d{1,3}(?:(?:,\d{3})+\.\d{1,2}|(?:,\d{3}){2,})|\d{1,2}(?:,\d\d)+,\d{3}(?:\.\d{1,2})?")


_DAY, _MONTH, _YEAR = r"(?P<day>0?[1-9]|[12]\d|3[01])", r"(?P<month>0?[1-9]|1[0-2])", r"(?P<year>\d{4}|(?<=/)\d\d)"
CLOCK = r"([01]?\d|2[0-4]):([0-5]\d)"


@dataclass(frozen=True, slots=True)
class SpokenRule:
    """Says what matches `pattern`: one or more words with single spaces, without the punctuation around them."""

    pattern: re.Pattern[str]
    say: Say


def rule(pattern: str, say: Say) -> SpokenRule:
    """A rule with a verbose pattern: `\\ ` is a space."""
    return SpokenRule(re.compile(pattern, re.VERBOSE), say)


@dataclass(frozen=True)
class Numerals:
    """How a language says numbers, with the words of `vocabulary.py` and `languages.toml`, which says what they are."""

    code: str

    @classmethod
    def of(cls, code: str, **others: Any) -> Self:
        """That of `languages.toml`, with other fields in place of its own."""
        known, made = {each.name: each for each in fields(cls)}, dict[str, Any]()
        for name, value in data("spoken/languages")[code].items():
            kind, value = known[name].type, "|".join(value) if isinstance(value, list) else value
            if "Mapping" in kind and isinstance(value, str):
                value = dict(pair.split(maxsplit=1) for pair in " ".join(value.split()).split(";"))
            if isinstance(value, dict):
                cells = {key: cell.replace("=", key) for keys, cell in value.items() for key in keys.split()}
                made[name] = {key: Noun.of(cell) for key, cell in cells.items()} if name == "scales" else cells
            elif "Pattern" in kind:
                made[name] = re.compile(value)
            elif "tuple" in kind or "frozenset" in kind:
                made[name] = (tuple if "tuple" in kind else frozenset)(value.split())
            else:
                made[name] = value
        return cls(code, **made | others)

    @cached_property
    def between(self) -> Between:
        return Between(**column(self.code, "word"))

    def sign(self, written: str) -> str:
        """The word for the sign of a number, with a space after it; "" without one."""
        return self.between.minus if written[:1] in ("-", "−") else self.between.plus if written[:1] == "+" else ""


@dataclass(frozen=True)
class Table(Numerals):
    """A language of words with spaces between them. What it leaves out is not replaced."""

    point: str = "."  # before the decimals
    groups: str = ","  # between the thousands
    dots: bool = False  # a point with one or two digits after it is one before decimals, too
    pairs: bool = False  # two decimals are said as one number: "virgule vingt-cinq"
    start: str = ""  # before a range, unless one of `starts` is: "da tre a cinque"
    starts: frozenset[str] = frozenset()
    per: Mapping[str, str] = field(default_factory=dict)  # after an amount and a slash: "month" is "per month"
    number_signs: tuple[str, ...] = ()  # "No."
    address_signs: Mapping[str, str] = field(default_factory=dict)  # in web addresses, besides those of all languages
    phones: str = "(?!)"  # a pattern of national telephone numbers
    labels: str = "(?!)"  # a pattern of the words before a number that is said digit by digit: "code is"
    agreeing: tuple[str, ...] = ()  # patterns of numbers that agree with the word after them
    noun: str = r"[^\W\d_]{2,}"  # a pattern of those words
    no_noun: frozenset[str] = frozenset()  # words that a number may stand before, without counting them
    neuter: re.Pattern[str] = NOTHING
    feminine: re.Pattern[str] = NOTHING  # those that are, by their endings
    not_feminine: re.Pattern[str] = NOTHING  # and those that only end so
    # How a number changes before a noun of a gender, "" for before any and alone: "f:un$>une", a pattern and its words.
    forms: tuple[str, ...] = ()
    roman_after: frozenset[str] = frozenset()  # words that a Roman numeral may follow: "chapter"
    of_these: str = ""  # between "million" and a noun
    metre: str = ""  # before the centimetres of 1,80 m, with its spaces; as a number otherwise
    currency_words: Mapping[str, str] = field(default_factory=dict)  # with their signs: "Euro"
    scales: Mapping[str, Noun] = field(default_factory=dict)  # "million": after an amount, before its currency is said
    abbreviations: Mapping[str, str] = field(default_factory=dict)  # written with their points
    months: tuple[str, ...] = ()  # the names of all
    short_months: tuple[str, ...] = ()  # spellings besides their first three letters
    dotted: frozenset[str] = frozenset()  # abbreviations that a number may precede, besides those of units
    openers: frozenset[str] = frozenset()  # words that a number may follow: "No."
    joins: frozenset[str] = frozenset()  # words that may be within a number's words, after a number: "de"
    ordinal_point: bool = False  # a point after one or two digits may be that of an ordinal: "3. Mai"
    clock_after: frozenset[str] = frozenset()  # words that a time with a point follows: "alle 14.30"
    ago: str = "(?!)"  # a pattern of what follows a time with a short unit: 5m ago
    day_first: bool = True  # of numeric dates
    separators: str = ""  # of these
    opens: frozenset[str] = frozenset()  # words that 31/12 is a date after

    def rules(self) -> tuple[SpokenRule, ...]:
        """Rules of this language alone, tried before those of all languages."""
        return ()

    @cached_property
    def all_months(self) -> frozenset[str]:
        """Words that a day may follow or precede."""
        return frozenset((*self.months, *(month[:3] for month in self.months), *self.short_months))

    def month(self, written: str) -> int:
        """The number of a month by its name or the begin of it; 0 if it is none."""
        begin = written.rstrip(".").lower()
        return next((place for place, name in enumerate(self.months, 1) if name.lower().startswith(begin)), 0)

    # ------------------------------------------------------------ dates

    def date(self, day: int, month: int, year: int | None, before: str) -> str:
        """The words for a date, after a word."""
        raise NotImplementedError

    def dates(self) -> tuple[SpokenRule, ...]:
        """31/12/2024 with one of the separators, or 31/12/24, also the other way around where certain; 2024-12-31;
        31/12 after one of the words `opens`; 3 dic. 2024, 3 de dic.: a month by its first three letters or more.
        """
        separator = f"(?P<separator>[{re.escape(self.separators)}])"
        first, second = (_DAY, _MONTH) if self.day_first else (_MONTH, _DAY)
        return (
            *(
                rule(f"{one}{separator}{other}(?P=separator){_YEAR}", self._numeric)
                for one, other in ((first, second), (second, first))
            ),
            rule(rf"{_YEAR}(?P<separator>[-/.]){_MONTH}(?P=separator){_DAY}", self._numeric),
            rule(f"{first}/{second}", self._numeric),
            rule(r"(0?[1-9]|[12]\d|3[01])\ (?:de\ )?([^\W\d_]{3,5})\.(?:\ (?:de\ )?(\d{4}))?", self._named_date),
        )

    def _numeric(self, match: re.Match[str], before: str) -> str | None:
        year = match.groupdict().get("year")
        if year is None and not self.opens_date(match[0], before):
            return None
        return self.date(int(match["day"]), int(match["month"]), full_year(year), before)

    def opens_date(self, written: str, before: str) -> bool:
        return before in self.opens

    def _named_date(self, match: re.Match[str], before: str) -> str | None:
        month = self.month(match[2])
        return self.date(int(match[1]), month, full_year(match[3]), before) if month else None

    def part(self, each: str) -> Noun:
        """A fraction's denominator, from its ordinal number."""
        return Noun(each, f"{each}s")

    @cached_property
    def units(self) -> Mapping[str, Noun]:
        return {sign: Noun.of(cell) for sign, cell in column(self.code, "unit").items()}

    @cached_property
    def currencies(self) -> Mapping[str, tuple[Noun, Noun | None]]:
        """Currencies by their signs and codes, each with its hundredth, if it is said."""
        cells = {sign: cell.partition(" + ") for sign, cell in column(self.code, "money").items()}
        found = {sign: (Noun.of(main), Noun.of(small) if small else None) for sign, (main, _, small) in cells.items()}
        return found | {word: found[sign] for word, sign in self.currency_words.items()}

    @cached_property
    def words(self) -> Mapping[str, str]:
        """What is said for a word."""
        signs = column(self.code, "sign")
        return {**{sign: signs[sign] for sign in signs if sign != "-"}, **self.abbreviations}

    # ------------------------------------------------------------ numbers

    @cached_property
    def number(self) -> str:
        """A pattern of a number as this language writes it: 1,234.5; without groups of its own."""
        point, groups = re.escape(self.point), re.escape(self.groups)
        dots = r"\d+\.\d{1,2}(?!\d)|" if self.dots else ""
        dots += rf"(?:{_ENGLISH.pattern})(?!\d)|"
        dots += "" if " " in self.groups else r"\d{1,3}(?:\ \d{3})*\ 000(?!\d)|"
        return rf"(?:{dots}(?:\d{{1,3}}(?:[{groups}]\d{{3}})+|\d+)(?:{point}\d+)?)"

    def parts(self, written: str) -> tuple[str, str]:
        """The digits of a number without a sign, and its decimals."""
        english = _ENGLISH.fullmatch(written)
        point = "." if english or (self.dots and re.fullmatch(r"\d+\.\d{1,2}", written)) else self.point
        whole, _, decimals = written.partition(point)
        return "".join(char for char in whole if char.isdecimal()), decimals

    def say_number(self, written: str) -> str:
        """A number in words; digit by digit if it starts with a zero or is longer than `MAX_DIGITS`."""
        whole, decimals = self.parts(written.lstrip("-−+"))
        spelled = is_spelled(whole) or (len(written) > MAX_PLAIN and written.isdecimal() and written[-3:] != "000")
        said = self.digits(whole) if spelled else self.integer(int(whole))
        return self.sign(written) + (self.decimals(said, whole, decimals) if decimals else said)

    def decimals(self, said: str, whole: str, decimals: str) -> str:
        """A number whose whole part, `whole`, is `said`, with its decimals."""
        paired = self.pairs and len(decimals) == 2 and decimals[0] != "0" and decimals[1] != "0"
        return f"{said}{self.between.point}{self.integer(int(decimals)) if paired else self.digits(decimals)}"

    def digits(self, written: str) -> str:
        return " ".join(cardinal(int(char), self.code) for char in written if char.isdecimal())

    def integer(self, number: int, gender: str = "") -> str:
        """A whole number in words, as it stands before a noun of this gender; "" alone."""
        said = cardinal(number, self.code)
        for genders, pattern, into in self._forms:
            if not genders or gender in genders.split("|"):
                said = pattern.sub(into, said)
        return said

    @cached_property
    def _forms(self) -> list[tuple[str, re.Pattern[str], str]]:
        cut = re.compile("(.*?):(.*)>(.*)")
        return [(found[1], re.compile(found[2]), found[3]) for form in self.forms if (found := cut.fullmatch(form))]

    def form(self, number: int | None, noun: Noun) -> str:
        """The noun after a whole number, or after one with decimals (None)."""
        return noun.one if number == 1 else noun.many

    def after_scale(self, noun: Noun) -> str:
        """The noun after "million"."""
        return f"{self.of_these}{noun.many}"

    def counted(self, written: str, noun: Noun) -> str:
        whole, decimals = self.parts(written.lstrip("-−+"))
        if decimals or is_spelled(whole):
            return f"{self.say_number(written)} {self.form(None if decimals else 2, noun)}"
        number = int(whole)
        millions = number > 0 and number % 1_000_000 == 0
        said = self.after_scale(noun) if millions else self.form(number, noun)
        return self.sign(written) + self.joined(self.integer(number, noun.gender), said)

    def joined(self, number: str, noun: str) -> str:
        return f"{number} {noun}"

    def gender_of(self, noun: str, number: int) -> str | None:
        """The gender of a word after a number, by its ending; None if it is no noun."""
        if noun in self.no_noun or self.feminine is NOTHING:
            return None
        if self.neuter.fullmatch(noun):
            return "n"
        return "f" if self.feminine.fullmatch(noun) and not self.not_feminine.fullmatch(noun) else "m"

    def after(self, before: str) -> Table:
        """The table for what follows a word: another one if its case differs."""
        return self

    # ------------------------------------------------------------ all rules

    def say(self, written: str, before: str) -> str | None:
        """The words for what is written after the word `before`; None if no rule has it."""
        if not _MAY_BE_SAID.search(written):
            return None
        for each in self.all_rules:
            match = each.pattern.fullmatch(written)
            if match is not None and (said := each.say(match, before)) is not None:
                return said
        return None

    @cached_property
    def all_rules(self) -> tuple[SpokenRule, ...]:
        """All rules, in the order in which they are tried."""
        domain = rf"(?:[\w-]+\.)+(?:{_TOP_LEVEL})"
        signs, scales, number = any_of(self.currencies), any_of(self.scales), self.number
        zone = r"(?P<zone>Z|[+-]\d\d:?[0-5]\d)"
        amount = rf"(?P<minus>{SIGNS}?)(?P<number>{number}|\.\d\d)(?:\ ?(?P<scale>{scales}))?"
        short = {
            scale: noun for scale, noun in self.scales.items() if len(scale) > 1 and noun.one != scale != noun.many
        }
        between = f"[{re.escape(self.groups)}]"
        groups = rf"(?:[1-9]\d{{0,2}}(?:{between}\d{{3}})*{between}(?=\d{{3}}\ ))?"
        return (
            rule(r"\d{1,4}(?:\ ([-–/])\ \d{1,4})(?:\ \1\ \d{1,4})+", self._spaced),
            rule(r"\+\d{1,3}(?:[\ ./-]?\(?\d{1,8}\)?){1,5}", self._international),
            rule(self.phones, self._telephone),
            rule(r"(\d{1,2}:\d\d):([0-5]\d)(\ ?(?:[AaPp]\.?[Mm]\.?|Uhr|h))?", self._clock_seconds),
            rule(
                r"([01]?\d|2[0-4])\.([0-5]\d)",
                lambda match, before: (
                    self.say(f"{match[1]}:{match[2]}", before) if before in self.clock_after else None
                ),
            ),
            *self.rules(),
            rule(rf"({any_of(self.all_months)})\.?\ ((?:19|20)\d\d)", self._month_and_year),
            rule(GROUPS, lambda match, before: self._telephone(match, before) if self._grouped(match[0]) else None),
            rule(IBAN, self._iban),
            rule(rf"(?=.*[=+×÷<>≤≥]){self.number}(?:{OPERATOR}{self.number})+", self._equation),
            rule(rf"({LIMIT})\ ?((?:{SIGNS}|{signs})*\ ?\d.*)", self._limit),
            rule(
                rf"(?:(\d{{1,3}})\ ?h\ ?)?(?:(\d{{1,3}})\ ?m(?:in)?\ ?)?(?:(\d{{1,3}})\ ?s)?(\ ?{self.ago})?",
                self._duration,
            ),
            rule(r"(?:mailto:)?([\w.+-]+@[\w-]+(?:\.[\w-]+)+)", self._address),
            rule(rf"(?:https?://)?(?:www\.)?({domain}(?::\d+)?(?:/[^\s]*?)?)/?", self._address),
            rule(r"https?://(?:www\.)?(\S+?)/?", self._address),
            rule(rf"(?:{any_of(self.number_signs)})\ ?(\d{{1,15}}|\d{{2,6}}(?:\ \d{{2,6}})+)", self._numbered),
            rule(
                rf"(?:(\d{{1,3}})\ ?)?([{_VULGAR}]) | (?:(\d{{1,3}})\ )?((?<![/\d])\d{{1,2}}/\d{{1,2}})", self._fraction
            ),
            rule(
                rf"(?P<sign>{signs})?\ ?(?P<first>\d[^\s–-]*)(?P<gap>\ ?)[-–](?P=gap)(?P<last>[^\s–-]*\d[^–-]*)",
                self._range,
            ),
            rule(r"(\d{1,3}):(\d{1,2})", self._score),
            rule(rf"(\d{{4}}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d)?(?:\.\d+)?{zone}?", self._moment),
            rule(rf"()(\d\d:\d\d)(:\d\d)?{zone}", self._moment),
            rule(rf"(?P<minus2>{SIGNS}?)(?P<sign>{signs})\ ?{amount}", self._currency),
            rule(rf"{amount}\ ?(?P<sign>{signs})", self._currency),
            rule(rf"((?:{signs}).*|[^/]*(?:{signs})|{number}\ ?[^\W\d_]+)/({any_of(self.per)})", self._per),
            rule(rf"({number})/(5|10|100)", self._rating),
            rule(r"(\d{1,2})[x×]", self._times),
            rule(rf"({number})\+", lambda match, _: f"{self.say_number(match[1])} {self.between.plus.strip()}"),
            rule(rf"([1-9]\d{{0,2}}|{number}\ ?%|\d+[.,]\d+)(-[^\W\d_][\w-]*)", self._compound),
            rule(rf"({any_of(self._days)})\.?\ ?[-–]\ ?({any_of(self._days)})\.?", self._from_day_to_day),
            rule(r"([12]\d{3})[-–/](\d\d)", self._two_years),
            rule(rf"({SIGNS}?{number})\ ?({any_of(self.units)})", self._unit),
            rule(rf"({number})\ ?({any_of(short)})", lambda m, _: self.counted(m[1], short[m[2]])),
            rule(
                rf"((?:\d{{1,3}}\ ?)?[{_VULGAR}]|(?:\d{{1,3}}\ )?\d/\d)\ ?({any_of(self.units)})",
                lambda match, before: self._part_of(match[1], self.units[match[2]], before),
            ),
            rule(rf"(?:1/2|½)\ ({self.noun})", lambda match, before: self.half(match[1], before)),
            *(rule(rf"({groups}{agreeing})\ ({self.noun})", self._agreeing) for agreeing in self.agreeing),
            rule("[IVX]+", self._roman),
            rule(rf"{SIGNS}?{number}", lambda match, _: self.say_number(match[0])),
        )

    def labelled(self, before: str) -> bool:
        """Whether a number after these words, in small letters, is said digit by digit."""
        return re.search(rf"\b(?:{self.labels})\Z", before) is not None

    def _month_and_year(self, match: re.Match[str], _: str) -> str | None:
        """Dec. 2031."""
        month, year = self.month(match[1]), self.say(match[2], match[1].lower())
        return f"{self.months[month - 1]} {year}" if month and year else None

    def _agreeing(self, match: re.Match[str], _: str) -> str | None:
        number, noun = int(self.parts(match[1])[0]), match[2]
        gender = self.gender_of(noun, number)
        return None if gender is None else self.joined(self.integer(number, gender), noun)

    def half(self, noun: str, before: str) -> str | None:
        """Half of what a noun is, if the language has a word for it that agrees."""
        gender, half = self.gender_of(noun, 1), column(self.code, "mixed").get("half")
        return f"{half.split('/')['mfn'.index(gender)]} {noun}" if gender and half else None

    def _part_of(self, part: str, unit: Noun, before: str) -> str | None:
        """1/2 l, ¼ kg, 2½ h."""
        if part in ("1/2", "½"):
            return self.half(unit.one, before) or f"{column(self.code, 'fraction')['1/2']} {unit.few or unit.one}"
        said, one = self.say(part, before), unit.few or unit.one
        is_part = re.fullmatch(rf"\d/\d|[{_VULGAR}]", part)
        return said and f"{said} {self.after_scale(Noun(one, one)) if is_part else unit.few or unit.many}"

    def _rating(self, match: re.Match[str], _: str) -> str | None:
        """4.5/5, 8/10: what is at most the best."""
        given = float(".".join(filter(None, self.parts(match[1]))))
        best = int(match[2])
        if given > best or (match[1].isdecimal() and best == 5):
            return None
        return f"{self.say_number(match[1])}{self.between.of}{self.after(self.between.of.strip()).integer(best)}"

    def _times(self, match: re.Match[str], _: str) -> str | None:
        """3x a day; in English it is left: "3x faster"."""
        return self.counted(match[1], Noun.of(self.between.times)) if self.between.times else None

    def _compound(self, match: re.Match[str], before: str) -> str | None:
        """5-star, 20%-Rabatt, 1,5-fach."""
        said = self.say(match[1], before)
        return said and said + match[2]

    @cached_property
    def _days(self) -> Mapping[str, str]:
        """Days of the week by their names and abbreviations."""
        return {name: cell.split()[0] for cell in column(self.code, "day").values() for name in cell.split()}

    def _is_day(self, word: str) -> bool:
        last = re.split("[-–]", word.rstrip(".,:"))[-1]
        return last in {day.lower() for day in self._days}

    def _from_day_to_day(self, match: re.Match[str], _: str) -> str:
        """Mon-Fri."""
        return f"{self._days[match[1]]}{self.between.to}{self._days[match[2]]}"

    def _two_years(self, match: re.Match[str], _: str) -> str | None:
        """2024/25."""
        first, last = int(match[1]), int(match[2])
        said = self.say(match[1], "in")
        return f"{said}{self.between.to}{self.integer(last)}" if (first + 1) % 100 == last else None

    def _roman(self, match: re.Match[str], before: str) -> str | None:
        number = roman(match[0])
        if number == 1 and self.code == "en":  # a pronoun: "When I type I make mistakes."
            return None
        return self.integer(number) if number and before in self.roman_after else None

    def grouped(self, written: str) -> str:
        """Groups of digits with a pause between them."""
        return ", ".join(self.digits(group) for group in re.findall(r"\d+", written))

    def _grouped(self, written: str) -> bool:
        """Whether groups of digits are no number, and no list of years or amounts."""
        return not re.fullmatch(self.number, written) and are_groups(written)

    def _iban(self, match: re.Match[str], _: str) -> str | None:
        """DE89 3704 0044 0532 0130 00: in groups of four, its letters one by one."""
        country, check, groups, rest = match.groups()
        if not any(char.isdecimal() for char in groups):
            return None
        written = [check, *re.findall(r"[A-Z\d]{4}", groups), rest or ""]
        said = (" ".join(self.digits(char) or char for char in group) for group in written if group)
        return f"{' '.join(country)} {', '.join(said)}"

    def _spaced(self, match: re.Match[str], before: str) -> str:
        """A date, a telephone number or a card with spaces around its signs; otherwise numbers without a range."""
        parts, sign = re.findall(r"\d+", match[0]), match[1].replace("–", "-")
        return self.say(sign.join(parts), before) or f" {sign} ".join(map(self.say_number, parts))

    def _equation(self, match: re.Match[str], _: str) -> str | None:
        """5-3=2 and 2+2; 5-3 alone is a range, and 5/3 a fraction."""
        signs = {**column(self.code, "formula"), **column(self.code, "sign")}
        said, before = list[str](), ""
        for number, sign in re.findall(rf"({self.number})|([^\d\s]+)", match[0]):
            word = self.after(before).say_number(number) if number else signs.get(OPERATORS.get(sign, sign))
            if word is None:
                return None
            said.append(word)
            before = word.rpartition(" ")[2]
        return " ".join(filter(None, said))

    def _limit(self, match: re.Match[str], _: str) -> str | None:
        """>90%, < 5 GB."""
        template = column(self.code, "limit")[match[1]]
        before = template.split()[-2]
        said = self.after(before).say(match[2], before)
        return None if said is None else template.format(said)

    def _duration(self, match: re.Match[str], _: str) -> str | None:
        """1h 30m, 2h, 5m ago; 30m alone is a length."""
        *amounts, ago = match.groups()
        given = [amount is not None for amount in amounts]
        if not (ago or given[0] or (given[1] and given[2])):
            return None
        nouns = (self.units["h"], self.units["min"], self._second)
        said = [self.counted(amount, noun) for amount, noun in zip(amounts, nouns, strict=True) if amount]
        return " ".join([*said, *([ago.strip()] if ago else [])]) if said else None

    def _clock_seconds(self, match: re.Match[str], before: str) -> str | None:
        """10:00:00; seconds that are zero are not said."""
        said = self.say(match[1] + (match[3] or ""), before)
        if said is None or match[2] == "00":
            return said
        return f"{said} {self.words['&']} {self.counted(str(int(match[2])), self._second)}"

    @property
    def _second(self) -> Noun:
        return self.units.get("s") or self.units["sec"]  # in English "90s" may be a decade

    def _international(self, match: re.Match[str], before: str) -> str | None:
        """A plus before fewer than seven digits, or before a number with its groups, is that of a number."""
        written, groups = match[0][1:], set(re.findall(r"\D", match[0][1:]))
        if len(re.findall(r"\d", written)) < MIN_DIALLED:
            return None
        if re.fullmatch(self.number, written) and (written.endswith("000") or groups & {",", "."}):
            return None
        return self._telephone(match, before)

    def _telephone(self, match: re.Match[str], _: str) -> str:
        """Digit by digit, with a pause between groups."""
        return self.sign(match[0]) + self.grouped(match[0])

    def _address(self, match: re.Match[str], _: str) -> str:
        signs = {**column(self.code, "address"), **self.address_signs}
        return " ".join("".join(f" {signs[char]} " if char in signs else char for char in match[1]).split())

    def _numbered(self, match: re.Match[str], _: str) -> str | None:
        written = match[1]
        if " " in written:
            return self.between.number + self.grouped(written) if is_code(written) else None
        return self.between.number + (self.digits(written) if len(written) > 4 else self.integer(int(written)))

    def _fraction(self, match: re.Match[str], _: str) -> str | None:
        whole, written = match[1] or match[3], (match[4] or match[2]).translate(_FRACTIONS)
        if said := column(self.code, "fraction").get(written if whole is None else f"{whole} {written}"):
            return said
        if whole is not None and (rest := column(self.code, "mixed").get(written)):
            return f"{self.integer(int(whole))} {rest}"
        above, below = map(int, written.split("/"))
        if not 0 < above < below or below not in (5, 6, 8):
            return None
        said = self.counted(str(above), self.part(ordinal(below, self.code)))
        return said if whole is None else f"{self.integer(int(whole))} {self.words['&']} {said}"

    def _range(self, match: re.Match[str], before: str) -> str | None:
        """3-5, 9:00-17:00, 50-100 €, $50-$100: both ends, if each is said by a rule."""
        sign, first, last = match.group("sign", "first", "last")
        ends = re.fullmatch(r"(\d+)-(\d+).*", f"{first}-{last.lstrip(sign)}" if sign else f"{first}-{last}", re.DOTALL)
        falls = ends and int(ends[1]) >= int(ends[2]) and not self._is_day(before)  # "Mon-Fri 9-5" are hours
        if ends and (any(len(end) > 1 and end[0] == "0" for end in ends.groups()) or falls):
            return None
        if before.endswith(tuple(each.lower() for each in self.number_signs)):
            return self.grouped(match[0])  # of an article
        word = self.between.to.strip()
        if sign and sign in last and not first.replace(".", "").isdecimal():
            first = sign + first  # "$1.5M-$2M"
        said = self.say(first, word), self.say(last if sign is None or sign in last else sign + last, word)
        if None in said:
            return None
        start = "" if not self.start or before in self.starts else f"{self.start} "
        return f"{start}{said[0]}{self.between.to}{said[1]}"

    def _score(self, match: re.Match[str], _: str) -> str | None:
        if any(len(goals) > 1 and goals[0] == "0" for goals in match.groups()):
            return None
        return f"{self.integer(int(match[1]))}{self.between.score}{self.integer(int(match[2]))}"

    def _moment(self, match: re.Match[str], before: str) -> str | None:
        """2026-11-23T14:05:00Z: the date, the time without seconds that are zero or that no rule says, its zone."""
        day, minute, second, zone = match.groups()
        date = self.say(day, before) if day else ""
        exact = None if second in (None, ":00") else self.say(minute + second, "")
        time = exact or self.say(minute, "")
        if date is None or time is None:
            return None
        said = f"{date}, {time}" if date else time
        if zone is None:
            return said
        hours, minutes = (0, 0) if zone == "Z" else (int(zone[1:3]), int(zone[-2:]))
        said += " U T C"
        if hours or minutes:
            said += f" {self.sign(zone)}{self.integer(hours)}"
        return f"{said} {self.integer(minutes)}" if minutes else said

    def _per(self, match: re.Match[str], before: str) -> str | None:
        said = self.say(match[1], before)
        if said is None and (counted := re.fullmatch(rf"({self.number})\ (\w+)", match[1])):
            said = f"{self.say_number(counted[1])} {counted[2]}"
        return said and f"{said} {self.per[match[2]]}"

    def _currency(self, match: re.Match[str], _: str) -> str:
        main, small = self.currencies[match["sign"]]
        number, scale = match["number"], match["scale"]
        number = f"0{number}" if number[0] == "." else number
        minus = self.sign(match["minus"] or match.groupdict().get("minus2") or "")
        whole, decimals = self.parts(number)
        if scale is not None:
            noun = main.many if scale == "mil" else self.after_scale(main)
            return f"{minus}{self.counted(number, self.scales[scale])} {noun}"
        if len(decimals) == 3 and len(whole) < 4:  # no amount has three decimals: it is a thousand of another language
            number, whole, decimals = whole + decimals, whole + decimals, ""
        if small is None or len(decimals) not in (0, 2):
            return minus + self.counted(number, main)
        parts = []
        if not int(decimals or 0) or int(whole):
            parts.append(self.counted(whole, main))
        if int(decimals or 0):
            parts.append(self.counted(str(int(decimals)), small))
        return minus + self.between.cents.join(parts)

    def _unit(self, match: re.Match[str], _: str) -> str:
        number, unit = match.groups()
        whole, decimals = self.parts(number)
        if unit in ("m", "м") and self.metre and len(decimals) == 2 and decimals[0] != "0" and len(whole) == 1:
            return f"{self.counted(whole, self.units[unit])}{self.metre}{self.integer(int(decimals))}"
        return self.counted(number, self.units[unit])

    # ------------------------------------------------------------ words that belong together

    @cached_property
    def _open(self) -> re.Pattern[str]:
        """A word whose meaning may depend on the next one."""
        signs = any_of(self.currencies)
        return re.compile(
            rf"(?:{LIMIT})?[-−+(#]*(?:{signs})?[-−]?\(?[\d{_VULGAR}][\d.,:()/–{_VULGAR}-]*(?:(?<=[–-])(?:{signs})\d[\d.,]*)?(?<![.,:])|[-−+]?(?:{signs})|{LIMIT}"
            rf"|\d{{1,3}}(?:\.\d+)?(?:[hmkMbB]|min|st|nd|rd|th)|[A-Z]{{2}}\d\d|[-−+(]*\d[\d.,]*(?:{any_of(self._dotted)})"
        )

    @cached_property
    def _dotted(self) -> frozenset[str]:
        """Abbreviations after a number: the next word tells whether their point ends a sentence."""
        found = (*self.units, *self.currencies, *self.dotted)
        return frozenset(f"{word.removesuffix('.')}." for word in found if word[-1] == "." or word.isalpha())

    @cached_property
    def _abbreviation(self) -> re.Pattern[str]:
        return re.compile(rf"[\d{_VULGAR}]\ ?(?:{any_of(word[:-1] for word in self._dotted)})\Z")

    def abbreviated(self, core: str) -> bool:
        """Whether what is written ends with an amount's abbreviation, which may have a point."""
        return self._abbreviation.search(core) is not None

    def ends_with_a_short_day(self, core: str) -> bool:
        """Mo.-Fr: a point behind it is no end."""
        *first, last = re.split("[-–]", core)
        return bool(first) and self._days.get(last, last) != last

    def goes_on(self, words: list[str]) -> bool:
        """Whether the reading of these words may depend on the next one."""
        last = words[-1]
        if last in self.openers or last in self.number_signs or last.rstrip(",").rstrip(".") in self.all_months:
            return True
        if last[-1] == "," and len(words) > 1 and words[-2].rstrip(".") in self.all_months:
            return True  # "March 5, 2024"
        if len(words) > 1 and (last in self.scales or last in self._dotted or last in _AFTER_NUMBER):
            return self._open.fullmatch(words[-2]) is not None
        if len(words) > 1 and re.fullmatch(r"[A-Z]{2}\d\d", words[0]) and _CAPITALS_AND_DIGITS.fullmatch(last):
            return True  # GB82 WEST 1234 5698 7654 32
        if last in self.joins and len(words) > 1:
            return words[-2].isdecimal() or words[-2] in self.all_months
        if self.ordinal_point and re.fullmatch(r"[\"'“‘«„(\[]*\d{1,2}\.(?:[-–]?\d{1,2}\.)?", last):
            return True
        return self._open.fullmatch(last.lstrip("\"'“‘«[")) is not None


def roman(written: str) -> int:
    """The value of a Roman numeral below 40; 0 if it is none."""
    values = [{"I": 1, "V": 5, "X": 10}[letter] for letter in written]
    if not re.fullmatch("X{0,3}(?:IX|IV|V?I{0,3})", written):
        return 0
    return sum(-value if value < after else value for value, after in zip(values, [*values[1:], 0], strict=True))


def full_year(written: str | None) -> int | None:
    """A year of four digits, or the last two of one up to 2069; None for None."""
    if written is None:
        return None
    return int(written) + (0 if len(written) > 2 else 2_000 if written < "70" else 1_900)


def say_year(number: int, language: str = "en") -> str:
    return _say(number, language, "year")


def any_of(found: Iterable[str]) -> str:
    """A pattern of any of these words, the longest first; of nothing without any."""
    return "|".join(map(re.escape, sorted(found, key=len, reverse=True))) or "(?!)"


def is_spelled(whole: str) -> bool:
    return len(whole) > MAX_DIGITS or (len(whole) > 1 and whole[0] == "0")


def are_groups(written: str) -> bool:
    """Whether digits between spaces, hyphens or parentheses are dialled or read from a card: seven or more.

    Two groups may be two numbers ("in 2024 1500 people") or a range, unless the first starts with a zero.
    """
    groups = re.findall(r"\d+", written)
    if sum(map(len, groups)) < MIN_DIALLED or max(map(len, groups)) < 3:
        return False
    if groups[0][0] == "0" or written[0] == "(":
        return True
    if len(groups) > 2:
        amounts = "000" in groups[1:] or all(group.endswith("00") for group in groups)
        return not amounts and not all(re.fullmatch(r"(?:19|20)\d\d", group) for group in groups)
    return "-" not in written and not (re.fullmatch(r"1\d{3}|20\d\d", groups[0]) or groups[1].endswith("00"))


def is_code(written: str) -> bool:
    """Whether behind a label this is a code: digits alone, groups of the same length, or 2024-001234."""
    groups = re.split("[ -]", written)
    alike = len(set(map(len, groups))) == 1 or (" " not in written and len(written) > MIN_DIALLED)
    return all(map(str.isdecimal, groups)) and alike and 2 < len(written) <= MAX_CODE


@lru_cache(maxsize=4_096)
def cardinal(number: int, language: str = "en") -> str:
    """A whole number in words; in English, for an estimate of its length, if num2words lacks it in the language."""
    return _say(number, language, "cardinal")


@lru_cache(maxsize=1_024)
def ordinal(number: int, language: str = "en") -> str:
    """An ordinal number in words."""
    return _say(number, language, "ordinal")


def _say(number: int, language: str, how: str) -> str:
    # The numbers of Portuguese are Brazil's, which has most speakers.
    code = "pt_BR" if language.startswith("pt") else language.partition("-")[0]
    try:
        said: str = num2words(number, to=how, lang=code)
    except Exception:  # noqa: BLE001  # languages fail in ways of their own, as Amharic by a TypeError
        said = num2words(number, to=how, lang="en")
    said = said.replace(",", "").replace("vingtsième", "vingtième").replace("dicotto", "diciotto")
    return said if language.startswith("fr") else said.replace("-", " ")
