"""Formulas in LaTeX as a person says simple ones; any language. Pure."""

from __future__ import annotations

import re

_SIGNS = ("over", "²", "³", "^", "√", "+", "-", "×", "=", "<", ">", "±", "≠", "≈", "≤", "≥", "/")
_PLAIN = "{0}/{1}|²|³|\\{0}|√{0}|+|-|×|=|<|>|±|≠|≈|≤|≥|/"
# What is said for each of `_SIGNS`; `_PLAIN` in other languages.
_WORDS = {
    "de": "{0} durch {1}|zum Quadrat|hoch drei|hoch {0}|Wurzel aus {0}|plus|minus|mal|gleich|kleiner als|größer als|"
    "plus minus|ungleich|ungefähr|kleiner gleich|größer gleich|durch",
    "en": "{0} over {1}|squared|cubed|to the power of {0}|the square root of {0}|plus|minus|times|equals|is less than|"
    "is greater than|plus or minus|is not equal to|is about|is at most|is at least|divided by",
    "es": "{0} sobre {1}|al cuadrado|al cubo|elevado a {0}|raíz cuadrada de {0}|más|menos|por|igual a|menor que|"
    "mayor que|más menos|distinto de|aproximadamente|menor o igual que|mayor o igual que|dividido por",
    "fr": "{0} sur {1}|au carré|au cube|puissance {0}|racine carrée de {0}|plus|moins|fois|égale|inférieur à|"
    "supérieur à|plus ou moins|différent de|environ|inférieur ou égal à|supérieur ou égal à|divisé par",
    "it": "{0} fratto {1}|al quadrato|al cubo|elevato a {0}|radice quadrata di {0}|più|meno|per|uguale a|minore di|"
    "maggiore di|più o meno|diverso da|circa|minore o uguale a|maggiore o uguale a|diviso",
    "ja": "{1}分の{0}|の二乗|の三乗|の{0}乗|ルート{0}|プラス|マイナス|かける|イコール|小なり|大なり|プラスマイナス|"
    "ノットイコール|約|以下|以上|割る",
    "ko": "{1}분의 {0}|의 제곱|의 세제곱|의 {0}제곱|루트 {0}|더하기|빼기|곱하기|는|보다 작다|보다 크다|플러스 마이너스|"
    "같지 않다|약|이하|이상|나누기",
    "pt": "{0} sobre {1}|ao quadrado|ao cubo|elevado a {0}|raiz quadrada de {0}|mais|menos|vezes|igual a|menor que|"
    "maior que|mais ou menos|diferente de|aproximadamente|menor ou igual a|maior ou igual a|dividido por",
    "ru": "{0} делить на {1}|в квадрате|в кубе|в степени {0}|корень из {0}|плюс|минус|умножить на|равно|меньше|больше|"
    "плюс минус|не равно|примерно равно|меньше или равно|больше или равно|делить на",
    "zh": "{1}分之{0}|的平方|的立方|的{0}次方|根号{0}|加|减|乘|等于|小于|大于|正负|不等于|约等于|小于等于|"
    "大于等于|除以",
}

_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho . sigma tau upsilon phi"
)
_SYMBOLS = {name: chr(0x3B1 + place) for place, name in enumerate((*_GREEK.split(), "chi", "psi", "omega"))}
_SYMBOLS |= {name.capitalize(): letter.upper() for name, letter in _SYMBOLS.items()}
_SYMBOLS |= dict.fromkeys(("left", "right", "quad", "qquad", "displaystyle", "big", "Big"), " ")
_SYMBOLS |= dict.fromkeys(("to", "rightarrow", "Rightarrow", "implies", "longrightarrow"), "→")
_SYMBOLS |= {
    "times": "×",
    "cdot": "×",
    "div": "/",
    "pm": "±",
    "neq": "≠",
    "ne": "≠",
    "approx": "≈",
    "leq": "≤",
    "le": "≤",
}
_SYMBOLS |= {"geq": "≥", "ge": "≥", "lt": "<", "gt": ">", "circ": "°", "degree": "°", "infty": "∞", "ldots": "…"}
_SYMBOLS |= {name: f" {name} " for name in ("sin", "cos", "tan", "log", "ln", "exp", "max", "min")}

_TEXT = ("text", "textbf", "textit", "mathrm", "mathbf", "mathit", "operatorname", "boxed")
# How many groups in braces a command has.
GROUPS = dict.fromkeys(_SYMBOLS, 0) | dict.fromkeys((*_TEXT, "sqrt"), 1) | dict.fromkeys(("frac", "dfrac", "tfrac"), 2)

_GROUP = r"\s*(?:\{([^{}\\^_]*)\}|([^\W_]))"
_BUILT = re.compile(rf"\\([dt]?frac){_GROUP}{_GROUP}|\\(sqrt|{'|'.join(_TEXT)})(?![A-Za-z]){_GROUP}|(\^|_){_GROUP}")


def said(formula: str, language: str) -> str | None:
    """A formula in words of a language, a code, with single spaces; None if it is not simple."""
    words = dict(zip(_SIGNS, _WORDS.get(language.partition("-")[0], _PLAIN).split("|"), strict=True))

    def build(match: re.Match[str]) -> str:
        above, below, argument = (match[at] or match[at + 1] or "" for at in (2, 4, 7))
        name, argument = match[1] or match[6] or match[9], argument or match[10] or match[11] or ""
        if name.endswith("frac"):
            return f" {words['over'].format(above.strip(), below.strip())} "
        if name in ("sqrt", "^"):
            power = words.get({"2": "²", "3": "³"}.get(argument.strip(), ""), words["^"]) if name == "^" else words["√"]
            return f"{' ' * (power[0] not in '²³的の의')}{power.format(argument.strip())} "
        return f" {argument} "

    text = re.sub(r"\\[,;:! ]|\\\\|[&~]", " ", formula)
    text = re.sub(r"\\([A-Za-z]+)", lambda match: _SYMBOLS.get(match[1], match[0]), text)
    text = re.sub(r"\\([%$#])|\^\{?°\}?", lambda match: match[1] or "°", text)
    while (built := _BUILT.sub(build, text)) != text:
        text = built
    text = re.sub(r"[-+×=<>±≠≈≤≥/*−→]", lambda match: _sign(match[0], words), text)
    return None if set(text) & set("\\{}^_") else re.sub(r" +(?=[ ,.)]|$)", "", text).lstrip()


def _sign(sign: str, words: dict[str, str]) -> str:
    word = words.get({"*": "×", "−": "-"}.get(sign, sign), ",")
    return f" {word} " if word[0].isalpha() or word == "," else sign
