"""Formulas in LaTeX as a person says simple ones; any language. Pure."""

from __future__ import annotations

import re

from agent_tts.text.spoken.vocabulary import column

_PLAIN = {"over": "{0}/{1}", "^": "\\{0}", "√": "√{0}"}  # in languages without words for formulas

_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho . sigma tau upsilon phi"
)
_SYMBOLS = {name: chr(0x3B1 + place) for place, name in enumerate((*_GREEK.split(), "chi", "psi", "omega"))}
_SYMBOLS |= {name.capitalize(): letter.upper() for name, letter in _SYMBOLS.items()}
_SYMBOLS |= dict.fromkeys(("left", "right", "quad", "qquad", "displaystyle", "big", "Big"), " ")
_SYMBOLS |= dict.fromkeys(("to", "rightarrow", "Rightarrow", "implies", "longrightarrow"), "→")
_SIGNS = "times × cdot × div / pm ± neq ≠ ne ≠ approx ≈ leq ≤ le ≤ geq ≥ ge ≥ lt < gt > circ ° degree ° infty ∞ ldots …"
_SYMBOLS |= dict(zip(_SIGNS.split()[::2], _SIGNS.split()[1::2], strict=True))
_SYMBOLS |= {name: f" {name} " for name in ("sin", "cos", "tan", "log", "ln", "exp", "max", "min")}

_NAMES = (
    "text textbf textit texttt textsf mathrm mathbf mathit mathbb mathcal operatorname boxed emph underline vec hat"
)
_TEXT = (*_NAMES.split(), "bar", "overline", "tilde")
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
    words = {**_PLAIN, **column(code, "sign"), **column(code, "formula")}

    def build(match: re.Match[str]) -> str:
        above, below, argument = (match[at] or match[at + 1] or "" for at in (2, 4, 7))
        name, argument = match[1] or match[6] or match[9], argument or match[10] or match[11] or ""
        if name.endswith("frac"):
            above, below, is_mixed = above.strip(), below.strip(), _WHOLE.search(match.string[: match.start()])
            named = column(code, "mixed" if is_mixed else "fraction").get(f"{above}/{below}")
            return f" {named or words['over'].format(above, below)} "
        if name in ("sqrt", "^"):
            small = {"2": "²", "3": "³"}.get(argument.strip(), "")
            power = words.get(small, small or words["^"]) if name == "^" else words["√"]
            return f"{' ' * (power[0] not in '²³的の의')}{power.format(argument.strip())} "
        return f" {argument} "

    text = re.sub(r"(?<![\d.,^_])(\d+)/(\d+)(?![\d.,])", r"\\frac{\1}{\2}", formula)
    text = re.sub(r"\\[,;:! ]|\\\\|[&~]", " ", text)
    text = re.sub(r"\\([A-Za-z]+)", lambda match: _SYMBOLS.get(match[1], match[0]), text)
    text = re.sub(r"\\([%$#])|\^\{?°\}?", lambda match: match[1] or "°", text)
    while (built := _BUILT.sub(build, text)) != text:
        text = built
    text = re.sub(r"[-+×=<>±≠≈≤≥/*−→]", lambda match: _sign(match[0], words), text)
    return None if set(text) & set("\\{}^_") else re.sub(r" +(?=[ ,.)]|$)", "", text).lstrip()


def _sign(sign: str, words: dict[str, str]) -> str:
    word = "," if sign == "→" else words.get({"*": "×", "−": "-", "/": "÷"}.get(sign, sign))
    return f" {word.strip()} " if word else sign
