"""Japanese: numbers in kanji, whose reading before a counter (三本, 一日) the engine knows."""

from __future__ import annotations

import re

from agent_tts.text.spoken.runs import CLOCK, END, LETTER, NUMBER, Runs, month_and_day, one_of, spans, telephone
from agent_tts.text.spoken.table import MAX_DIGITS, cardinal, rule

_DIGITS = ("ゼロ", "一", "二", "三", "四", "五", "六", "七", "八", "九")
# After these a number is said digit by digit.
_LABELS = tuple(noun + after for noun in ("番号", "コード") for after in ("", "は", "：", ":"))
_SCALES = "千|万|億|兆"
_MONEY = {"¥": "円", "$": "ドル", "€": "ユーロ", "£": "ポンド", "₩": "ウォン"}
_UNITS = {
    "km/h": "キロメートル毎時", "m/s": "メートル毎秒", "km": "キロメートル", "m²": "平方メートル", "m": "メートル",
    "cm": "センチメートル", "mm": "ミリメートル", "kg": "キログラム", "g": "グラム", "mg": "ミリグラム",
    "L": "リットル", "l": "リットル", "ml": "ミリリットル", "mL": "ミリリットル", "kWh": "キロワット時",
    "kW": "キロワット", "W": "ワット", "V": "ボルト", "Hz": "ヘルツ", "kHz": "キロヘルツ", "MHz": "メガヘルツ",
    "GHz": "ギガヘルツ", "KB": "キロバイト", "MB": "メガバイト", "GB": "ギガバイト", "TB": "テラバイト",
    "h": "時間", "min": "分", "s": "秒", "ms": "ミリ秒", "°C": "度", "℃": "度", "°F": "華氏度", "°": "度",
    "dB": "デシベル",
}  # fmt: skip


def runs() -> Runs:
    """See `Runs`."""
    clock = rule(rf"([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?{END}", _clock)
    rules = (
        telephone(_digits, "プラス", "、"),
        rule(rf"0\d{{1,4}}-\d{{1,4}}-\d{{3,4}}{END}|0\d{{9,10}}{END}|\d{{3}}-\d{{4}}{END}", _phone),
        rule(rf"(\d{{4}})([-/.])(\d{{1,2}})\2(\d{{1,2}}){END}", _date),
        spans(clock, "から", CLOCK),
        clock,
        month_and_day(lambda month, day: f"{_number(str(month))}月{_number(str(day))}日"),
        rule(r"0(\d)(?=[分秒月日時])", lambda match, _: _number(match[1])),
        rule(rf"([{''.join(_MONEY)}])({NUMBER})[-–~]\1?({NUMBER}){END}", _moneys),
        rule(
            rf"({NUMBER})({_SCALES})[-–~]({NUMBER})(?={_SCALES})",
            lambda m, _: f"{_number(m[1])}{m[2]}から{_number(m[3])}",
        ),
        rule(rf"([-−]?)([{''.join(_MONEY)}])\ ?([-−]?{NUMBER})\ ?({_SCALES})?{END}", _money),
        rule(rf"([-−]?{NUMBER})\ ?%", lambda match, _: f"{_number(match[1])}パーセント"),
        rule(r"([1-9]\d?)/([1-9]\d?)(?![\d/])", _fraction),
        rule(r"(\d{1,4})\ ?[-–~]\ ?(\d{1,4})(?![-–~]?\d)", _range),
        rule(rf"([-−]?{NUMBER})\ ?({one_of(_UNITS)})(?![A-Za-z])", lambda m, _: f"{_number(m[1])}{_UNITS[m[2]]}"),
        rule(r"\d+(?:\.\d+){2,}", lambda match, _: "点".join(map(_number, match[0].split(".")))),
        rule(rf"(?:(?<!\d)[-−])?{NUMBER}{LETTER}", lambda match, before: _plain(match[0], before)),
    )
    return Runs(rules, frozenset(f"{_SCALES}分秒月日時") - {"|"})


def _digits(written: str) -> str:
    return "".join(_DIGITS[int(digit)] for digit in written if digit.isdecimal())


def _number(written: str) -> str:
    whole, _, decimals = written.lstrip("-−").replace(",", "").partition(".")
    spelled = len(whole) > MAX_DIGITS or (len(whole) > 1 and whole[0] == "0")
    said = _digits(whole) if spelled else cardinal(int(whole), "ja").replace("零", "ゼロ")
    if decimals:
        said += f"点{_digits(decimals)}"
    return f"マイナス{said}" if written[0] in "-−" else said


def _plain(written: str, before: str) -> str:
    return _digits(written) if before.endswith(_LABELS) and written.isdecimal() else _number(written)


def _moneys(match: re.Match[str], _: str) -> str:
    sign, first, last = match.groups()
    return f"{_number(first)}から{_number(last)}{_MONEY[sign]}"


def _phone(match: re.Match[str], _: str) -> str:
    return "、".join(map(_digits, match[0].split("-")))


def _date(match: re.Match[str], _: str) -> str | None:
    year, _, month, day = match.groups()
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return None
    return f"{_number(year)}年{_number(str(int(month)))}月{_number(str(int(day)))}日"


def _clock(match: re.Match[str], _: str) -> str:
    hour, minutes, seconds = (int(part or 0) for part in match.groups())
    said = f"{_number(str(hour))}時"
    if minutes or match[3]:
        said += f"{_number(str(minutes))}分"
    return said + (f"{_number(str(seconds))}秒" if match[3] else "")


def _money(match: re.Match[str], _: str) -> str:
    minus, sign, number, scale = match.groups()
    number = number.rstrip("0").rstrip(".") if "." in number else number
    return ("マイナス" if minus else "") + _number(number) + (scale or "") + _MONEY[sign]


def _fraction(match: re.Match[str], _: str) -> str | None:
    above, below = match.groups()
    return f"{_number(below)}分の{_number(above)}" if int(above) < int(below) else None


def _range(match: re.Match[str], _: str) -> str | None:
    first, last = match.groups()
    if any(len(number) > 1 and number[0] == "0" for number in (first, last)):
        return None
    return f"{_number(first)}{'から' if int(first) < int(last) else '対'}{_number(last)}"
