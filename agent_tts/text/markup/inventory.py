"""The tags that are known, of all dialects, and what their attributes mean. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from agent_tts.directives import MAX_PAUSE_MS, Prosody
from agent_tts.text.data import data, words
from agent_tts.text.phones import to_ipa

_NAMES = data("markup/names")
_SPACES = tuple(words(_NAMES["vendors"]))
DELIVERIES: dict[str, dict[str, str]] = _NAMES["deliveries"]
MANNER_TAGS = frozenset(words(_NAMES["manners"]))
THOUGHTS, CALLS, ANSWERS = (words(_NAMES[kind]) for kind in ("thoughts", "calls", "answers"))
CALLS += [f"{space}{name}" for space in words(_NAMES["call_spaces"]) for name in ("think", *CALLS)]
COMMANDS = words(_NAMES["commands"])

BLOCKS = {*THOUGHTS, *CALLS, *COMMANDS, "desc", "metadata"}
# Words of prose, too: without attributes, an opening tag counts where a line or a sentence begins.
PROSE = {*THOUGHTS, *ANSWERS, "invoke", "desc", "metadata"}
# Tokens of chat templates. Text behind these is not for the listener, up to the next one.
SILENT = re.compile(r"(?!/|.*(?:end|suffix)).*(?:tool|function|think|thought|action|plugin|inner|python_tag).*")
# Before a message, for whom it is.
HEADERS = {"start", "channel", "constrain", "start_header_id"}
# A role follows them, up to white space.
ROLES = {"im_start", "turn", "start_of_turn"}
CLOSING_TOKENS, BRACKET_TOKENS = words(_NAMES["closing_tokens"]), words(_NAMES["bracket_tokens"])
TYPES = frozenset(words(_NAMES["types"]))
# Tags that name an emotion or a way to speak.
EXPRESSIVE = {"emotion", "expression", "mstts:express-as", "amazon:emotion", "amazon:effect", "google:style"}

STYLES = words(_NAMES["styles"], ",")
STYLES += [f"{degree} {style}" for degree in words(_NAMES["degrees"], ",") for style in STYLES]
STYLES += [f"{degree}{of} accent" for degree in ("", "strong ", "slight ", "thick ") for of in words(_NAMES["accents"])]
# Ways to speak that are no emotion.
MANNERS = {name: said or None for names, said in _NAMES["ways"].items() for name in words(names, ",")}
PAUSES_MS = {"pause": 500, "pauses": 500, "short pause": 250, "long pause": 1_000}
PAUSES_MS |= {"long-pause": 1_000, "break": 500, "long-break": 1_000}


class Names:
    """Names, and what may become one of them; also all names in the namespaces of `spaces`, such as "amazon:"."""

    def __init__(self, *names: Iterable[str], spaces: tuple[str, ...] = ()) -> None:
        self._names = {name for some in names for name in some}
        self._spaces = spaces
        self._starts = {name[:end] for name in (*self._names, *spaces) for end in range(len(name) + 1)}

    def __contains__(self, name: str) -> bool:
        return name in self._names or (":" in name and name.startswith(self._spaces))

    def may_become(self, start: str) -> bool:
        return start in self._starts or start in self


NAMES = Names(
    *(words(_NAMES[kind]) for kind in ("ssml", "cartesia", "livekit", "manners", "sounds", "answers", "turns")),
    *(DELIVERIES, THOUGHTS, CALLS, COMMANDS),
    spaces=_SPACES,
)
BRACKETS = Names(STYLES, words(_NAMES["bracket_sounds"], ","), PAUSES_MS, BRACKET_TOKENS)

_BREAKS_MS = {"none": 0, "x-weak": 100, "weak": 200, "medium": 400, "strong": 700, "x-strong": 1_000}
_TIME = re.compile(r"\+?(\d{1,6}(?:\.\d{0,6})?|\.\d{1,6})\s*(ms|s)", re.ASCII)
_NUMBER = re.compile(r"([+-]?)(\d{1,6}(?:\.\d{0,6})?|\.\d{1,6})(%|db|st)?", re.ASCII | re.IGNORECASE)

RATES = {"x-slow": 0.6, "slow": 0.8, "medium": 1.0, "fast": 1.25, "x-fast": 1.5, "slowest": 0.6, "fastest": 1.5}
VOLUMES = {"silent": 0.0, "x-soft": 0.35, "soft": 0.6, "medium": 1.0, "loud": 1.5, "x-loud": 2.0}
PITCHES = {"x-low": 0.7, "low": 0.85, "medium": 1.0, "high": 1.15, "x-high": 1.4}
NORMAL = ("default", "normal")

MAX_STYLE = 64  # characters of its name

SPELLED = ("characters", "spell-out", "verbatim", "digits", "telephone")


def instructions(style: str) -> str | None:
    """An emotion or a way to speak, as an instruction; None: the usual one."""
    name = " ".join(re.sub(r"[^\w' -]", " ", style).lower().split())[:MAX_STYLE]
    if name.endswith(" accent"):
        return f"Accent: {name.removesuffix(' accent')}."
    return MANNERS.get(name, f"Emotion: {name}.")


def pause_ms(attributes: dict[str, str]) -> int:
    """Of `<break>`; one that says nothing is medium, one that says nonsense is none."""
    if (time := attributes.get("time", attributes.get("value"))) is not None:
        found = _TIME.fullmatch(time.strip())
        ms = float(found[1]) * (1_000 if found[2] == "s" else 1) if found else 0.0
        return min(MAX_PAUSE_MS, round(ms))
    return _BREAKS_MS.get(attributes.get("strength", "medium"), 0)


def factor(value: str, words: dict[str, float], least: float, most: float) -> float | None:
    """A factor as SSML or a vendor writes it: a word, 1.2, 120%, +20%, +6dB, -2st; None if it is none of these."""
    value = value.strip().lower()
    if value in NORMAL:
        return 1.0
    if value in words:
        return words[value]
    if not (found := _NUMBER.fullmatch(value)):
        return None
    sign, digits, unit = found.groups()
    number = -float(digits) if sign == "-" else float(digits)
    if unit == "%":
        number = number / 100 + bool(sign)
    elif unit == "db":
        number = 10 ** (min(number, 60) / 20)  # above any limit, and a number
    elif unit == "st":
        number = 2 ** (min(number, 60) / 12)
    elif sign:
        number += 1
    return min(max(number, least), most)


def prosody(name: str, given: dict[str, str], now: Prosody) -> Prosody:
    """What `<prosody>`, `<speed>`, `<volume>` and those of `DELIVERIES` set; what they do not name stays."""
    value = given.get("ratio", given.get("value", ""))
    if name == "speed":
        given = {"rate": value}
    elif name == "volume":
        given = {"volume": value}
    elif name in DELIVERIES:
        given = DELIVERIES[name]
    elif name != "prosody":
        return now
    elif _NUMBER.fullmatch(loudness := given.get("volume", "").strip()) and loudness[-1].isdigit():
        given = {**given, "volume": f"{loudness}%"}  # of 100, in SSML
    factors = {
        "speed": factor(given.get("rate", ""), RATES, 0.25, 4.0),
        "volume": factor(given.get("volume", ""), VOLUMES, 0.0, 4.0),
        "pitch": factor(given.get("pitch", ""), PITCHES, 0.5, 2.0),
    }
    return replace(now, **{name: value for name, value in factors.items() if value is not None})


def ipa(given: dict[str, str]) -> str | None:
    """The phonemes of `<phoneme>`; None without any, and for an alphabet that is not known."""
    try:
        return to_ipa(given.get("ph", ""), given.get("alphabet", "ipa")) or None
    except ValueError:
        return None
