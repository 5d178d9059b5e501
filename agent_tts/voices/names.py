"""Names of voices in the library, and mixes of voices by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from itertools import islice

from agent_tts.errors import InvalidRequest

CLONE_PREFIX = "clone:"  # marks a name of the library
MAX_PARTS = 8  # of a mix
MAX_WEIGHT = 1_000
MIN_WEIGHT = 1e-4  # of the whole mix
COMPARED, COMPARED_CHARS = 16, 24  # names, and the beginning of each, with an unknown one: each takes up to 0.1 ms

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
# File names that are devices on Windows in every folder.
_RESERVED = {"aux", "con", "nul", "prn", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10))}
_PART = re.compile(r"(?P<name>[^()]*)(?:\((?P<weight>[^()]*)\))?")

Mix = tuple[tuple[str, float], ...]  # names and weights; the weights sum to 1


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name not in _RESERVED


def checked_name(name: str) -> str:
    """Return `name`; raise `InvalidRequest` if no voice may have it."""
    if not is_name(name):
        allowed = "1 to 64 of a-z, 0-9, _ and -, starting with a letter or digit, and not a device name of Windows"
        raise InvalidRequest(f"name: {allowed}", "name")
    return name


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest of the known names that begin alike, as the end of an error message; empty if none is near."""
    alike = islice((each for each in known if each[:1] == name[:1]), COMPARED)
    by_beginning = {each[:COMPARED_CHARS]: each for each in alike}
    near = difflib.get_close_matches(name[:COMPARED_CHARS], by_beginning, n=1)
    return f": did you mean {by_beginning[near[0]]!r}?" if near else ""


def library_name(voice: str) -> str:
    """The library's name of a requested voice: `clone:bob` is `bob`."""
    return voice.removeprefix(CLONE_PREFIX)


def parse_mix(voice: str) -> Mix | None:
    """`bob(0.7)+alice(0.3)` -> (("bob", 0.7), ("alice", 0.3)); None when `voice` is not a mix.

    The default weight is 1; weights are normalised. Raises `InvalidRequest` with what is allowed for an invalid mix.
    """
    if "+" not in voice:
        return None
    parts = voice.split("+", MAX_PARTS)
    if len(parts) > MAX_PARTS:
        raise InvalidRequest(f"voice: a mix has 2 to {MAX_PARTS} voices", "voice")
    weights = dict(_part(part.strip()) for part in parts)
    if len(weights) < len(parts):
        raise InvalidRequest("voice: a mix may name each voice only once", "voice")
    total = sum(weights.values())
    mix = tuple((name, weight / total) for name, weight in weights.items())
    if min(weight for _, weight in mix) < MIN_WEIGHT:
        raise InvalidRequest(f"voice: each voice has to be at least {MIN_WEIGHT:g} of a mix", "voice")
    return mix


def _part(text: str) -> tuple[str, float]:
    part = _PART.fullmatch(text)
    try:
        if part is None:
            raise ValueError
        weight = float(part["weight"] or 1)
        if not 0 < weight <= MAX_WEIGHT:  # nor NaN
            raise ValueError
    except ValueError:
        allowed = f"bob(0.7)+alice(0.3), with weights over 0, up to {MAX_WEIGHT:g}"
        raise InvalidRequest(f"voice: a mix looks like {allowed}", "voice") from None
    return checked_name(library_name(part["name"])), weight
