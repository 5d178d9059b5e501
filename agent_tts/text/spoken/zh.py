"""Chinese: numbers in characters, 两 before what is counted."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent_tts.text.spoken.runs import END, NUMBER, SIGNED, Runs
from agent_tts.text.spoken.table import SpokenRule, rule

_DIGITS = "零一二三四五六七八九"
_PLACES = ("", "十", "百", "千")
_GROUPS = ("", "万", "亿", "万亿")


def cardinal(number: int) -> str:
    """A whole number, up to 16 digits: 二十三, 两千零五."""
    if number < 0:
        return f"负{cardinal(-number)}"
    if number == 0:
        return "零"
    said, gap = "", False
    for group in range((len(str(number)) - 1) // 4, -1, -1):
        value = number // 10_000**group % 10_000
        if not value:
            gap = True
            continue
        said += ("零" if said and (gap or value < 1_000) else "") + _group(value) + _GROUPS[group]
        gap = False
    said = said.removeprefix("一") if said.startswith("一十") else said
    return f"两{said[1:]}" if re.match("二[千万亿]", said) else said


def _group(value: int) -> str:
    said, gap = "", False
    for place in range(3, -1, -1):
        digit = value // 10**place % 10
        if digit:
            said += ("零" if gap and said else "") + _DIGITS[digit] + _PLACES[place]
        gap = not digit
    return said


class Chinese(Runs):
    def cardinal(self, number: int) -> str:
        return cardinal(number)

    def count(self, written: str) -> str:
        return "两" if written == "2" else self.number(written)

    def dialled(self, groups: Iterable[str]) -> str:
        return super().dialled(groups).replace("一", "幺")

    def year(self, written: str) -> str:
        return f"{self.digits(written)}年"

    def clock(self, hour: str, minutes: str, seconds: str | None) -> str:
        said, exact = f"{self.count(str(int(hour)))}点", int(seconds or 0)
        if minutes != "00" or exact:
            said += f"{self.number(minutes)}分"
        return said + (f"{cardinal(exact)}秒" if exact else "")

    def first(self) -> tuple[SpokenRule, ...]:
        return (
            rule(rf"(1[3-9]\d)[-\ ]?(\d{{4}})[-\ ]?(\d{{4}}){END}", lambda match, _: self.dialled(match.groups())),
            rule(r"(1[1-9]\d\d|20\d\d)(?:(?:年)?\ ?[-–~]\ ?(1[1-9]\d\d|20\d\d))?(?=\ ?年)", self._years),
            rule(r"(0\d)(?=\ ?年)|(\d0)(?=后)", lambda match, _: self.digits(match[0])),
        )

    def counting(self) -> tuple[SpokenRule, ...]:
        return (
            rule(r"(\d{3,4})(?=室|房)", lambda match, _: self.digits(match[1])),
            rule(r"(?:11[0249]|12[02])(?!\d)", self._called),
            rule(rf"({SIGNED})\ ?([%‰])", self._percent),
            rule(
                rf"([-−+])({NUMBER})\ ?(℃|°C|摄氏度|度)",
                lambda m, _: f"零{'上' if m[1] == '+' else '下'}{self.count(m[2])}{self.units.get(m[3], m[3])}",
            ),
            rule(r"(\d+):(\d+)(?![\d:])", lambda match, _: f"{self.number(match[1])}比{self.number(match[2])}"),
            rule(rf"({SIGNED})(?=\ ?(?:{self.counted}))", self._before_counter),
        )

    def _called(self, match: re.Match[str], before: str) -> str | None:
        return self.dialled([match[0]]) if before.endswith(("打", "拨", "警")) else None

    def _before_counter(self, match: re.Match[str], before: str) -> str:
        return self.number(match[1]) if before.endswith("第") else self.count(match[1])

    def _years(self, match: re.Match[str], _: str) -> str:
        return self.between.to.join(self.digits(year) for year in match.groups() if year)

    def _percent(self, match: re.Match[str], _: str) -> str:
        whole = "百" if match[2] == "%" else "千"
        return f"{self.sign(match[1])}{whole}分之{self.number(match[1].lstrip('-−+'))}"
