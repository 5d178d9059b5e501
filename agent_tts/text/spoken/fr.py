"""French."""

from __future__ import annotations

import re

from agent_tts.text.spoken.shared import day_first, numeric_dates, short_months, words
from agent_tts.text.spoken.table import Table, cardinal, ordinal, roman, rule
from agent_tts.text.spoken.vocabulary import Noun

MONTHS = words("janvier février mars avril mai juin juillet août septembre octobre novembre décembre")
_SHORT = words("janv févr avr juil sept oct nov déc")
_FEMININE = re.compile(
    r"(?!malade).*(?:tion|sion|té|ée|ence|ance|ette|esse|ure|aine|ière|elle|euse|rice|ie|ude|ine|ille|ade)"
    r"|heure|minute|seconde|page|personne|fois|semaine|nuit|table|chose|main|voiture|tasse|tonne|femme|fille|pomme|part",
    re.IGNORECASE,
)
_ORDINALS = {"re": "f", "ère": "f", "nde": "f", "er": "m", "e": "m", "ème": "m", "eme": "m", "nd": "m"}

# fmt: off
_WORDS = {
    "M.": "Monsieur", "Mme": "Madame", "Mlle": "Mademoiselle", "Dr": "Docteur",
    "etc.": "et cetera", "env.": "environ", "art.": "article",
}
# fmt: on

_ALWAYS = {"24h/24": "vingt-quatre heures sur vingt-quatre", "7j/7": "sept jours sur sept"}


class _French(Table):
    def integer(self, number: int, gender: str = "") -> str:
        said = super().integer(number, gender)
        return f"{said}e" if gender == "f" and re.search(r"\bun$", said) else said

    def form(self, number: int | None, noun: Noun) -> str:
        return noun.one if number is not None and number < 2 else noun.many

    def gender_of(self, noun: str, number: int) -> str | None:
        return "f" if _FEMININE.fullmatch(noun.rstrip("s")) else "m"

    def after_scale(self, noun: Noun) -> str:
        return f"d'{noun.many}" if noun.many[0] in "aeiouyh" else f"de {noun.many}"


_MONARCHS = ("benoît", "charles", "françois", "henri", "louis", "napoléon", "paul", "philippe", "pie")


def table() -> Table:
    return _French(
        "fr",
        point=",",
        groups=" .",
        dots=True,
        scales={
            **{word: Noun(word, word) for word in ("million", "millions", "milliard", "milliards")},
            "M": Noun("million", "millions"),
            "Md": Noun("milliard", "milliards"),
        },
        abbreviations=_WORDS,
        rules=(
            rule(r"0\d(?:[\ .]\d\d){4}", _pairs),
            *numeric_dates("/.-", day_first("fr", MONTHS, "premier", " "), "le du au dès"),
            short_months(MONTHS, day_first("fr", MONTHS, "premier", " ")),
            rule(r"([IVX]+)(e|er|ème|re)", _century),
            rule(r"24\ ?h/24|7\ ?j/7", lambda match, _: _ALWAYS[match[0].replace(" ", "")]),
            rule(r"([01]?\d|2[0-4])\ ?[hH]\ ?([0-5]\d)?(?:\ ?min)? | ([01]?\d|2[0-4]):([0-5]\d)", _clock),
            rule(rf"(\d{{1,3}})({'|'.join(sorted(_ORDINALS, key=len, reverse=True))})", _ordinal),
        ),
        pairs=True,
        per={"mois": "par mois", "an": "par an", "jour": "par jour", "h": "de l'heure", "nuit": "par nuit"},
        number_signs=("n°", "N°", "nº", "Nº"),
        phones=r"0\ ?8\d\d[\ .]\d{3}[\ .]\d{3}",
        part=lambda each: Noun(each, f"{each}s"),
        labels=r"(?:code|otp|numéro de (?:commande|compte|carte|téléphone|suivi|client|dossier)|commande|client)"
        r"(?: est| est le)?|dossier|référence",
        roman_after=frozenset(("chapitre", "tome", "acte", "partie", *_MONARCHS)),
        metre=" ",
        months=(*MONTHS, *_SHORT),
        agreeing=(r"\d{0,8}(?<!1)1",),
        joins=frozenset(("h",)),
    )


def _clock(match: re.Match[str], _: str) -> str:
    hour, minutes = int(match[1] or match[3]), int(match[2] or match[4] or 0)
    said = re.sub(r"\bun$", "une", cardinal(hour, "fr")) + (" heure" if hour < 2 else " heures")
    return f"{said} {re.sub(r'un$', 'une', cardinal(minutes, 'fr'))}" if minutes else said


def _pairs(match: re.Match[str], _: str) -> str:
    pairs = re.findall(r"\d\d", match[0])
    return ", ".join(
        f"zéro {cardinal(int(pair), 'fr')}" if pair[0] == "0" else cardinal(int(pair), "fr") for pair in pairs
    )


def _century(match: re.Match[str], _: str) -> str | None:
    """XXIe siècle, François Ier."""
    number = roman(match[1])
    if number < 2:
        return ("premier" if match[2] == "er" else "première") if number and match[2] in ("er", "re") else None
    return ordinal(number, "fr") if match[2] in ("e", "ème") else None


def _ordinal(match: re.Match[str], _: str) -> str | None:
    number, ending = int(match[1]), match[2]
    if number == 1:
        return "première" if _ORDINALS[ending] == "f" else "premier" if ending == "er" else None
    if ending in ("nd", "nde"):
        return ("second" if ending == "nd" else "seconde") if number == 2 else None
    return ordinal(number, "fr") if ending in ("e", "ème", "eme") else None
