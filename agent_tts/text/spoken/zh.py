"""Chinese: numbers in characters, 两 before what is counted."""

from __future__ import annotations

import re

from agent_tts.text.spoken.runs import CLOCK, END, NUMBER, Runs, month_and_day, one_of, spans, telephone
from agent_tts.text.spoken.table import MAX_DIGITS, rule

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
_SCALES = "百万|百萬|千万|千萬|万亿|萬億|百|千|万|萬|亿|億"
_MONEY = {"¥": "元", "$": "美元", "€": "欧元", "£": "英镑", "₩": "韩元"}
_UNITS = {
    "km/h": "公里每小时", "m/s": "米每秒", "km²": "平方公里", "km": "公里", "m²": "平方米", "m³": "立方米", "m": "米",
    "cm": "厘米", "mm": "毫米", "kg": "公斤", "g": "克", "mg": "毫克", "L": "升", "l": "升", "ml": "毫升", "mL": "毫升",
    "kWh": "千瓦时", "kW": "千瓦", "W": "瓦", "V": "伏", "Hz": "赫兹", "kHz": "千赫", "MHz": "兆赫", "GHz": "吉赫",
    "h": "小时", "min": "分钟", "s": "秒", "ms": "毫秒", "°C": "摄氏度", "℃": "摄氏度", "°F": "华氏度", "°": "度",
    "dB": "分贝", "Mbps": "兆比特每秒",
}  # fmt: skip

# After these a number is said digit by digit.
_LABELS = tuple(noun + after for noun in ("码", "号") for after in ("", "：", ":", "是", "为"))
_WORD_END = r"(?![A-Za-z])"


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


def runs() -> Runs:
    """See `Runs`."""
    clock = rule(rf"([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?{END}", _clock)
    units, counted = one_of(_UNITS), one_of(_COUNTED.split("|"))
    signs = "".join(_MONEY)
    rules = (
        rule(rf"(1[3-9]\d)[-\ ]?(\d{{4}})[-\ ]?(\d{{4}}){END}", _mobile),
        rule(rf"\d{{3,4}}-\d{{3,4}}-?\d{{4}}{END}", _phone),
        rule(rf"(\d{{4}})([-/.])(\d{{1,2}})\2(\d{{1,2}}){END}", _date),
        rule(r"(1[1-9]\d\d|20\d\d)(?:(?:年)?\ ?[-–~]\ ?(1[1-9]\d\d|20\d\d))?(?=\ ?年)", _years),
        rule(r"(0\d)(?=\ ?年)|(\d0)(?=后)", lambda match, _: digits(match[0])),
        telephone(_telephone, "加", "，"),
        spans(clock, "到", CLOCK),
        clock,
        month_and_day(lambda month, day: f"{cardinal(month)}月{cardinal(day)}日"),
        rule(rf"([{signs}])({NUMBER})[-–~]\1?({NUMBER}){END}", _moneys),
        rule(rf"([-−]?)([{signs}])\ ?([-−]?{NUMBER})\ ?({_SCALES})?{END}", _money),
        rule(rf"({NUMBER}(?:{_SCALES}))[-–~]({NUMBER})(?={_SCALES})", _range_of_scales),
        rule(r"(\d{3,4})(?=室|房)", lambda match, _: digits(match[1])),
        rule(r"(?:11[0249]|12[02])(?!\d)", lambda match, before: _called(match[0], before)),
        rule(rf"([-−]?{NUMBER})\ ?([%‰])", _percent),
        rule(rf"([-−])({NUMBER})\ ?(℃|°C|摄氏度|度)", lambda match, _: f"零下{_count(match[2])}{_unit(match[3])}"),
        rule(r"([1-9]\d?)/([1-9]\d?)(?![\d/])", _fraction),
        rule(r"(\d{1,4})\ ?[-–~]\ ?(\d{1,4})(?![-–~]?\d)", _range),
        rule(r"(\d+):(\d+)(?![\d:])", lambda match, _: f"{_number(match[1])}比{_number(match[2])}"),
        rule(rf"([-−]?{NUMBER})\ ?({units}){_WORD_END}", _measured),
        rule(rf"([-−]?{NUMBER})(?=\ ?(?:{counted}))", _counted),
        rule(r"\d+(?:\.\d+){2,}", lambda match, _: "点".join(map(_number, match[0].split(".")))),
        rule(rf"(?:(?<!\d)[-−])?{NUMBER}", lambda match, before: _plain(match[0], before)),
    )
    inside = frozenset("".join((_COUNTED, _SCALES, "年月日号后摄氏度室房"))) - {"|"}
    return Runs(rules, inside)


