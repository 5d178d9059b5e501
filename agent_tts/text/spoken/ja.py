"""Japanese: numbers in kanji, whose reading before a counter (三本, 一日) the engine knows."""

from __future__ import annotations

import re

from agent_tts.text.spoken.runs import CLOCK, END, Numerals, Runs, full_date, month_and_day
from agent_tts.text.spoken.table import cardinal, rule

_SAID = Numerals(
    code="ja",
    names=("ゼロ", "一", "二", "三", "四", "五", "六", "七", "八", "九"),
    cardinal=lambda number: cardinal(number, "ja").replace("零", "ゼロ"),
    comma="、",
    scales="千|万|億|兆",
    counters="[円人個名件台本枚回歳年点票株]|ポイント|ドル|ユーロ",
    labels=tuple(noun + after for noun in ("番号", "コード") for after in ("", "は", "：", ":")),
)


def runs() -> Runs:
    clock = rule(rf"([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?{END}", _clock)
    rules = (
        _SAID.international(),
        _SAID.account(),
        _SAID.national(rf"0\d{{1,4}}-\d{{1,4}}-\d{{3,4}}{END}|0\d{{9,10}}{END}|\d{{3}}-\d{{4}}{END}"),
        full_date(
            r"(\d{4})\ ?([-/.])\ ?(\d{1,2})\ ?\2\ ?(\d{1,2})",
            lambda year, *day: f"{_SAID.number(year)}年{_month_and_day(*day)}",
        ),
        _SAID.grouped(),
        _SAID.equation(),
        _SAID.spans(clock, CLOCK),
        clock,
        month_and_day(_month_and_day),
        rule(r"0(\d)(?=[分秒月日時])", lambda match, _: _SAID.number(match[1])),
        _SAID.amounts(),
        _SAID.scaled_range(),
        _SAID.amount(),
        _SAID.rating(),
        _SAID.fraction(),
        _SAID.range(),
        _SAID.measure(),
        _SAID.more(),
        _SAID.version(),
        _SAID.plain(),
    )
    counters = f"{_SAID.counters}|時間|[分秒月日時泊]"
    return Runs(_SAID.code, rules, frozenset(f"{_SAID.scales}{counters}") - set("|[]"), counters=counters)


def _month_and_day(month: int, day: int) -> str:
    return f"{_SAID.cardinal(month)}月{_SAID.cardinal(day)}日"


def _clock(match: re.Match[str], _: str) -> str:
    hour, minutes, seconds = (int(part or 0) for part in match.groups())
    said = f"{_SAID.cardinal(hour)}時"
    if minutes or seconds:
        said += f"{_SAID.cardinal(minutes)}分"
    return said + (f"{_SAID.cardinal(seconds)}秒" if seconds else "")
