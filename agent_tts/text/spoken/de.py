"""German."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from agent_tts.text.spoken.shared import numeric_dates, words
from agent_tts.text.spoken.table import Table, any_of, cardinal, ordinal, rule
from agent_tts.text.spoken.vocabulary import Noun

MONTHS = words("Januar Februar März April Mai Juni Juli August September Oktober November Dezember")
_SHORT = words("Jan Feb Apr Jun Jul Aug Sep Sept Okt Nov Dez")

# What is often ordered, with the ending of an ordinal without an article: "dritter Stock".
_ORDERED = dict.fromkeys(words("Stock Platz Tag Teil Gang Versuch"), "r")
_ORDERED |= dict.fromkeys(words("Etage Klasse Auflage Woche Runde Liga Reihe"), "")
_ORDERED |= dict.fromkeys(words("OG Obergeschoss Mal Kapitel Jahr Quartal Semester"), "s")

_DAYS = frozenset(words("mo di mi do fr sa so montag dienstag mittwoch donnerstag freitag samstag sonntag"))

# After these an ordinal ends in -en, and four digits are a year.
_DATIVE = words("am vom zum bis dem den beim ab seit im des zur")
_BEFORE_YEAR = {*words("im in seit ab bis von vom vor nach um jahr jahre jahres jahren zwischen"), ""}
_BEFORE_YEAR |= {month.lower() for month in (*MONTHS, *_SHORT)}
_FEMININE = re.compile(r".*(?:e|ung|heit|keit|ion|tät|schaft|ik|zahl|woche|person|nacht|stadt|frau)", re.IGNORECASE)
_NEUTER = re.compile(
    r"(?:Kilo|Milli)?gramm|Kilo|Pfund|Jahr|Glas|Dutzend|Stück|Brot|Huhn|Hähnchen|Päckchen|Prozent", re.IGNORECASE
)
_NOT_FEMININE = {*words("Name Junge Kunde Kollege Auge Ende Käse Gebäude Gramm Euro Tage Monate Jahre Genie Knie See")}

# fmt: off
_WORDS = {
    "z.B.": "zum Beispiel", "d.h.": "das heißt", "usw.": "und so weiter", "bzw.": "beziehungsweise", "Dr.": "Doktor",
    "Prof.": "Professor", "ca.": "circa", "inkl.": "inklusive", "ggf.": "gegebenenfalls", "Nr.": "Nummer",
    "vgl.": "vergleiche", "Abs.": "Absatz", "§": "Paragraf", "zw.": "zwischen", "Kap.": "Kapitel", "Jh.": "Jahrhundert",
    "mind.": "mindestens", "max.": "maximal", "Tel.": "Telefon", "Art.-Nr.": "Artikelnummer", "Std.": "Stunden",
}
# fmt: on


# After these "1 Hund" is "einem Hund"; after "in" and "vor", amounts of time, too.
_WITH_DATIVE = frozenset(words("mit von zu aus bei nach seit ab in vor"))
# After these it stays in the nominative: "das ist ein halber Liter".
_NOMINATIVE = frozenset(words("ist sind war waren wäre bleibt und oder noch nur etwa circa rund"))


@dataclass(frozen=True)
class _German(Table):
    dative: bool = False

    def after(self, before: str) -> Table:
        return table(dative=True) if before in _WITH_DATIVE else self

    def integer(self, number: int, gender: str = "") -> str:
        said = super().integer(number, gender)
        if self.dative and gender and number == 1:
            return "einer" if gender == "f" else "einem"
        if gender and said.endswith("eins"):
            return said[:-1] + ("e" if gender == "f" else "")
        return said

    def half(self, noun: str, before: str) -> str | None:
        """Behind a verb it is most often what is taken or given: "Nehmen Sie einen halben Liter"."""
        gender = self.gender_of(noun, 1)
        if self.dative:
            return f"{self.integer(1, gender)} halben {noun}"
        given = gender == "m" and before[-1:].isalpha() and before not in _NOMINATIVE
        return f"einen halben {noun}" if given else super().half(noun, before)

    def gender_of(self, noun: str, number: int) -> str:
        if _NEUTER.fullmatch(noun):
            return "n"
        return "f" if _FEMININE.fullmatch(noun) and noun not in _NOT_FEMININE else "m"


@cache
def table(*, dative: bool = False) -> Table:
    return _German(
        "de",
        dative=dative,
        point=",",
        groups=". ",
        scales={word: Noun(word, word, "f") for word in ("Million", "Millionen", "Milliarde", "Milliarden")}
        | dict.fromkeys(("Mio.", "Mio"), Noun("Million", "Millionen", "f"))
        | dict.fromkeys(("Mrd.", "Mrd"), Noun("Milliarde", "Milliarden", "f")),
        currency_words={"Euro": "€", "Dollar": "$"},  # "2 Mio. Euro"
        abbreviations=_WORDS,
        rules=(
            rule(
                rf"(\d{{1,2}})\.\ ?({any_of([*MONTHS, *_SHORT])})\.?(?:\ (\d{{4}}))?",
                lambda match, before: _date(int(match[1]), _month(match[2]), match[3], before),
            ),
            rule(
                r"(\d{1,2})\.\ ?(\d{1,2})\.(?:\ ?(\d{4}|\d\d))?",
                lambda match, before: (
                    _date(int(match[1]), int(match[2]), match[3], before)
                    if 0 < int(match[1]) <= 31
                    and 0 < int(match[2]) <= 12
                    and (len(match[3] or "") == 4 or before in _DATIVE or before.rstrip(",.") in _DAYS)
                    else None
                ),
            ),
            *numeric_dates("/-", lambda day, month, year, before: _date(day, month, str(year), before)),
            rule(r"([01]?\d|2[0-4])[:.]([0-5]\d)\ Uhr | ([01]?\d|2[0-4]):([0-5]\d) | ([01]?\d|2[0-4])\ Uhr", _clock),
            rule(r"(\d{1,2})\.\ ([^\W\d_]{2,})", _ordinal),
            rule(rf"(\d{{1,2}})\.[-–](\d{{1,2}})\.\ ({any_of([*MONTHS, *_SHORT])})", _days),
            rule(r"(1[1-9]\d\d|[2-9]0)(?:(er)(-[A-Z]\w+)?)?", _year_alone),
            rule(
                r"(\d[\d.]*),[-–]{1,2}(?:\ ?€)?",
                lambda match, _: f"{cardinal(int(match[1].replace('.', '')), 'de')} Euro",
            ),
        ),
        per={"Monat": "pro Monat", "Jahr": "pro Jahr", "Tag": "pro Tag", "Stunde": "pro Stunde", "Std.": "pro Stunde"},
        number_signs=("Nr.",),
        phones=r"0\d{2,4}[\ /-]\d{3,9}(?:[\ -]\d{1,4})?",
        labels=r"(?:\w*nummer|\w*code|pin|tan|plz|postleitzahl|endziffern)(?: ist| lautet)?|endet auf|rufen sie|notruf",
        part=lambda each: Noun(f"{each}l".capitalize(), f"{each}l".capitalize()),
        roman_after=frozenset(("kapitel", "band", "teil", "akt")),
        metre=" ",
        agreeing=(r"\d{0,8}(?<!1)1",),
        noun=r"[A-ZÄÖÜ][^\W\d_]+",
        openers=frozenset(("EUR", "USD")),
        ordinal_point=True,
        months=(*MONTHS, *_SHORT),
    )


def _month(written: str) -> int:
    return next(number for number, month in enumerate(MONTHS, 1) if month.startswith(written[:3]))


def _ordered(number: int, before: str) -> str:
    """An ordinal: "am dritten", "der dritte", "dritter"."""
    said = ordinal(number, "de")
    if before in _DATIVE:
        return f"{said}n"
    return said if before in ("der", "die", "das") else f"{said}r"


def _date(day: int, month: int, year: str | None, before: str) -> str:
    said = f"{_ordered(day, before)} {MONTHS[month - 1]}"
    if year is None or year == "None":
        return said
    return f"{said} {_year(int(year) + 2_000 * (len(year) == 2))}"


def _ordinal(match: re.Match[str], before: str) -> str | None:
    """After an article; otherwise the point may end a sentence, or number a list, but not before some nouns."""
    if before not in (*_DATIVE, "der", "die", "das"):
        ending = _ORDERED.get(match[2])
        return None if ending is None else f"{ordinal(int(match[1]), 'de')}{ending} {match[2]}"
    return f"{_ordered(int(match[1]), before)} {match[2]}"


def _days(match: re.Match[str], before: str) -> str:
    return f"{_ordered(int(match[1]), before)} bis {_date(int(match[2]), _month(match[3]), None, 'bis')}"


def _year(number: int) -> str:
    century, rest = divmod(number, 100)
    if not 1_100 <= number < 2_000:
        return cardinal(number, "de")
    return f"{cardinal(century, 'de')}hundert{cardinal(rest, 'de') if rest else ''}"


def _year_alone(match: re.Match[str], before: str) -> str | None:
    if len(match[1]) == 2:
        return f"{cardinal(int(match[1]), 'de')}er{match[3] or ''}" if match[2] else None
    if match[2]:
        return f"{_year(int(match[1]))}er{match[3] or ''}"
    return _year(int(match[1])) if before.rstrip(".") in _BEFORE_YEAR else None


def _clock(match: re.Match[str], _: str) -> str:
    hour, minutes = match[1] or match[3] or match[5], int(match[2] or match[4] or 0)
    said = "ein" if int(hour) == 1 else cardinal(int(hour), "de")
    return f"{said} Uhr {cardinal(minutes, 'de')}" if minutes else f"{said} Uhr"
