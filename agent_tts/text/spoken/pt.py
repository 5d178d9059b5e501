"""Portuguese; numbers as in Brazil."""

from __future__ import annotations

import re

from agent_tts.text.spoken.shared import Romance, day_first, numeric_dates, short_months, words
from agent_tts.text.spoken.table import Table, any_of, cardinal, ordinal, rule
from agent_tts.text.spoken.vocabulary import Noun

MONTHS = words("janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro")
_FEMININE = re.compile(
    r".*(?:as?|ção|ções|são|sões|dade|dades|agem|agens|tude)|noites?|vez|vezes|mãos?|mulher|mulheres|luz"
)
_NOT_FEMININE = re.compile(r"dias?|mapas?|.*(?:ema|oma|grama)s?|planetas?|.*istas?")
_NO_NOUN = frozenset(
    words("de do da dos das e ou a ao à em no na nos nas é por para com que se não o as os um uma como mais mas")
)

# fmt: off
_WORDS = {
    "Sr.": "senhor", "Sra.": "senhora", "Dr.": "doutor", "Dra.": "doutora", "etc.": "etcétera",
    "aprox.": "aproximadamente",
}
_PER = {
    "mês": "por mês", "ano": "por ano", "dia": "por dia", "hora": "por hora", "h": "por hora", "noite": "por noite",
}
# fmt: on


class _Portuguese(Romance):
    def integer(self, number: int, gender: str = "") -> str:
        said = super().integer(number, gender)
        if gender == "f":
            said = re.sub(r"um$", "uma", re.sub(r"dois$", "duas", said.replace("entos", "entas")))
        return said

    def after_scale(self, noun: Noun) -> str:
        return f"de {noun.many}"


def table() -> Table:
    return _Portuguese(
        "pt",
        scales={word: Noun(word, word) for word in ("milhão", "milhões", "bilhão", "bilhões", "mil")}
        | {"mi": Noun("milhão", "milhões"), "bi": Noun("bilhão", "bilhões")},
        abbreviations=_WORDS,
        rules=(
            *numeric_dates("/-.", day_first("pt", MONTHS, "primeiro", " de "), "dia em no até"),
            short_months(MONTHS, day_first("pt", MONTHS, "primeiro", " de ")),
            rule(rf"1º?\ de\ ({any_of(MONTHS)})", lambda match, _: f"primeiro de {match[1]}"),
            rule(r"([01]?\d|2[0-4])(?:[h:]([0-5]\d)(?:min|h)?|\ ?h)", _clock),
            rule(r"(\d{1,3})\.?(º|ª|°|o|a)", _ordinal),
        ),
        start="de",
        starts=frozenset(("de", "das", "do", "desde", "entre", "páginas", "capítulos")),
        per=_PER,
        number_signs=("n.º", "N.º", "nº", "Nº", "n°", "N°"),
        phones=r"\(\d\d\)\ ?9?\d{4}-?\d{4} | 0800\ \d{3}\ \d{4} | 9?\d{4}-\d{4}"
        r"| \d{5}-\d{3} | \d{3}\.\d{3}\.\d{3}-\d\d",  # a CEP, a CPF
        clock_after=frozenset(("às", "as", "das")),
        ago="atrás",
        part=lambda each: Noun(each, f"{each}s"),
        labels=r"(?:código(?: de \w+)?|otp|pin|número d[oae] (?:conta|cartão|telefone|reserva|cliente)|pedido)"
        r"(?: é| é o)?|(?:protocolo|cep|senha)(?: é)?|final",
        roman_after=frozenset(("século", "capítulo", "tomo")),
        metre=" e ",
        feminine=_FEMININE,
        not_feminine=_NOT_FEMININE,
        no_noun=_NO_NOUN,
        agreeing=(r"\d{0,8}(?<!1)[12]", r"[2-9]\d\d"),
        joins=frozenset(("de",)),
        months=(*MONTHS, *(month[:3] for month in MONTHS)),
    )


def _clock(match: re.Match[str], _: str) -> str:
    hour, minutes = int(match[1]), int(match[2] or 0)
    said = re.sub(r"um$", "uma", re.sub(r"dois$", "duas", cardinal(hour, "pt")))
    if minutes:
        return f"{said} e {cardinal(minutes, 'pt')}"
    return f"{said} {'hora' if hour == 1 else 'horas'}"


def _ordinal(match: re.Match[str], _: str) -> str:
    said = ordinal(int(match[1]), "pt")
    return re.sub(r"o\b", "a", said) if match[2] in "ªa" else said
