"""Portuguese; numbers as in Brazil."""

from __future__ import annotations

import re

from agent_tts.text.spoken.shared import Romance
from agent_tts.text.spoken.table import SpokenRule, rule


class Portuguese(Romance):
    def integer(self, number: int, gender: str = "") -> str:
        said = super().integer(number, gender)
        if gender == "f":
            said = re.sub(r"um$", "uma", re.sub(r"dois$", "duas", said.replace("entos", "entas")))
        return said

    def rules(self) -> tuple[SpokenRule, ...]:
        return (rule(r"([01]?\d|2[0-4])(?:[h:]([0-5]\d)(?:min|h)?|\ ?h)", self._clock), *self.dates())

    def _clock(self, match: re.Match[str], _: str) -> str:
        return self.clock(match[1], match[2], " e ", " hora" if int(match[1]) == 1 else " horas")