def digits(written: str) -> str:
    """One digit after the other."""
    return "".join(_DIGITS[int(digit)] for digit in written if digit.isdecimal())


def _number(written: str) -> str:
    whole, _, decimals = written.lstrip("-−").replace(",", "").partition(".")
    spelled = len(whole) > MAX_DIGITS or (len(whole) > 1 and whole[0] == "0")
    said = digits(whole) if spelled else cardinal(int(whole))
    if decimals:
        said += f"点{digits(decimals)}"
    return f"负{said}" if written[0] in "-−" else said


def _count(written: str) -> str:
    return written.replace("2", "两") if written.lstrip("-−") == "2" and written[0] == "2" else _number(written)


def _unit(written: str) -> str:
    return _UNITS.get(written, written)


def _telephone(written: str) -> str:
    return digits(written).replace("一", "幺")


def _called(written: str, before: str) -> str | None:
    return _telephone(written) if before.endswith(("打", "拨", "警")) else None


def _range_of_scales(match: re.Match[str], _: str) -> str:
    first = re.fullmatch(rf"({NUMBER})(\D+)", match[1])
    assert first is not None
    return f"{_count(first[1])}{first[2]}到{_count(match[2])}"


def _moneys(match: re.Match[str], _: str) -> str:
    sign, first, last = match.groups()
    return f"{_number(first)}到{_number(last)}{_MONEY[sign]}"


def _plain(written: str, before: str) -> str:
    if before.endswith((*_LABELS, "房间")) and written.isdecimal():
        return digits(written)
    return _number(written)


def _counted(match: re.Match[str], before: str) -> str:
    return _number(match[1]) if before.endswith("第") else _count(match[1])


def _measured(match: re.Match[str], _: str) -> str:
    return _count(match[1]) + _UNITS[match[2]]


def _mobile(match: re.Match[str], _: str) -> str:
    return "，".join(map(_telephone, match.groups()))


def _phone(match: re.Match[str], _: str) -> str:
    return "，".join(map(_telephone, match[0].split("-")))


def _date(match: re.Match[str], _: str) -> str | None:
    year, _, month, day = match.groups()
    if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
        return None
    return f"{digits(year)}年{cardinal(int(month))}月{cardinal(int(day))}日"


def _years(match: re.Match[str], _: str) -> str:
    return digits(match[1]) if match[2] is None else f"{digits(match[1])}到{digits(match[2])}"


def _clock(match: re.Match[str], _: str) -> str:
    hour, minutes, seconds = match.groups()
    said = f"{_count(str(int(hour)))}点"
    if minutes != "00" or seconds:
        said += f"{_number(minutes) if minutes[0] != '0' else digits(minutes)}分"
    return said + (f"{_number(str(int(seconds)))}秒" if seconds else "")


def _money(match: re.Match[str], _: str) -> str:
    minus, sign, number, scale = match.groups()
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return ("负" if minus else "") + _count(number) + (scale or "") + _MONEY[sign]


def _percent(match: re.Match[str], _: str) -> str:
    minus, number = ("负", match[1][1:]) if match[1][0] in "-−" else ("", match[1])
    return f"{minus}{'百' if match[2] == '%' else '千'}分之{_number(number)}"


def _fraction(match: re.Match[str], _: str) -> str | None:
    above, below = int(match[1]), int(match[2])
    return f"{cardinal(below)}分之{cardinal(above)}" if above < below else None


def _range(match: re.Match[str], _: str) -> str | None:
    first, last = match.groups()
    if any(len(number) > 1 and number[0] == "0" for number in (first, last)):
        return None
    return f"{_number(first)}{'到' if int(first) < int(last) else '比'}{_number(last)}"
