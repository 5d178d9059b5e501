"""Korean: native numbers before counters, Chinese ones before other units."""

from __future__ import annotations

import re

from agent_tts.text.spoken.runs import CLOCK, END, LETTER, NUMBER, Runs, month_and_day, one_of, spans, telephone
from agent_tts.text.spoken.table import MAX_DIGITS, cardinal, rule

# A native number stands before these, up to 99.
_COUNTERS = (
    "개|명|시|시간|살|번|번째|마리|권|잔|병|대|장|벌|켤레|송이|그루|달|사람|가지|군데|곳|줄|통|판|채|척|"
    "자루|쌍|끼|조각|배|차례|묶음|상자|봉지|그릇|접시|바퀴|걸음|마디|편|팀"
)
# Those that begin like one, and follow Chinese numbers.
_OTHERS = "개월|개국|개년|대째|번지|번길|시리즈|장조|대대"
_ONES = ("", "한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
_TENS = ("", "열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔")
_DIGITS = ("공", "일", "이", "삼", "사", "오", "육", "칠", "팔", "구")
_MONTHS = {6: "유", 10: "시"}
# What has a number, after 번; otherwise 번 counts.
_NUMBERED = "출구|버스|승강장|게이트|창구|홈|문제|버튼|국도|고객|테이블|좌석|방"
# After these a number is said digit by digit.
_LABELS = tuple(noun + after for noun in ("번호", "코드") for after in ("", "는", "：", ":", " ", "는 "))
_SCALES = "천만|백만|십만|천|백|만|억|조"
_MONEY = {"₩": "원", "$": "달러", "€": "유로", "£": "파운드", "¥": "엔"}
_UNITS = {
    "km/h": "킬로미터 매 시", "m/s": "미터 매 초", "km": "킬로미터", "m²": "제곱미터", "m": "미터", "cm": "센티미터",
    "mm": "밀리미터", "kg": "킬로그램", "g": "그램", "mg": "밀리그램", "L": "리터", "l": "리터", "ml": "밀리리터",
    "mL": "밀리리터", "kWh": "킬로와트시", "kW": "킬로와트", "W": "와트", "V": "볼트", "Hz": "헤르츠",
    "kHz": "킬로헤르츠", "MHz": "메가헤르츠", "GHz": "기가헤르츠", "KB": "킬로바이트", "MB": "메가바이트",
    "GB": "기가바이트", "TB": "테라바이트", "°C": "도", "℃": "도", "°F": "화씨 도", "°": "도", "%": "퍼센트",
    "dB": "데시벨",
}  # fmt: skip


def native(number: int) -> str:
    """A number from 1 to 99 as it stands before a counter: 스물한."""
    return "스무" if number == 20 else _TENS[number // 10] + _ONES[number % 10]


def runs() -> Runs:
    """See `Runs`."""
    counters = one_of(_COUNTERS.split("|"))
    others = one_of(_OTHERS.split("|"))
    counter = rf"(?!{others})({counters})"
    clock = rule(rf"([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?{END}", _clock)
    rules = (
        telephone(_digits, "플러스 ", ", "),
        rule(rf"0\d{{1,2}}-\d{{3,4}}-\d{{4}}{END}|01\d{{8,9}}{END}|1[5-8]\d\d-\d{{4}}{END}", _phone),
        rule(rf"(\d{{4}})([-/.])\ ?(\d{{1,2}})\2\ ?(\d{{1,2}})\.?{END}", _date),
        spans(clock, "에서 ", CLOCK),
        clock,
        month_and_day(lambda month, day: f"{_month(month)}월 {cardinal(day, 'ko')}일"),
        rule(rf"([{''.join(_MONEY)}])({NUMBER})[-–~]\1?({NUMBER}){END}", _moneys),
        rule(
            rf"({NUMBER})({_SCALES})[-–~]({NUMBER})(?={_SCALES})",
            lambda m, _: f"{_number(m[1])}{m[2]}에서 {_number(m[3])}",
        ),
        rule(r"11\d(?=\ ?(?:번?으?로|에\ |나\ ))", lambda match, _: _digits(match[0])),
        rule(r"(\d{1,3})(?:\ ?대\ ?|:)(\d{1,3})(?!\d|\ ?대)", lambda m, _: f"{_number(m[1])} 대 {_number(m[2])}"),
        rule(rf"(\d{{1,3}})(?=\ ?번(?:[을으이]|\ ?(?:{_NUMBERED})))", lambda match, _: f"{_number(match[1])} "),
        rule(rf"([-−]?)([{''.join(_MONEY)}])\ ?([-−]?{NUMBER})\ ?({_SCALES})?{END}", _money),
        rule(r"(0?[1-9]|1[0-2])\ ?월", lambda match, _: f"{_month(int(match[1]))}월"),
        rule(r"([01]?\d|2[0-4])\ ?시(?!간)(?=\ ?(?:[0-5]?\d\ ?분|[^가-힣]|\Z|[에까부쯤경반이]))", _hour),
        rule(rf"(\d{{1,2}})\ ?[-–~]\ ?(\d{{1,2}})\ ?{counter}", _range_counted),
        rule(rf"(\d{{1,4}})(?=\ ?{counter})", _counted),
        rule(r"([1-9]\d?)/([1-9]\d?)(?![\d/])", _fraction),
        rule(r"(\d{1,4})\ ?[-–~]\ ?(\d{1,4})(?![-–~]?\d)", _range),
        rule(rf"([-−]?{NUMBER})\ ?({one_of(_UNITS)})(?![A-Za-z])", lambda m, _: f"{_number(m[1])} {_UNITS[m[2]]}"),
        rule(r"\d+(?:\.\d+){2,}", lambda match, _: " 점 ".join(map(_number, match[0].split(".")))),
        rule(rf"(?:(?<!\d)[-−])?{NUMBER}{LETTER}", lambda match, before: _plain(match[0], before)),
    )
    inside = frozenset("".join((_COUNTERS, _OTHERS, _SCALES, _NUMBERED, "년월일시분초원에까부쯤경반이을으로나"))) - {
        "|"
    }
    return Runs(rules, inside, "번대")


def _digits(written: str) -> str:
    return "".join(_DIGITS[int(digit)] for digit in written if digit.isdecimal())


def _number(written: str) -> str:
    whole, _, decimals = written.lstrip("-−").replace(",", "").partition(".")
    spelled = len(whole) > MAX_DIGITS or (len(whole) > 1 and whole[0] == "0")
    said = _digits(whole) if spelled else cardinal(int(whole), "ko")
    if decimals:
        said += f" 점 {_digits(decimals).replace('공', '영')}"
    return f"마이너스 {said}" if written[0] in "-−" else said


def _month(number: int) -> str:
    return _MONTHS.get(number) or cardinal(number, "ko")


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


def _hour(match: re.Match[str], _: str) -> str | None:
    hour = int(match[1])
    return f"{native(hour) if 0 < hour <= 12 else cardinal(hour, 'ko')} 시"


def _range_counted(match: re.Match[str], _: str) -> str | None:
    first, last, counter = int(match[1]), int(match[2]), match[3]
    if not 0 < first < last or counter == "시":
        return None
    return f"{native(first)} {counter}에서 {native(last)} {counter}"


def _plain(written: str, before: str) -> str:
    return _digits(written) if before.endswith(_LABELS) and written.isdecimal() else _number(written)


def _moneys(match: re.Match[str], _: str) -> str:
    sign, first, last = match.groups()
    return f"{_number(first)}에서 {_number(last)} {_MONEY[sign]}"


def _phone(match: re.Match[str], _: str) -> str:
    return ", ".join(map(_digits, match[0].split("-")))


def _date(match: re.Match[str], _: str) -> str | None:
    year, month, day = int(match[1]), int(match[3]), int(match[4])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return f"{cardinal(year, 'ko')}년 {_month(month)}월 {cardinal(day, 'ko')}일"


def _clock(match: re.Match[str], _: str) -> str:
    hour, minutes, seconds = int(match[1]), int(match[2]), match[3]
    said = f"{native(hour) if 0 < hour <= 12 else cardinal(hour, 'ko')} 시"
    if minutes or seconds:
        said += f" {cardinal(minutes, 'ko')} 분"
    return said + (f" {cardinal(int(seconds), 'ko')} 초" if seconds else "")


def _money(match: re.Match[str], _: str) -> str:
    minus, sign, number, scale = match.groups()
    number = number.rstrip("0").rstrip(".") if "." in number else number
    return f"{'마이너스 ' if minus else ''}{_number(number)}{scale or ''} {_MONEY[sign]}"


def _fraction(match: re.Match[str], _: str) -> str | None:
    above, below = match.groups()
    return f"{_number(below)}분의 {_number(above)}" if int(above) < int(below) else None


def _range(match: re.Match[str], _: str) -> str | None:
    first, last = match.groups()
    if any(len(number) > 1 and number[0] == "0" for number in (first, last)):
        return None
    return f"{_number(first)}{'에서' if int(first) < int(last) else ' 대'} {_number(last)}"
