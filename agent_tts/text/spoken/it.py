"""Italian."""

from __future__ import annotations

import re

from agent_tts.text.spoken.shared import CLOCK, Romance
from agent_tts.text.spoken.table import SpokenRule, ordinal, roman, rule
from agent_tts.text.spoken.vocabulary import Noun


class Italian(Romance):
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

    def part(self, each: str) -> Noun:
        return Noun(each, f"{each[:-1]}i")

    def rules(self) -> tuple[SpokenRule, ...]:
        return (
            *self.dates(),
            rule(r"([IVX]+)\ (secolo)", _century),
            rule(CLOCK, lambda match, _: self.clock(match[1], match[2], " e ")),
        )


def _century(match: re.Match[str], _: str) -> str | None:
    number = roman(match[1])
    return f"{ordinal(number, 'it')} {match[2]}" if number else None
