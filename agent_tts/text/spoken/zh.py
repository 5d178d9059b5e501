"""Chinese: numbers in characters, 两 before what is counted."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agent_tts.text.spoken.runs import CLOCK, END, NUMBER, SIGNED, Numerals, Runs, full_date, month_and_day
from agent_tts.text.spoken.table import any_of, rule

_DIGITS = "零一二三四五六七八九"
_PLACES = ("", "十", "百", "千")
_GROUPS = ("", "万", "亿", "万亿")

# 2 of these is 两; of 号, 月, 日, 楼 and others, and after 第, it is 二.
_COUNTED = (
    "个|個|次|本|位|名|人|只|隻|条|條|张|張|台|臺|辆|輛|件|家|块|塊|元|天|周|週|年|小时|小時|分钟|分鐘|秒|点|點|倍|"
    "杯|瓶|碗|口|岁|歲|遍|趟|场|場|支|枝|把|双|雙|对|對|套|层|層|种|種|类|類|项|項|句|段|首|部|间|間|座|栋|棟|份|封|"
    "颗|顆|粒|根|头|頭|匹|架|艘|顿|頓|门|門|堂|节|節|步|米|公里|千米|厘米|毫米|公斤|千克|克|斤|吨|噸|升|毫升|里|亩|"
    "度|平方米|平方公里|立方米|美元|欧元|歐元|英镑|英鎊|日元|人民币|晚|夜|集|期|届|屆|轮|輪|局|票|毛|角|分|行|片|盒|"
    "箱|袋|包|罐|盘|盤|朵|棵|株|幅|篇|组|組|批|代|码|碼|寸|尺|丈|成|站|圈|声|聲|刻钟|刻鐘|个月|個月|週|千|万|萬|亿|億"
)


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


class _Chinese(Numerals):
    def counted(self, written: str) -> str:
        return "两" if written == "2" else self.number(written)

    def dialled(self, groups: Iterable[str]) -> str:
        return super().dialled(groups).replace("一", "幺")


_SAID = _Chinese(
    code="zh",
    names=_DIGITS,
    cardinal=cardinal,
    comma="，",
    scales="百万|百萬|千万|千萬|万亿|萬億|百|千|万|萬|亿|億",
    labels=(*(noun + after for noun in ("码", "号") for after in ("", "：", ":", "是", "为")), "房间"),
)


def runs() -> Runs:
    clock = rule(rf"([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?{END}", _clock)
    rules = (
        rule(rf"(1[3-9]\d)[-\ ]?(\d{{4}})[-\ ]?(\d{{4}}){END}", lambda match, _: _SAID.dialled(match.groups())),
        _SAID.national(rf"\d{{3,4}}-\d{{3,4}}-?\d{{4}}{END}"),
        full_date(
            r"(\d{4})\ ?([-/.])\ ?(\d{1,2})\ ?\2\ ?(\d{1,2})",
            lambda year, *day: f"{_SAID.digits(year)}年{_month_and_day(*day)}",
        ),
        rule(r"(1[1-9]\d\d|20\d\d)(?:(?:年)?\ ?[-–~]\ ?(1[1-9]\d\d|20\d\d))?(?=\ ?年)", _years),
        rule(r"(0\d)(?=\ ?年)|(\d0)(?=后)", lambda match, _: _SAID.digits(match[0])),
        _SAID.international(),
        _SAID.account(),
        _SAID.grouped(),
        _SAID.equation(),
        _SAID.spans(clock, CLOCK),
        clock,
        month_and_day(_month_and_day),
        _SAID.amounts(),
        _SAID.amount(),
        _SAID.scaled_range(),
        rule(r"(\d{3,4})(?=室|房)", lambda match, _: _SAID.digits(match[1])),
        rule(r"(?:11[0249]|12[02])(?!\d)", _called),
        rule(rf"({SIGNED})\ ?([%‰])", _percent),
        rule(
            rf"([-−+])({NUMBER})\ ?(℃|°C|摄氏度|度)",
            lambda m, _: f"零{'上' if m[1] == '+' else '下'}{_SAID.counted(m[2])}{_SAID.units.get(m[3], m[3])}",
        ),
        _SAID.rating(),
        _SAID.fraction(),
        _SAID.range(),
        rule(r"(\d+):(\d+)(?![\d:])", lambda match, _: f"{_SAID.number(match[1])}比{_SAID.number(match[2])}"),
        _SAID.measure(),
        rule(rf"({SIGNED})(?=\ ?(?:{any_of(_COUNTED.split('|'))}))", _counted),
        _SAID.more(),
        _SAID.version(),
        _SAID.plain(after=""),
    )
    return Runs(_SAID.code, rules, frozenset("".join((_COUNTED, _SAID.scales, "年月日号后摄氏度室房"))) - {"|"})


def _month_and_day(month: int, day: int) -> str:
    return f"{cardinal(month)}月{cardinal(day)}日"


def _called(match: re.Match[str], before: str) -> str | None:
    return _SAID.dialled([match[0]]) if before.endswith(("打", "拨", "警")) else None


def _counted(match: re.Match[str], before: str) -> str:
    return _SAID.number(match[1]) if before.endswith("第") else _SAID.counted(match[1])


def _years(match: re.Match[str], _: str) -> str:
    return _SAID.between.to.join(_SAID.digits(year) for year in match.groups() if year)


def _clock(match: re.Match[str], _: str) -> str:
    hour, minutes, seconds = match.groups()
    said = f"{_SAID.counted(str(int(hour)))}点"
    exact = int(seconds or 0)
    if minutes != "00" or exact:
        said += f"{_SAID.number(minutes)}分"
    return said + (f"{cardinal(exact)}秒" if exact else "")


def _percent(match: re.Match[str], _: str) -> str:
    return f"{_SAID.sign(match[1])}{'百' if match[2] == '%' else '千'}分之{_SAID.number(match[1].lstrip('-−+'))}"
