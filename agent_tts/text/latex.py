"""Formulas in LaTeX as a person says simple ones; any language. Pure."""

from __future__ import annotations

import re

from agent_tts.text.data import data, words
from agent_tts.text.spoken.vocabulary import column

_PLAIN = {"over": "{0}/{1}", "^": "\\{0}", "√": "√{0}"}  # in languages without words for formulas

_WORDS = data("latex")
_SYMBOLS = {name: chr(0x3B1 + place) for place, name in enumerate(words(_WORDS["greek"]))}
_SYMBOLS |= {name.capitalize(): letter.upper() for name, letter in _SYMBOLS.items()}
_SYMBOLS |= dict.fromkeys(words(_WORDS["spaces"]), " ") | dict.fromkeys(words(_WORDS["arrows"]), "→")
_SYMBOLS |= dict(pair.split() for pair in _WORDS["signs"].split(","))
_SYMBOLS |= {name: f" {name} " for name in words(_WORDS["functions"])}
_TEXT = words(_WORDS["text"])
# How many groups in braces a command has; some have no words and are left out.
GROUPS = (
    dict.fromkeys((*_SYMBOLS, "int", "sum", "prod", "lim", "partial", "nabla"), 0)
    | dict.fromkeys((*_TEXT, "sqrt"), 1)
    | dict.fromkeys(("frac", "dfrac", "tfrac"), 2)
)

_WHOLE = re.compile(r"\d\s*\Z")
_GROUP = r"\s*(?:\{([^{}\\^_]*)\}|([^\W_]))"
_BUILT = re.compile(rf"\\([dt]?frac){_GROUP}{_GROUP}|\\(sqrt|{'|'.join(_TEXT)})(?![A-Za-z]){_GROUP}|(\^|_){_GROUP}")


def said(formula: str, language: str) -> str | None:
    """A formula in words of a language, a code, with single spaces; None if it is not simple."""
    code = language.partition("-")[0]
    spoken = {**_PLAIN, **column(code, "sign"), **column(code, "formula")}

    def build(match: re.Match[str]) -> str:
        above, below, argument = (match[at] or match[at + 1] or "" for at in (2, 4, 7))
        name, argument = match[1] or match[6] or match[9], argument or match[10] or match[11] or ""
        if name.endswith("frac"):
            above, below, is_mixed = above.strip(), below.strip(), _WHOLE.search(match.string[: match.start()])
            named = column(code, "mixed" if is_mixed else "fraction").get(f"{above}/{below}")
            return f" {named or spoken['over'].format(above, below)} "
        if name in ("sqrt", "^"):
            small = {"2": "²", "3": "³"}.get(argument.strip(), "")
            power = spoken.get(small, small or spoken["^"]) if name == "^" else spoken["√"]
            return f"{' ' * (power[0] not in '²³的の의')}{power.format(argument.strip())} "
        return f" {argument} "

    text = re.sub(r"(?<![\d.,^_])(\d+)/(\d+)(?![\d.,])", r"\\frac{\1}{\2}", formula)
    text = re.sub(r"\\[,;:! ]|\\\\|[&~]", " ", text)
    text = re.sub(r"\\([A-Za-z]+)", lambda match: _SYMBOLS.get(match[1], match[0]), text)
    text = re.sub(r"\\([%$#])|\^\{?°\}?", lambda match: match[1] or "°", text)
    while (built := _BUILT.sub(build, text)) != text:
        text = built
    text = re.sub(r"[-+×=<>±≠≈≤≥/*−→]", lambda match: _sign(match[0], spoken), text)
    return None if set(text) & set("\\{}^_") else re.sub(r" +(?=[ ,.)]|$)", "", text).lstrip()


def _sign(sign: str, spoken: dict[str, str]) -> str:
    word = "," if sign == "→" else spoken.get({"*": "×", "−": "-", "/": "÷"}.get(sign, sign))
    return f" {word.strip()} " if word else sign
