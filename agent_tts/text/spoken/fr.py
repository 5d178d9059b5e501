"""French."""

from __future__ import annotations

import re

from agent_tts.text.spoken.shared import CLOCK, Romance
from agent_tts.text.spoken.table import SpokenRule, cardinal, ordinal, roman, rule
from agent_tts.text.spoken.vocabulary import Noun

_FEMININE = ("re", "ère", "nde")  # behind an ordinal
_ALWAYS = {"24h/24": "vingt-quatre heures sur vingt-quatre", "7j/7": "sept jours sur sept"}


class French(Romance):
    def integer(self, number: int, gender: str = "") -> str:
        said = super().integer(number, gender)
        return f"{said}e" if gender == "f" and re.search(r"\bun$", said) else said

    def form(self, number: int | None, noun: Noun) -> str:
        return noun.one if number is not None and number < 2 else noun.many

    def after_scale(self, noun: Noun) -> str:
        return f"d'{noun.many}" if noun.many[0] in "aeiouyh" else f"de {noun.many}"

    def rules(self) -> tuple[SpokenRule, ...]:
        return (
            rule(r"0\d(?:[\ .]\d\d){4}", _pairs),
            *self.dates(),
            rule(r"([IVX]+)(e|er|ème|re)", _century),
            rule(r"24\ ?h/24|7\ ?j/7", lambda match, _: _ALWAYS[match[0].replace(" ", "")]),
            rule(rf"([01]?\d|2[0-4])\ ?[hH]\ ?([0-5]\d)?(?:\ ?min)? | {CLOCK}", self._clock),
            rule(r"(\d{1,3})(ème|eme|ère|nde|er|nd|re|e)", _ordinal),
        )

    def _clock(self, match: re.Match[str], _: str) -> str:
        hour, minutes = int(match[1] or match[3]), int(match[2] or match[4] or 0)
        said = self.integer(hour, "f") + (" heure" if hour < 2 else " heures")
        return f"{said} {self.integer(minutes, 'f')}" if minutes else said


def _pairs(match: re.Match[str], _: str) -> str:
    pairs = re.findall(r"\d\d", match[0])
    return ", ".join("zéro " * (pair[0] == "0") + cardinal(int(pair), "fr") for pair in pairs)


def _century(match: re.Match[str], _: str) -> str | None:
    """XXIe siècle, François Ier."""
    number = roman(match[1])
    return _ordinal_of(number, match[2]) if number == 1 or (number and match[2] in ("e", "ème")) else None


def _ordinal(match: re.Match[str], _: str) -> str | None:
    return _ordinal_of(int(match[1]), match[2])


def _ordinal_of(number: int, ending: str) -> str | None:
    if number == 1:
        return "première" if ending in _FEMININE else "premier" if ending == "er" else None
    if ending in ("nd", "nde"):
        return ("second" if ending == "nd" else "seconde") if number == 2 else None
    return ordinal(number, "fr") if ending in ("e", "ème", "eme") else None
