"""Languages that write numbers without spaces around them: Chinese, Japanese, Korean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from agent_tts.text.spoken.table import (
    GROUPS,
    IBAN,
    LIMIT,
    MAX_PLAIN,
    MIN_DIALLED,
    OPERATOR,
    OPERATORS,
    Numerals,
    SpokenRule,
    any_of,
    are_groups,
    cardinal,
    is_code,
    is_spelled,
    rule,
)
from agent_tts.text.spoken.vocabulary import column

MAX_RUN = 80  # characters that are looked at together

SIGNS = frozenset("-−–+.,:/~%°%‰℃$€£¥₩₹¢²³=×÷*()<>≤≥≈±")
STARTS = frozenset("0123456789-−+$€£¥₩₹(<>≤≥≈±")  # of a run

# Full-width forms are read as their narrow ones.
_NARROW = {0xFF01 + place: 0x21 + place for place in range(94)} | {ord("￥"): "¥", ord("￦"): "₩", ord("〜"): "~"}
_AFTER_LATIN = re.compile(r"[A-Za-z][-_]?\Z")
ITEM = re.compile(r"\d{1,3}[.)]")  # the number of an item of a list, behind which is a pause like that of a clause
_LIMIT = re.compile(rf"({LIMIT})\ ?")
_NUMBER = re.compile(r"[-−]?\d[\d.,]*")
_ACCOUNT = re.compile("(?<=[A-Z]{2})" + IBAN.partition(")")[2], re.VERBOSE)  # behind its country


NUMBER = r"(?:\d{1,3}(?:,\d{2,3})*,\d{3}|\d+)(?:\.\d+)?"
SIGNED = rf"[-−+]?{NUMBER}"
END = r"(?![\d.:/]*\d)"  # a number does not go on
CLOCK = r"(?:[01]?\d|2[0-4]):[0-5]\d"
LETTER = r"(?![\d.,]*[A-Za-z])"  # a number is not part of a name: "4K"
DAY = r"\ ?([-/.])\ ?(\d{1,2})\ ?\2\ ?(\d{1,2})"  # behind a year


@dataclass(frozen=True)
class Runs(Numerals):
    """A language without spaces around numbers: its rules, tried in order at each number of a run.

    A run starts at one of `STARTS` and has digits, `SIGNS`, ASCII letters, the characters `inside`, and single spaces
    after digits and the characters `spaced`.
    """

    names: tuple[str, ...] = ()  # of the digits from 0 on
    comma: str = ""  # between the groups of a telephone number
    scales: str = ""  # a pattern of words after the digits of a large number
    labels: str = "(?!)"  # a pattern of what a number follows that is said digit by digit
    national: str = "(?!)"  # a pattern of national telephone numbers
    day: str = "{}月{}日"  # a month and a day
    date_end: str = ""  # a pattern of what may stand behind a date in digits
    gap: str = ""  # between a number and what it counts
    counters: str = ""  # a pattern of what long numbers count
    limited: str = "(?!)"  # a pattern of what stands before a word that limits a number: "5分未満"
    counted: str = ""  # a pattern of what numbers of a form of their own count
    known: str = ""  # more characters of a run
    spaced: str = ""  # of them, those that a single space may follow, too
    after: str = LETTER  # a pattern of what follows a number alone

    @cached_property
    def inside(self) -> frozenset[str]:
        return frozenset(f"{self.known}{self.scales}{self.counters}{self.counted}") - set("|[]")

    @cached_property
    def _limited(self) -> re.Pattern[str]:
        return re.compile(self.limited)

    def goes_on(self, ch: str, before: str) -> bool:
        """Whether a run has `ch` after `before`."""
        if ch == " ":
            return before.isdecimal() or (before != "" and before in f"-–~/.<>=≥≤≈{self.spaced}")
        narrow = narrowed(ch)
        return ch in self.inside or narrow in SIGNS or (narrow.isascii() and narrow.isalnum())

    def say(self, run: str, before: str) -> Iterable[tuple[int, int, str]]:
        """What is said in place of parts of a run: their start, their end, and the words. `before` is before it."""
        text = before + narrowed(run)
        place = len(before)
        if before[-1:] in ("", "\n") and (item := ITEM.match(text, place)) and text[item.end() :][:1] in ("", " "):
            said, place = self._said(text[: item.end() - 1], place)
            yield 0, len(item[0]), f"{said},"
            place += 1
        while place < len(text):
            if text[place] not in STARTS:
                place += 1
                continue
            if _AFTER_LATIN.search(text, 0, place) and not _ACCOUNT.match(text, place):  # a name: "GPT-4", "A4"
                name = _NUMBER.match(text, place)
                place = name.end() if name else place + 1
                continue
            limit = _LIMIT.match(text, place)
            said, end = self._said(text, limit.end() if limit else place)
            if said is not None and limit:
                if counted := self._limited.match(text, end):
                    said, end = said + counted[0], counted.end()
                said = column(self.code, "limit")[limit[1]].format(said)
            if said is not None:
                yield place - len(before), end - len(before), said
            place = end if said is not None else place + 1

    def _said(self, text: str, place: int) -> tuple[str | None, int]:
        """What is said for the number at a place, and where it ends; None if no rule has it."""
        for each in self.all_rules:
            match = each.pattern.match(text, place)
            if match is not None and (said := each.say(match, text[:place])) is not None:
                return said, match.end()
        return None, place

    # ------------------------------------------------------------ what each language has of its own

    def cardinal(self, number: int) -> str:
        return cardinal(number, self.code)

    def year(self, written: str) -> str:
        """A year before a month, with its word."""
        raise NotImplementedError

    def month(self, number: int) -> str:
        return self.cardinal(number)

    def clock(self, hour: str, minutes: str, seconds: str | None = None) -> str:
        """A time of the day."""
        raise NotImplementedError

    def first(self) -> tuple[SpokenRule, ...]:
        """Rules before all others."""
        return ()

    def counting(self) -> tuple[SpokenRule, ...]:
        """Rules for what is counted, behind those of telephones, dates and times."""
        return ()

    # ------------------------------------------------------------ numbers

    @cached_property
    def units(self) -> Mapping[str, str]:
        return column(self.code, "unit")

    @cached_property
    def money(self) -> Mapping[str, str]:
        """Currencies by their signs; that of the cent stands behind."""
        return {sign: said for sign, said in column(self.code, "money").items() if len(sign) == 1}

    @cached_property
    def names_of_units(self) -> Mapping[str, str]:
        return {**self.units, **self.money}

    def digits(self, written: str) -> str:
        return "".join(self.names[int(digit)] for digit in written if digit.isdecimal())

    def decimals(self, written: str) -> str:
        """The digits behind a point."""
        return self.digits(written)

    def number(self, written: str) -> str:
        """A number in words; digit by digit if it starts with a zero or is longer than `MAX_DIGITS`."""
        whole, _, decimals = written.lstrip("-−+").replace(",", "").partition(".")
        said = self.digits(whole) if is_spelled(whole) else self.cardinal(int(whole))
        if decimals:
            said += self.between.point + self.decimals(decimals)
        return self.sign(written) + said

    def count(self, written: str) -> str:
        return self.number(written)

    def labelled(self, before: str) -> bool:
        return re.search(rf"(?:{self.labels})\s*\Z", before) is not None

    def dialled(self, groups: Iterable[str]) -> str:
        return self.comma.join(map(self.digits, groups))

    # ------------------------------------------------------------ all rules

    @cached_property
    def all_rules(self) -> tuple[SpokenRule, ...]:
        """All rules, in the order in which they are tried."""
        scales, signs, end = self.scales, "".join(self.money), r"(?![A-Za-z\d])"
        number = rf"((?:(?<!\d)[-−+])?{NUMBER}){self.after}"
        counting = rf"(?=\ ?(?:{scales}|{self.counters or '(?!)'}))"
        names, per = any_of(self.names_of_units), any_of(column(self.code, "per"))
        clock = r"([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?"
        return (
            *self.first(),
            rule(rf"\+\d{{1,3}}(?:[\ -]?\d{{1,11}}){{1,4}}{END}", self._international),
            rule(_ACCOUNT.pattern, self._account),
            rule(rf"(?:{self.national}){END}", lambda match, _: self.dialled(match[0].split("-"))),
            rule(rf"(\d{{4}}){DAY}{self.date_end}{END}", self._date),
            rule(f"{GROUPS}{END}", self._grouped),
            rule(rf"(?=[^=+×÷<>≤≥]{{1,40}}[=+×÷<>≤≥]\ ?\d){NUMBER}(?:{OPERATOR}{NUMBER})+", self._equation),
            rule(rf"({CLOCK})\ ?[-–~]\ ?({CLOCK}){END}", self._from_to),
            rule(f"{clock}{END}", lambda match, _: self.clock(match[1], match[2], match[3])),
            # 12/25, which is no fraction.
            rule(rf"(0?[1-9]|1[0-2])/(1[3-9]|2\d|3[01]|0[1-9]){END}", lambda m, _: self.month_and_day(m[1], m[2])),
            rule(rf"([{signs}])({NUMBER})[-–~]\1?({NUMBER}){END}", self._amounts),
            rule(rf"({NUMBER})({scales})[-–~]({NUMBER})(?={scales})", self._scaled_range),
            *self.counting(),
            rule(rf"([-−]?)([{signs}])\ ?([-−]?{NUMBER})\ ?({scales})?{END}(?:/({per}))?", self._amount),
            rule(r"(\d+\.\d+)/(5|10|100)(?![\d/])", self._rating),
            rule(r"([1-9]\d?)/([1-9]\d?)(?![\d/])", self._fraction),
            rule(
                rf"(?<![-–~]\ )(\d{{1,4}})\ ?[-–~]\ ?(\d{{1,4}})(?!\ ?[-–~]?\ ?\d)(?:\ ?({names}){end})?", self._range
            ),
            rule(
                rf"({SIGNED})\ ?({names}){end}", lambda m, _: f"{self.count(m[1])}{self.gap}{self.names_of_units[m[2]]}"
            ),
            # 50+.
            rule(rf"({NUMBER})\+(?!\ ?\d)", lambda m, _: column(self.code, "limit")["≥"].format(self.number(m[1]))),
            rule(r"\d+(?:\.\d+){2,}", lambda m, _: self.between.point.join(map(self.number, m[0].split(".")))),
            rule(rf"{number}{counting} | {number}", self._plain),
        )

    def month_and_day(self, month: str, day: str) -> str:
        return self.day.format(self.month(int(month)), self.cardinal(int(day)))

    def _date(self, match: re.Match[str], _: str) -> str | None:
        year, _, month, day = match.groups()
        is_date = 1 <= int(month) <= 12 and 1 <= int(day) <= 31
        return self.year(year) + self.month_and_day(month, day) if is_date else None

    def _international(self, match: re.Match[str], _: str) -> str | None:
        """+81 3-1234-5678; before fewer digits a plus is that of a number."""
        groups = re.findall(r"\d+", match[0])
        return self.between.plus + self.dialled(groups) if sum(map(len, groups)) >= MIN_DIALLED else None

    def _grouped(self, match: re.Match[str], before: str) -> str | None:
        """4111 1111 1111 1111, and 482 913 behind one of the `labels`."""
        labelled = self.labelled(before) and is_code(match[0])
        return self.dialled(re.findall(r"\d+", match[0])) if labelled or are_groups(match[0]) else None

    def _account(self, match: re.Match[str], _: str) -> str | None:
        """An IBAN behind its country."""
        groups = re.findall(r"[A-Z\d]{1,4}", match[0][2:])
        if not any(map(str.isdecimal, groups)):
            return None
        said = ("".join(self.digits(char) or char for char in group) for group in (match[0][:2], *groups))
        return self.comma.join(said)

    def _equation(self, match: re.Match[str], before: str) -> str:
        """5-3=2 and 2+2; 5-3 alone is a range or a score."""
        signs = {**column(self.code, "formula"), **column(self.code, "sign")}
        parts = re.findall(rf"({NUMBER})|([^\d\s]+)", match[0])
        return "".join(self.number(number) if number else signs[OPERATORS.get(sign, sign)] for number, sign in parts)

    def _from_to(self, match: re.Match[str], _: str) -> str:
        """9:00-10:30."""
        first, last = (self.clock(*time.split(":")) for time in match.groups())
        return f"{first}{self.between.to}{last}"

    def _amounts(self, match: re.Match[str], _: str) -> str:
        """$50-$100."""
        sign, first, last = match.groups()
        return f"{self.number(first)}{self.between.to}{self.number(last)}{self.gap}{self.money[sign]}"

    def _scaled_range(self, match: re.Match[str], _: str) -> str:
        """From one number with a scale to another, whose scale follows."""
        return f"{self.count(match[1])}{match[2]}{self.between.to}{self.count(match[3])}"

    def _amount(self, match: re.Match[str], _: str) -> str:
        """$3.5, also with a scale behind it."""
        minus, sign, number, scale, per = match.groups()
        number = number.rstrip("0").rstrip(".") if "." in number else number
        said = f"{self.sign(minus)}{self.count(number)}{scale or ''}{self.gap}{self.money[sign]}"
        return column(self.code, "per")[per].format(said) if per else said

    def _rating(self, match: re.Match[str], _: str) -> str:
        """4.5/5."""
        return column(self.code, "rating")["/"].format(*map(self.number, match.groups()))

    def _fraction(self, match: re.Match[str], _: str) -> str | None:
        """2/3, but not 3/2, which may be a score or a date."""
        above, below = match.groups()
        return f"{self.number(below)}{self.between.over}{self.number(above)}" if int(above) < int(below) else None

    def _range(self, match: re.Match[str], _: str) -> str | None:
        """3-5, 10-15 km; 5-3 is a score, and what starts with a zero neither."""
        first, last, unit = match.groups()
        if any(len(number) > 1 and number[0] == "0" for number in (first, last)):
            return None
        rises = int(first) < int(last) or len(first) != len(last)
        join = self.between.to if rises else self.between.score
        return f"{self.number(first)}{join}{self.number(last)}{self.gap + self.names_of_units[unit] if unit else ''}"

    def _plain(self, match: re.Match[str], before: str) -> str:
        """A number alone, digit by digit behind one of the `labels`, and if it is long and counts nothing."""
        written = match[1] or match[2]
        long = match[2] is not None and len(written) > MAX_PLAIN and written[-3:] != "000"
        spelled = written.isdecimal() and (long or self.labelled(before))
        return self.digits(written) if spelled else self.number(written)


def narrowed(text: str) -> str:
    """The text with narrow forms of full-width characters."""
    return text.translate(_NARROW)


def starts_run(ch: str) -> bool:
    return narrowed(ch) in STARTS
