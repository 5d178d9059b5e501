"""Italian."""

from __future__ import annotations

import re

from agent_tts.text.spoken.shared import Romance, day_first, numeric_dates, short_months, words
from agent_tts.text.spoken.table import Table, any_of, cardinal, ordinal, roman, rule
from agent_tts.text.spoken.vocabulary import Noun

MONTHS = words("gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre")
_FEMININE = re.compile(r".*(?:a|zione|sione|gione|tà|tù|trice)|notte|parte|mano|volta|classe|chiave")
_NOT_FEMININE = re.compile(r".*(?:ema|amma|oma)|pianeta")
_NO_NOUN = frozenset(
    words("e o a ad al di del della da in con su per tra fra che è il lo la i gli le un una non si come più ma")
)


class _Italian(Romance):
    def integer(self, number: int, gender: str = "") -> str:
        if number == 1 and gender:
            return "una" if gender == "f" else "un"
        said = super().integer(number, gender)
        return re.sub(r"(?<=.)tre$", "tré", said)

    def joined(self, number: str, noun: str) -> str:
        if number == "un" and re.match(r"s[^aeiou]|z|gn|ps|x|y", noun):
            number = "uno"
        return f"un'{noun}" if number == "una" and noun[0] in "aeiou" else f"{number} {noun}"

    def after_scale(self, noun: Noun) -> str:
        return f"di {noun.many}"


def table() -> Table:
    return _Italian(
        "it",
        scales={
            **{word: Noun(word, word) for word in ("milione", "milioni", "miliardo", "miliardi")},
            "mln": Noun("milione", "milioni"),
            "mld": Noun("miliardo", "miliardi"),
        },
        abbreviations={"Sig.": "signor", "Dott.": "dottor", "Prof.": "professor", "ecc.": "eccetera", "ca.": "circa"}
        | {"Sig.ra": "signora", "Dott.ssa": "dottoressa"},
        rules=(
            *numeric_dates("/.-", day_first("it", MONTHS, "primo", " "), "il del al dal"),
            short_months(MONTHS, day_first("it", MONTHS, "primo", " ")),
            rule(rf"1°?\ ({any_of(MONTHS)})", lambda match, before: f"primo {match[1]}"),
            rule(r"([IVX]+)\ (secolo)", _century),
            rule(r"([01]?\d|2[0-4]):([0-5]\d)", lambda match, _: _clock(match)),
            rule(r"(\d{1,3})(º|°|ª)", _ordinal),
        ),
        start="da",
        starts=frozenset(("da", "dal", "dalle", "dai", "tra", "fra")),
        per={"mese": "al mese", "anno": "all'anno", "giorno": "al giorno", "ora": "all'ora", "notte": "a notte"},
        number_signs=("n.", "N.", "n°", "N°", "nº", "Nº"),
        phones=r"0\d{1,3}[\ /-]\d{3,8}(?:\ \d{3,4})? | (?:3\d\d|80\d)[\ .-]\d{3}[\ .-]?\d{3,4}",
        clock_after=frozenset(("ore", "alle", "dalle", "all'")),
        ago="fa",
        part=lambda each: Noun(each, f"{each[:-1]}i"),
        labels=r"(?:codice(?: di \w+)?|otp|pin|numero (?:di |d')?(?:conto|carta|telefono|prenotazione)|ordine|cliente)"
        r"(?: è| è il)?|pratica|cap(?: è)?",
        roman_after=frozenset(("capitolo", "secolo", "tomo")),
        metre=" e ",
        feminine=_FEMININE,
        not_feminine=_NOT_FEMININE,
        no_noun=_NO_NOUN,
        agreeing=(r"\d{0,8}(?<!1)1",),
        openers=frozenset(words("X XI XII XIII XIV XV XVI XVII XVIII XIX XX XXI")),
        months=(*MONTHS, *(month[:3] for month in MONTHS)),
    )


def _clock(match: re.Match[str]) -> str:
    hour, minutes = int(match[1]), int(match[2])
    said = "una" if hour == 1 else cardinal(hour, "it")
    return f"{said} e {cardinal(minutes, 'it')}" if minutes else said


def _century(match: re.Match[str], _: str) -> str | None:
    number = roman(match[1])
    return f"{ordinal(number, 'it')} {match[2]}" if number else None


def _ordinal(match: re.Match[str], _: str) -> str:
    said = ordinal(int(match[1]), "it")
    return f"{said[:-1]}a" if match[2] == "ª" else said
