"""Japanese: numbers in kanji, whose reading before a counter (三本, 一日) the engine knows."""

from __future__ import annotations

from agent_tts.text.spoken.runs import Runs
from agent_tts.text.spoken.table import SpokenRule, cardinal, rule


class Japanese(Runs):
    def cardinal(self, number: int) -> str:
        return cardinal(number, "ja").replace("零", "ゼロ")

    def year(self, written: str) -> str:
        return f"{self.number(written)}年"

    def clock(self, hour: str, minutes: str, seconds: str | None) -> str:
        parts = [(int(hour), "時"), (int(minutes), "分"), (int(seconds or 0), "秒")]
        while len(parts) > 1 and not parts[-1][0]:
            parts.pop()
        return "".join(f"{self.cardinal(number)}{unit}" for number, unit in parts)

    def counting(self) -> tuple[SpokenRule, ...]:
        return (rule(r"0(\d)(?=[分秒月日時])", lambda match, _: self.number(match[1])),)
