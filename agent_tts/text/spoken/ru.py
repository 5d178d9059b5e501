"""Russian: numbers agree with what they count in gender and number."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from num2words import num2words

from agent_tts.text.spoken.table import CLOCK, SpokenRule, Table, any_of, cardinal, ordinal, roman, rule
from agent_tts.text.spoken.vocabulary import Noun

_TENTHS = ("десят", "сот", "тысячн")
# Of "третий" behind its stem.
_SOFT = {"ого": "ьего", "ому": "ьему", "ом": "ьем", "ая": "ья", "ое": "ье", "ую": "ью", "ых": "ьих", "ым": "ьим"}


@dataclass(frozen=True)
class Russian(Table):
    case: str = ""  # "g" and "a", the genitive and the accusative; otherwise the nominative
    genitives: frozenset[str] = frozenset()
    accusatives: frozenset[str] = frozenset()
    before_genitive_year: frozenset[str] = frozenset()
    endings: Mapping[str, str] = field(default_factory=dict)
    endings_before: Mapping[str, str] = field(default_factory=dict)

    def integer(self, number: int, gender: str = "") -> str:
        if not self.case:
            return super().integer(number, gender)
        gender = "f" if gender == "a" else gender or "m"  # "a": of a feminine noun in the accusative
        said: str = num2words(number, lang="ru", case=self.case, gender=gender, animate=False)
        return re.sub("^(?:одной|одну) (?=тысяч)", "", said)

    def decimals(self, said: str, whole: str, decimals: str) -> str:
        """Two wholes, five tenths; "с половиной" alone is not said, because it may follow 1."""
        decimals = decimals.rstrip("0")
        if not decimals:
            return said
        if len(decimals) > len(_TENTHS):
            return super().decimals(said, whole, decimals)
        parts = []
        for number, one in ((int(whole), "цел"), (int(decimals), _TENTHS[len(decimals) - 1])):
            ending = "ых" if number % 10 != 1 or number % 100 == 11 else {"g": "ой", "a": "ую"}.get(self.case, "ая")
            parts.append(f"{self.integer(number, 'f')} {one}{ending}")
        return " ".join(parts)

    def form(self, number: int | None, noun: Noun) -> str:
        if number is None:
            return noun.few
        if number % 10 == 1 and number % 100 != 11:
            if self.case == "a" and noun.gender == "f":
                return f"{noun.one[:-1]}{'у' if noun.one[-1] == 'а' else 'ю'}"
            return noun.few if self.case == "g" else noun.one
        few = number % 10 in (2, 3, 4) and number % 100 not in (12, 13, 14) and self.case != "g"
        return noun.few if few else noun.many

    def after(self, before: str) -> Table:
        return _in_case("g") if before in self.genitives else _in_case("a") if before in self.accusatives else self

    def gender_of(self, noun: str, number: int) -> str | None:
        if self.case == "g":
            return "f" if noun[-1] in "иы" else "m"
        if noun.endswith("мя"):
            return "n"
        if number % 10 == 2:
            return "f" if noun[-1] in "иы" and not self.not_feminine.fullmatch(noun) else "m"
        return "f" if noun[-1] in "ая" else "n" if noun[-1] in "ое" else "a" if noun[-1] in "ую" else "m"

    def part(self, each: str) -> Noun:
        return Noun(f"{each[:-2]}ая", f"{each[:-2]}ых", "f", f"{each[:-2]}ых")

    def rules(self) -> tuple[SpokenRule, ...]:
        return (
            *self.dates(),
            rule(r"(\d{1,2})\ до\ (\d{1,2}.*)", _from_to),
            rule(
                rf"(0?[1-9]|[12]\d|3[01])\ ({any_of(self.months)})(?:\ (\d{{4}})(?:\ (?:года|г\.?))?)?",
                self._named_date,
            ),
            rule(r"(\d{4})(?:\ ?[-–]\ ?(\d{4}))?\ (год|года|году|годом|г\.|г)", self._year),
            rule(
                rf"({any_of(self.short_months)})\ (\d{{4}})",
                lambda match, _: f"{match[1]} {declined(int(match[2]), 'ого')} года",
            ),
            rule(r"(XX|X?(?:IX|IV|V?I{0,3})|XXI)\ (век|века|веке|веком)", self._century),
            rule(CLOCK, self._clock),
            rule(rf"(\d{{1,4}})-({any_of(self.endings)})", self._ordered),
        )

    def date(self, day: int, month: int, year: int | None, before: str) -> str:
        said = f"{declined(day, 'ого')} {self.months[month - 1]}"
        return said if year is None else f"{said} {declined(year, 'ого')} года"

    def _year(self, match: re.Match[str], before: str) -> str:
        word = match[3]
        if word.startswith("г") and len(word.rstrip(".")) == 1:
            in_genitive = before in self.before_genitive_year
            word = {"в": "году", "во": "году"}.get(before) or ("года" if in_genitive else "год")
        if match[2]:
            return f"{declined(int(match[1]), '')} {declined(int(match[2]), '')} {word}"
        return f"{declined(int(match[1]), self.endings_before[word])} {word}"

    def _ordered(self, match: re.Match[str], _: str) -> str:
        """5-й; "80-е" is a plural, as in "80-е годы"."""
        number, written = int(match[1]), match[2]
        return declined(number, "ые" if written == "е" and number % 10 == 0 else self.endings[written])

    def _century(self, match: re.Match[str], _: str) -> str | None:
        number = roman(match[1])
        return f"{declined(number, self.endings_before[match[2]])} {match[2]}" if number else None

    def _clock(self, match: re.Match[str], before: str) -> str:
        hour, minutes = int(match[1]), int(match[2])
        if before in ("с", "со") or before in self.genitives:
            said: str = num2words(hour, lang="ru", case="g")
            if not minutes:
                return f"{said} {'часа' if hour % 10 == 1 and hour != 11 else 'часов'}"
            return f"{said} {num2words(minutes, lang='ru', case='g')}"
        if not minutes:
            return self.counted(str(hour), self.units["ч"])
        return f"{cardinal(hour, 'ru')} {'ноль ' if minutes < 10 else ''}{cardinal(minutes, 'ru')}"


@cache
def _in_case(case: str) -> Russian:
    return Russian.of("ru", case=case)


def _from_to(match: re.Match[str], before: str) -> str | None:
    """С 9 до 18."""
    first, last = _in_case("g").say(match[1], "до"), _in_case("g").say(match[2], "до")
    return f"{first} до {last}" if first and last and before in ("с", "со") else None


def declined(number: int, ending: str) -> str:
    """An ordinal in the case and gender of its ending; "" is the nominative: пятый, пятого."""
    said = ordinal(number, "ru")
    if not ending:
        return said
    return said[:-2] + (_SOFT[ending] if said.endswith("третий") else ending)
