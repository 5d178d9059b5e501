"""Chinese (numbers in characters, 两 before what is counted), Japanese (in kanji, whose reading before a counter the
engine knows) and Korean (native numbers before counters, Chinese ones before other units).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from agent_tts.text.spoken.runs import END, NUMBER, SIGNED, Runs
from agent_tts.text.spoken.table import SpokenRule, cardinal, rule

_DIGITS = "零一二三四五六七八九"
_PLACES = ("", "十", "百", "千")
_GROUPS = ("", "万", "亿", "万亿")
_ONES = ("", "한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
_TENS = ("", "열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔")
_MONTHS = {6: "유", 10: "시"}


def chinese(number: int) -> str:
    """A whole number, up to 16 digits: 二十三, 两千零五."""
    if number <= 0:
        return f"负{chinese(-number)}" if number else "零"
    said = ""
    for place, digit in zip(range(len(str(number)))[::-1], str(number), strict=True):
        said += _DIGITS[int(digit)] + (_PLACES[place % 4] if digit != "0" else "")
        said += "" if place % 4 else _GROUPS[place // 4]
    said = re.sub("零+", "零", re.sub("零{4}(?:万亿|亿|万)", "零", said))  # a group of zeros has no word
    said = re.sub("零(?=[万亿])", "", said).rstrip("零")
    said = said.removeprefix("一") if said.startswith("一十") else said
    return f"两{said[1:]}" if re.match("二[千万亿]", said) else said


class Chinese(Runs):
    def cardinal(self, number: int) -> str:
        return chinese(number)

    def count(self, written: str) -> str:
        return "两" if written == "2" else self.number(written)

    def dialled(self, groups: Iterable[str]) -> str:
        return super().dialled(groups).replace("一", "幺")

    def year(self, written: str) -> str:
        return f"{self.digits(written)}年"

    def clock(self, hour: str, minutes: str, seconds: str | None = None) -> str:
        said, exact = f"{self.count(str(int(hour)))}点", int(seconds or 0)
        if minutes != "00" or exact:
            said += f"{self.number(minutes)}分"
        return said + (f"{chinese(exact)}秒" if exact else "")

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


class Japanese(Runs):
    def cardinal(self, number: int) -> str:
        return cardinal(number, "ja").replace("零", "ゼロ")

    def year(self, written: str) -> str:
        return f"{self.number(written)}年"

    def clock(self, hour: str, minutes: str, seconds: str | None = None) -> str:
        parts = [(int(hour), "時"), (int(minutes), "分"), (int(seconds or 0), "秒")]
        while len(parts) > 1 and not parts[-1][0]:
            parts.pop()
        return "".join(f"{self.cardinal(number)}{unit}" for number, unit in parts)

    def counting(self) -> tuple[SpokenRule, ...]:
        return (rule(r"0(\d)(?=[分秒月日時])", lambda match, _: self.number(match[1])),)


@dataclass(frozen=True)
class Korean(Runs):
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

    def clock(self, hour: str, minutes: str, seconds: str | None = None) -> str:
        said, past, exact = _hour(int(hour)), int(minutes), int(seconds or 0)
        if past or exact:
            said += f" {self.cardinal(past)} 분"
        return said + (f" {self.cardinal(exact)} 초" if exact else "")

    def _equation(self, match: re.Match[str], before: str) -> str:
        return re.sub("(?<=[일삼육칠팔영공십백천만억])는 ", "은 ", super()._equation(match, before))

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
