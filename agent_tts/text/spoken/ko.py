"""Korean: native numbers before counters, Chinese ones before other units."""

from __future__ import annotations

import re

from agent_tts.text.spoken.runs import CLOCK, END, Numerals, Runs, full_date, month_and_day
from agent_tts.text.spoken.table import SpokenRule, any_of, cardinal, rule

# A native number stands before these, up to 99.
_COUNTERS = (
    "개|명|시|시간|살|번|번째|마리|권|잔|병|대|장|벌|켤레|송이|그루|달|사람|가지|군데|곳|줄|통|판|채|척|"
    "자루|쌍|끼|조각|배|차례|묶음|상자|봉지|그릇|접시|바퀴|걸음|마디|편|팀"
)
# Those that begin like one, and follow Chinese numbers.
_OTHERS = "개월|개국|개년|대째|번지|번길|시리즈|장조|대대"
_ONES = ("", "한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
_TENS = ("", "열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔")
_MONTHS = {6: "유", 10: "시"}
# What has a number, after 번; otherwise 번 counts.
_NUMBERED = "출구|버스|승강장|게이트|창구|홈|문제|버튼|국도|고객|테이블|좌석|방"


class _Korean(Numerals):
    def decimals(self, written: str) -> str:
        return self.digits(written).replace("공", "영")

    def equation(self) -> SpokenRule:
        found = super().equation()
        say = found.say
        ending = "(?<=[일삼육칠팔영공십백천만억])는 "
        return SpokenRule(found.pattern, lambda match, before: re.sub(ending, "은 ", say(match, before) or ""))


_SAID = _Korean(
    code="ko",
    names=("공", "일", "이", "삼", "사", "오", "육", "칠", "팔", "구"),
    cardinal=lambda number: cardinal(number, "ko"),
    comma=", ",
    scales="천만|백만|십만|천|백|만|억|조",
    labels=tuple(noun + after for noun in ("번호", "코드") for after in ("", "는", "가", "：", ":")),
    counters="[원명개건대점표주]|달러|유로|포인트",
    gap=" ",
)


def native(number: int) -> str:
    """A number from 1 to 99 as it stands before a counter: 스물한."""
    return "스무" if number == 20 else _TENS[number // 10] + _ONES[number % 10]


def runs() -> Runs:
    counter = rf"(?!{any_of(_OTHERS.split('|'))})({any_of(_COUNTERS.split('|'))})"
    clock = rule(rf"([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?{END}", _clock)
    rules = (
        _SAID.international(),
        _SAID.account(),
        _SAID.national(rf"0\d{{1,2}}-\d{{3,4}}-\d{{4}}{END}|01\d{{8,9}}{END}|1[5-8]\d\d-\d{{4}}{END}"),
        full_date(
            r"(\d{4})\ ?([-/.])\ ?(\d{1,2})\ ?\2\ ?(\d{1,2})\.?",
            lambda year, *day: f"{cardinal(int(year), 'ko')}년 {_month_and_day(*day)}",
        ),
        _SAID.grouped(),
        _SAID.equation(),
        _SAID.spans(clock, CLOCK),
        clock,
        month_and_day(_month_and_day),
        _SAID.amounts(),
        _SAID.scaled_range(),
        rule(r"11\d(?=\ ?(?:번?으?로|에\ |나\ ))", lambda match, _: _SAID.digits(match[0])),
        rule(
            r"(\d{1,3})(?:\ ?대\ ?|:)(\d{1,3})(?!\d|\ ?대)",
            lambda m, _: f"{_SAID.number(m[1])} 대 {_SAID.number(m[2])}",
        ),
        rule(rf"(\d{{1,3}})(?=\ ?번(?:[을으이]|\ ?(?:{_NUMBERED})))", lambda match, _: f"{_SAID.number(match[1])} "),
        _SAID.amount(),
        rule(r"(0?[1-9]|1[0-2])\ ?월", lambda match, _: f"{_month(int(match[1]))}월"),
        rule(r"([01]?\d|2[0-4])\ ?시(?!간)(?=\ ?(?:[0-5]?\d\ ?분|[^가-힣]|\Z|[에까부쯤경반이]))", _hour),
        rule(rf"(\d{{1,2}})\ ?[-–~]\ ?(\d{{1,2}})\ ?{counter}", _range_counted),
        rule(rf"(\d{{1,4}})(?=\ ?{counter})", _counted),
        _SAID.rating(),
        _SAID.fraction(),
        _SAID.range(),
        _SAID.measure(),
        _SAID.more(),
        _SAID.version(),
        _SAID.plain(),
    )
    inside = "".join(
        (_COUNTERS, _OTHERS, _SAID.scales, _SAID.counters, _NUMBERED, "년월일시분초원에까부쯤경반이을으로나간박인")
    )
    counters = rf"\ ?(?:{any_of(_COUNTERS.split('|'))}|{_SAID.counters}|[년월일분초])"
    return Runs(_SAID.code, rules, frozenset(inside) - set("|[]"), "번대", counters)


def _month(number: int) -> str:
    return _MONTHS.get(number) or cardinal(number, "ko")


def _month_and_day(month: int, day: int) -> str:
    return f"{_month(month)}월 {cardinal(day, 'ko')}일"


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


def _hour(match: re.Match[str], _: str) -> str:
    hour = int(match[1])
    return f"{native(hour) if 0 < hour <= 12 else cardinal(hour, 'ko')} 시"


def _range_counted(match: re.Match[str], _: str) -> str | None:
    first, last, counter = int(match[1]), int(match[2]), match[3]
    if not 0 < first < last or counter == "시":
        return None
    return f"{native(first)} {counter}에서 {native(last)} {counter}"


def _clock(match: re.Match[str], before: str) -> str:
    minutes, seconds = int(match[2]), int(match[3] or 0)
    said = _hour(match, before)
    if minutes or seconds:
        said += f" {cardinal(minutes, 'ko')} 분"
    return said + (f" {cardinal(seconds, 'ko')} 초" if seconds else "")
