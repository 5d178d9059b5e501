"""French, Italian, Portuguese (numbers as in Brazil) and Spanish."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent_tts.text.spoken.table import CLOCK, SpokenRule, Table, any_of, cardinal, ordinal, roman, rule
from agent_tts.text.spoken.vocabulary import Noun

# Endings of French ordinals that only one number has, which is said so.
_FIRST = {
    "er": (1, "premier"),
    "re": (1, "première"),
    "ère": (1, "première"),
    "nd": (2, "second"),
    "nde": (2, "seconde"),
}
_ALWAYS = {"24h/24": "vingt-quatre heures sur vingt-quatre", "7j/7": "sept jours sur sept"}


@dataclass(frozen=True)
class Romance(Table):
    """What they share: a decimal comma, and numbers that agree with the word after them."""

    point: str = ","
    groups: str = ". "
    dots: bool = True
    pairs: bool = True
    first: str = ""  # the first day of a month
    date_join: str = ""  # between the day, the month and the year
    ordinals: str = "(?!)"  # a pattern of what stands behind their numbers

    def date(self, day: int, month: int, year: int | None, before: str) -> str:
        said = f"{self.first if day == 1 else cardinal(day, self.code)}{self.date_join}{self.months[month - 1]}"
        return said if year is None else f"{said}{self.date_join}{cardinal(year, self.code)}"

    def dates(self) -> tuple[SpokenRule, ...]:
        of = re.escape(self.date_join)
        first = rule(rf"1[º°]?({of}(?:{any_of(self.months)}))", lambda match, _: self.first + match[1])
        return (*super().dates(), first, rule(rf"(\d{{1,3}})\.?({self.ordinals})", self._ordinal))

    def _ordinal(self, match: re.Match[str], before: str) -> str | None:
        said = ordinal(int(match[1]), self.code)
        return re.sub(r"o\b", "a", said) if match[2][-1] in "ªa" else said

    def clock(self, hour: str, minutes: str | None, and_: str, whole: str = "") -> str:
        """A time of the day, `whole` behind an hour without minutes."""
        said = self.integer(int(hour), "f")
        past = int(minutes or 0)
        return f"{said}{and_}{cardinal(past, self.code)}" if past else said + whole


class French(Romance):
    def form(self, number: int | None, noun: Noun) -> str:
        return noun.one if number is not None and number < 2 else noun.many

    def after_scale(self, noun: Noun) -> str:
        return f"d'{noun.many}" if noun.many[0] in "aeiouyh" else super().after_scale(noun)

    def rules(self) -> tuple[SpokenRule, ...]:
        return (
            rule(r"0\d(?:[\ .]\d\d){4}", _pairs),
            *self.dates(),
            # XXIe siècle, François Ier.
            rule(r"([IVX]+)(e|er|ème|re)", lambda match, _: _french_ordinal(roman(match[1]), match[2])),
            rule(r"24\ ?h/24|7\ ?j/7", lambda match, _: _ALWAYS[match[0].replace(" ", "")]),
            rule(rf"([01]?\d|2[0-4])\ ?[hH]\ ?([0-5]\d)?(?:\ ?min)? | {CLOCK}", self._clock),
            rule(r"(\d{1,3})(ème|eme|ère|nde|er|nd|re|e)", lambda match, _: _french_ordinal(int(match[1]), match[2])),
        )

    def _clock(self, match: re.Match[str], _: str) -> str:
        hour, minutes = int(match[1] or match[3]), int(match[2] or match[4] or 0)
        said = self.integer(hour, "f") + (" heure" if hour < 2 else " heures")
        return f"{said} {self.integer(minutes, 'f')}" if minutes else said


def _pairs(match: re.Match[str], _: str) -> str:
    pairs: list[str] = re.findall(r"\d\d", match[0])
    return ", ".join("zéro " * (pair[0] == "0") + cardinal(int(pair), "fr") for pair in pairs)


def _french_ordinal(number: int, ending: str) -> str | None:
    only, said = _FIRST.get(ending, (number, ordinal(number, "fr")))
    return said if number == only and (number > 1 or ending in _FIRST) else None


class Italian(Romance):
    def joined(self, number: str, noun: str) -> str:
        if number == "un" and re.match(r"s[^aeiou]|z|gn|ps|x|y", noun):
            number = "uno"
        return f"un'{noun}" if number == "una" and noun[0] in "aeiou" else f"{number} {noun}"

    def part(self, each: str) -> Noun:
        return Noun(each, f"{each[:-1]}i")

    def rules(self) -> tuple[SpokenRule, ...]:
        return (
            *self.dates(),
            rule(r"([IVX]+)(\ secolo)", lambda m, _: f"{ordinal(n, 'it')}{m[2]}" if (n := roman(m[1])) else None),
            rule(CLOCK, lambda match, _: self.clock(match[1], match[2], " e ")),
        )


class Portuguese(Romance):
    def rules(self) -> tuple[SpokenRule, ...]:
        return (rule(r"([01]?\d|2[0-4])(?:[h:]([0-5]\d)(?:min|h)?|\ ?h)", self._clock), *self.dates())

    def _clock(self, match: re.Match[str], _: str) -> str:
        return self.clock(match[1], match[2], " e ", " hora" if int(match[1]) == 1 else " horas")


class Spanish(Romance):
    def rules(self) -> tuple[SpokenRule, ...]:
        hours = r"(?:h|hs|hrs)\.?"
        return (
            rule(r"(0?[1-9]|1[0-2])(?::([0-5]\d))?\ ?([ap])\.?(?:\ ?m\.?)", self._clock_12),
            rule(rf"{CLOCK}(?:\ ?{hours})? | ([01]?\d|2[0-4])\ ?{hours}", self._clock),
            *self.dates(),
        )

    def _clock(self, match: re.Match[str], _: str) -> str:
        hour = match[1] or match[3]
        return self.clock(hour, match[2], " y ", "" if match[2] else " hora" if int(hour) == 1 else " horas")

    def _clock_12(self, match: re.Match[str], _: str) -> str:
        hour, minutes, half = match.groups()
        said = self.clock(hour, minutes, " y ")
        if half == "p" and int(hour) == 12:
            return f"{said} del mediodía"
        return f"{said} de la {'mañana' if half == 'a' else 'tarde' if int(hour) < 8 else 'noche'}"

    def _ordinal(self, match: re.Match[str], before: str) -> str | None:
        number = int(match[1])
        if match[2] == "er":
            return ordinal(number, "es")[:-1] if number in (1, 3) else None
        said = {11: "undécimo", 12: "duodécimo"}.get(number) or super()._ordinal(match, before) or ""
        return f"{said[:-1]}a" if number in (11, 12) and match[2][-1] in "ªa" else said
