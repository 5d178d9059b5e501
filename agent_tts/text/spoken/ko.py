"""Korean: native numbers before counters, Chinese ones before other units."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from agent_tts.text.spoken.runs import Runs
from agent_tts.text.spoken.table import SpokenRule, cardinal, rule

_ONES = ("", "한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
_TENS = ("", "열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔")
_MONTHS = {6: "유", 10: "시"}


@dataclass(frozen=True)
class Korean(Runs):
    """Its words are those of `languages.toml`, which says what they are."""

    others: str = ""
    numbered: str = ""

    @cached_property
    def _limited(self) -> re.Pattern[str]:
        return re.compile(rf"\ ?(?:{self.counted}|{self.counters}|[년월일분초])")

    def decimals(self, written: str) -> str:
        return self.digits(written).replace("공", "영")

    def year(self, written: str) -> str:
        return f"{self.cardinal(int(written))}년 "

    def month(self, number: int) -> str:
        return _MONTHS.get(number) or self.cardinal(number)

    def clock(self, hour: str, minutes: str, seconds: str | None) -> str:
        said, past, exact = _hour(int(hour)), int(minutes), int(seconds or 0)
        if past or exact:
            said += f" {self.cardinal(past)} 분"
        return said + (f" {self.cardinal(exact)} 초" if exact else "")

    def equation(self) -> SpokenRule:
        found = super().equation()
        say = found.say
        ending = "(?<=[일삼육칠팔영공십백천만억])는 "
        return SpokenRule(found.pattern, lambda match, before: re.sub(ending, "은 ", say(match, before) or ""))

    def counting(self) -> tuple[SpokenRule, ...]:
        counter = rf"(?!{self.others})({self.counted})"
        numbered = rf"(\d{{1,3}})(?=\ ?번(?:[을으이]|\ ?(?:{self.numbered})))"
        hour = r"([01]?\d|2[0-4])\ ?시(?!간)(?=\ ?(?:[0-5]?\d\ ?분|[^가-힣]|\Z|[에까부쯤경반이]))"
        return (
            rule(r"11\d(?=\ ?(?:번?으?로|에\ |나\ ))", lambda match, _: self.digits(match[0])),
            rule(
                r"(\d{1,3})(?:\ ?대\ ?|:)(\d{1,3})(?!\d|\ ?대)",
                lambda match, _: f"{self.number(match[1])} 대 {self.number(match[2])}",
            ),
            rule(numbered, lambda match, _: f"{self.number(match[1])} "),
            rule(r"(0?[1-9]|1[0-2])\ ?월", lambda match, _: f"{self.month(int(match[1]))}월"),
            rule(hour, lambda match, _: _hour(int(match[1]))),
            rule(rf"(\d{{1,2}})\ ?[-–~]\ ?(\d{{1,2}})\ ?{counter}", _range_counted),
            rule(rf"(\d{{1,4}})(?=\ ?{counter})", _counted),
        )


def native(number: int) -> str:
    """A number from 1 to 99 as it stands before a counter: 스물한."""
    return "스무" if number == 20 else _TENS[number // 10] + _ONES[number % 10]


def _counted(match: re.Match[str], before: str) -> str | None:
    """The number alone: the counter follows it in the text."""
    number = int(match[1])
    if not 0 < number < 1_000 or match[1][0] == "0" or (number > 24 and match[2] == "시"):
        return None
    if before.endswith("제"):  # chapter three
        return None
    if match[2] == "대" and number % 10 == 0:  # people in their thirties
        return None
    hundreds, rest = divmod(number, 100)
    said = " ".join(part for part in (hundreds and cardinal(hundreds * 100, "ko"), rest and native(rest)) if part)
    return said if match.string[match.end() : match.end() + 1] == " " else f"{said} "


def _hour(hour: int) -> str:
    return f"{native(hour) if 0 < hour <= 12 else cardinal(hour, 'ko')} 시"


def _range_counted(match: re.Match[str], _: str) -> str | None:
    first, last, counter = int(match[1]), int(match[2]), match[3]
    if not 0 < first < last or counter == "시":
        return None
    return f"{native(first)} {counter}에서 {native(last)} {counter}"
