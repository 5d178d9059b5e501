"""Spanish."""

from __future__ import annotations

import re

from agent_tts.text.spoken.shared import Romance, day_first, numeric_dates, short_months, words
from agent_tts.text.spoken.table import Table, any_of, cardinal, ordinal, rule
from agent_tts.text.spoken.vocabulary import Noun

MONTHS = words("enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre")
_FEMININE = re.compile(r".*(?:as?|ión|iones|dad(?:es)?|tud(?:es)?|umbres?)|noche|noches|vez|veces|mano|manos|mujer|luz")
_NOT_FEMININE = re.compile(r"días?|mapas?|.*(?:ema|oma|grama|lema)s?|clima|planetas?|.*istas?")
_NO_NOUN = frozenset(
    words("de del y o u a al en es por para con que se no ni lo la las los le un una como más menos pero si")
)

# fmt: off
_WORDS = {
    "Sr.": "señor", "Sra.": "señora", "Srta.": "señorita", "Dr.": "doctor", "Dra.": "doctora",
    "etc.": "etcétera", "Ud.": "usted", "Uds.": "ustedes", "aprox.": "aproximadamente",
}
_PER = {
    "mes": "al mes", "año": "al año", "día": "al día", "hora": "por hora", "h": "por hora", "noche": "por noche",
}
# fmt: on


class _Spanish(Romance):
    def integer(self, number: int, gender: str = "") -> str:
        said = re.sub(r"uno(?= mil| mill)", "un", super().integer(number, gender)).replace("veintiun ", "veintiún ")
        if gender == "f":
            return re.sub(r"uno$", "una", said.replace("cientos", "cientas").replace("quinientos", "quinientas"))
        if gender:
            return re.sub(r"uno$", "un", said) if not said.endswith("veintiuno") else f"{said[:-9]}veintiún"
        return said

    def after_scale(self, noun: Noun) -> str:
        return f"de {noun.many}"


def table() -> Table:
    return _Spanish(
        "es",
        scales={word: Noun(word, word) for word in ("millón", "millones", "mil")},
        abbreviations=_WORDS,
        rules=(
            *numeric_dates("/-.", day_first("es", MONTHS, "primero", " de "), "el del al día"),
            short_months(MONTHS, day_first("es", MONTHS, "primero", " de ")),
            rule(r"(0?[1-9]|1[0-2])(?::([0-5]\d))?\ ?([ap])\.?(?:\ ?m\.?)", _clock_12),
            rule(rf"1º?\ de\ ({any_of(MONTHS)})", lambda match, _: f"primero de {match[1]}"),
            rule(r"([01]?\d|2[0-4]):([0-5]\d)(?:\ ?(?:h|hs|hrs)\.?)? | ([01]?\d|2[0-4])\ ?(?:h|hs|hrs)\.?", _clock),
            rule(r"(\d{1,3})\.?(º|ª|°|er|ra|ro|do|da|to|ta)", _ordinal),
        ),
        start="de",
        starts=frozenset(("de", "del", "desde", "entre", "páginas", "capítulos")),
        per=_PER,
        number_signs=("n.º", "N.º", "nº", "Nº", "n°", "N°"),
        phones=r"[6-9]\d\d\ \d{3}\ \d{3}(?<!000) | 9\d\ \d{3}\ \d\d\ \d\d | [6-9]\d\d\ \d\d\ \d\d\ \d\d",
        clock_after=frozenset(("las", "la")),
        ago="atrás",
        part=lambda each: Noun(each, f"{each}s"),
        labels=r"(?:código(?: postal| de \w+)?|otp|pin|número de (?:cuenta|tarjeta|teléfono|reserva|cliente)|pedido)"
        r"(?: es| es el)?|referencia|terminada en|termina en",
        roman_after=frozenset(("siglo", "capítulo", "tomo")),
        metre=" ",
        feminine=_FEMININE,
        not_feminine=_NOT_FEMININE,
        no_noun=_NO_NOUN,
        agreeing=(r"\d{0,8}(?<!1)1", r"[2-9]\d\d"),
        dotted=frozenset(("a.m.", "p.m.", "m.")),
        joins=frozenset(("de", "a.", "p.")),
        months=(*MONTHS, *(month[:3] for month in MONTHS)),
    )


def _clock(match: re.Match[str], _: str) -> str:
    hour, minutes = int(match[1] or match[3]), int(match[2] or 0)
    said = re.sub(r"uno$", "una", cardinal(hour, "es"))
    if minutes:
        return f"{said} y {cardinal(minutes, 'es')}"
    return said if match[2] else f"{said} {'hora' if hour == 1 else 'horas'}"


def _clock_12(match: re.Match[str], _: str) -> str:
    hour, minutes, half = int(match[1]), int(match[2] or 0), match[3]
    said = re.sub(r"uno$", "una", cardinal(hour, "es"))
    if minutes:
        said += f" y {cardinal(minutes, 'es')}"
    if half == "p" and hour == 12:
        return f"{said} del mediodía"
    return f"{said} de la {'mañana' if half == 'a' else 'tarde' if hour < 8 else 'noche'}"


def _ordinal(match: re.Match[str], _: str) -> str | None:
    number, ending = int(match[1]), match[2]
    said = {11: "undécimo", 12: "duodécimo"}.get(number) or ordinal(number, "es")
    if ending == "er":
        return said[:-1] if number in (1, 3) else None
    if ending in "ªradata" and ending.endswith(("a", "ª")):
        return re.sub(r"o\b", "a", said)
    return said
