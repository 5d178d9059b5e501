"""Spanish."""

from __future__ import annotations

import re

from agent_tts.text.spoken.shared import CLOCK, Romance
from agent_tts.text.spoken.table import SpokenRule, ordinal, rule


class Spanish(Romance):
    def integer(self, number: int, gender: str = "") -> str:
        said = re.sub(r"uno(?= mil| mill)", "un", super().integer(number, gender)).replace("veintiun ", "veintiún ")
        if gender == "f":
            return re.sub(r"uno$", "una", said.replace("cientos", "cientas").replace("quinientos", "quinientas"))
        if gender:
            return re.sub(r"uno$", "un", said) if not said.endswith("veintiuno") else f"{said[:-9]}veintiún"
        return said

    def rules(self) -> tuple[SpokenRule, ...]:
        hours = r"(?:h|hs|hrs)\.?"
        return (
            rule(r"(0?[1-9]|1[0-2])(?::([0-5]\d))?\ ?([ap])\.?(?:\ ?m\.?)", self._clock_12),
            rule(rf"{CLOCK}(?:\ ?{hours})? | ([01]?\d|2[0-4])\ ?{hours}", self._clock),
            *self.dates(),
        )

    def _clock(self, match: re.Match[str], _: str) -> str:
        hour = match[1] or match[3]
        return self.clock(hour, match[2], " y ", "" if match[2] else " hora" if int(hour) == 1 else " horas")

    def _clock_12(self, match: re.Match[str], _: str) -> str:
        hour, minutes, half = match.groups()
        said = self.clock(hour, minutes, " y ")
        if half == "p" and int(hour) == 12:
            return f"{said} del mediodía"
        return f"{said} de la {'mañana' if half == 'a' else 'tarde' if int(hour) < 8 else 'noche'}"

    def _ordinal(self, match: re.Match[str], before: str) -> str | None:
        number = int(match[1])
        if match[2] == "er":
            return ordinal(number, "es")[:-1] if number in (1, 3) else None
        said = {11: "undécimo", 12: "duodécimo"}.get(number) or super()._ordinal(match, before) or ""
        return f"{said[:-1]}a" if number in (11, 12) and match[2][-1] in "ªa" else said
