"""Russian: numbers agree with what they count in gender and number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from num2words import num2words

from agent_tts.text.spoken.shared import numeric_dates, short_months, words
from agent_tts.text.spoken.table import Table, any_of, cardinal, ordinal, roman, rule
from agent_tts.text.spoken.vocabulary import Noun

MONTHS = words("января февраля марта апреля мая июня июля августа сентября октября ноября декабря")
# In the nominative and after "в".
_NAMES = words("январь февраль март апрель май июнь июль август сентябрь октябрь ноябрь декабрь")
_NAMES += [f"{month[:-1]}е" for month in MONTHS]
_ONE = {"f": "одна", "n": "одно", "a": "одну"}  # "a": of a feminine noun in the accusative
# The endings of an ordinal by what is written after it: 5-й, 5-го, 5-я.
_ENDINGS = {"й": "", "ый": "", "ой": "", "го": "ого", "ого": "ого", "му": "ому", "м": "ом", "ом": "ом", "я": "ая"}
_ENDINGS |= {"ая": "ая", "е": "ое", "ое": "ое", "ю": "ую", "ую": "ую", "х": "ых", "ых": "ых"}
_YEAR_WORDS = {"год": "", "года": "ого", "году": "ом", "годом": "ым", "г.": "", "гг.": ""}


_CENTURY = {"век": "", "века": "ого", "веке": "ом", "веком": "ым"}

_BEFORE_GENITIVE = {*words("с со до после около от из конца начала весной летом осенью зимой")}


# After these a number and what it counts are in the genitive: "до ста рублей", "около пяти лет".
_GENITIVE = {*words("до от из около после без для более менее больше меньше свыше порядка")}
# After these in the accusative: "через одну минуту".
_ACCUSATIVE = {*words("через за спустя про")}
_TENTHS = ("десят", "сот", "тысячн")
_NOT_FEMININE = {*words("мужчины дедушки дяди папы судьи юноши")}


# fmt: off
_WORDS = {
    "т.е.": "то есть", "т.д.": "так далее", "т.п.": "тому подобное", "т.к.": "так как", "др.": "другие",
    "прибл.": "приблизительно", "ул.": "улица", "кв.": "квартира", "д.": "дом",
}
# fmt: on


@dataclass(frozen=True)
class _Russian(Table):
    case: str = ""  # "g" and "a", the genitive and the accusative; otherwise the nominative

    def integer(self, number: int, gender: str = "") -> str:
        if self.case:
            gender = "f" if gender == "a" else gender or "m"
            said: str = num2words(number, lang="ru", case=self.case, gender=gender, animate=False)
        else:
            said = super().integer(number, gender)
            if gender in _ONE:
                said = re.sub(r"\bодин$", _ONE[gender], said)
            said = re.sub(r"\bдва$", "две", said) if gender == "f" else said
        return re.sub(r"^(?:одна|одной|одну) (?=тысяч)", "", said)

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
        return table(case="g" if before in _GENITIVE else "a") if before in _GENITIVE | _ACCUSATIVE else self

    def gender_of(self, noun: str, number: int) -> str | None:
        if self.case == "g":
            return "f" if noun[-1] in "иы" else "m"
        if noun.endswith("мя"):
            return "n"
        if number % 10 == 2:
            return "f" if noun[-1] in "иы" and noun not in _NOT_FEMININE else "m"
        return "f" if noun[-1] in "ая" else "n" if noun[-1] in "ое" else "a" if noun[-1] in "ую" else "m"


@cache
def table(*, case: str = "") -> Table:
    return _Russian(
        "ru",
        case=case,
        point=",",
        groups=" ",
        dots=True,
        scales={
            word: Noun(word, word, "m", word)
            for word in words("миллион миллиона миллионов миллиард миллиарда миллиардов")
        }
        | {word: Noun(word, word, "f", word) for word in words("тысяча тысячи тысяч")}
        | dict.fromkeys(("млн", "млн."), Noun("миллион", "миллионов", "m", "миллиона"))
        | dict.fromkeys(("млрд", "млрд."), Noun("миллиард", "миллиардов", "m", "миллиарда"))
        | dict.fromkeys(("тыс.", "тыс"), Noun("тысяча", "тысяч", "f", "тысячи")),
        abbreviations=_WORDS,
        rules=(
            *numeric_dates("./-", _date, "до от с по на"),
            short_months(MONTHS, _date),
            rule(r"(\d{1,2})\ до\ (\d{1,2}.*)", _from_to),
            rule(rf"(\d{{1,2}})\ ({any_of(MONTHS)})(?:\ (\d{{4}})(?:\ (?:года|г\.?))?)?", _day),
            rule(r"(\d{4})(?:\ ?[-–]\ ?(\d{4}))?\ (год|года|году|годом|г\.|г)", _year),
            rule(rf"({any_of(_NAMES)})\ (\d{{4}})", _year_of_month),
            rule(r"(XX|X?(?:IX|IV|V?I{0,3})|XXI)\ (век|века|веке|веком)", _century),
            rule(r"([01]?\d|2[0-4]):([0-5]\d)", _clock),
            rule(rf"(\d{{1,4}})-({any_of(_ENDINGS)})", lambda match, _: _ordered(int(match[1]), match[2])),
        ),
        per=dict.fromkeys(("мес", "месяц"), "в месяц")
        | {"год": "в год", "день": "в день", "сутки": "в сутки", "ч": "в час"},
        number_signs=("№", "N"),
        phones=r"8[\ -]?\(?\d{3}\)?[\ -]?\d{3}[\ -]\d\d[\ -]?\d\d",
        clock_after=frozenset(("в", "до", "к", "с")),
        part=lambda each: Noun(f"{each[:-2]}ая", f"{each[:-2]}ых", "f", f"{each[:-2]}ых"),
        labels=r"код(?: подтверждения)?|пин|заказа?|номер|индекс|договора",
        roman_after=frozenset(("глава", "том", "часть")),
        metre=" ",
        agreeing=(r"\d{0,8}(?<!1)[12]",),
        dotted=frozenset(("г.", "гг.")),
        joins=frozenset(("до",)),
        openers=frozenset(words("X XI XII XIII XIV XV XVI XVII XVIII XIX XX XXI")),
        months=(*MONTHS, *_NAMES, *(month[:3] for month in MONTHS), "нояб"),
    )


def _from_to(match: re.Match[str], before: str) -> str | None:
    """С 9 до 18."""
    first, last = table(case="g").say(match[1], "до"), table(case="g").say(match[2], "до")
    return f"{first} до {last}" if first and last and before in ("с", "со") else None


def declined(number: int, ending: str) -> str:
    """An ordinal in the case and gender of its ending; "" is the nominative: пятый, пятого."""
    said = ordinal(number, "ru")
    if not ending:
        return said
    if said.endswith("третий"):
        soft = {"ого": "ьего", "ому": "ьему", "ом": "ьем", "ая": "ья", "ое": "ье", "ую": "ью", "ых": "ьих", "ым": "ьим"}
        return said[:-2] + soft[ending]
    return said[:-2] + ending


def _date(day: int, month: int, year: int | None, _: str) -> str:
    said = f"{declined(day, 'ого')} {MONTHS[month - 1]}"
    return said if year is None else f"{said} {declined(year, 'ого')} года"


def _day(match: re.Match[str], _: str) -> str | None:
    day, year = int(match[1]), match[3]
    return _date(day, MONTHS.index(match[2]) + 1, int(year) if year else None, "") if 0 < day <= 31 else None


def _year(match: re.Match[str], before: str) -> str:
    word = match[3]
    if word.startswith("г") and len(word.rstrip(".")) == 1:
        word = {"в": "году", "во": "году"}.get(before) or ("года" if before in _BEFORE_GENITIVE else "год")
    if match[2]:
        return f"{declined(int(match[1]), '')} {declined(int(match[2]), '')} {word}"
    return f"{declined(int(match[1]), _YEAR_WORDS[word])} {word}"


def _year_of_month(match: re.Match[str], _: str) -> str:
    return f"{match[1]} {declined(int(match[2]), 'ого')} года"


def _ordered(number: int, written: str) -> str:
    """5-й; "80-е" is a plural, as in "80-е годы"."""
    return declined(number, "ые" if written == "е" and number % 10 == 0 else _ENDINGS[written])


def _century(match: re.Match[str], _: str) -> str | None:
    number = roman(match[1])
    return f"{declined(number, _CENTURY[match[2]])} {match[2]}" if number else None


def _clock(match: re.Match[str], before: str) -> str:
    hour, minutes = int(match[1]), int(match[2])
    if before in ("с", "со") or before in _GENITIVE:
        said: str = num2words(hour, lang="ru", case="g")
        if not minutes:
            return f"{said} {'часа' if hour % 10 == 1 and hour != 11 else 'часов'}"
        return f"{said} {num2words(minutes, lang='ru', case='g')}"
    said = cardinal(hour, "ru")
    if not minutes:
        return f"{said} {_hours(hour)}"
    return f"{said} {'ноль ' if minutes < 10 else ''}{cardinal(minutes, 'ru')}"


def _hours(hour: int) -> str:
    if hour % 10 == 1 and hour != 11:
        return "час"
    return "часа" if hour % 10 in (2, 3, 4) and not 11 < hour < 15 else "часов"
