"""What voices of the library may be called, and how two of them are mixed by name."""

from __future__ import annotations

import re

from agent_tts.errors import InvalidRequest

CLONE_PREFIX = "clone:"  # of a name that can only be one of the library
MAX_PARTS = 8  # of a mix
MAX_WEIGHT = 1_000
MIN_WEIGHT = 1e-4  # of the whole mix

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
# Files of Windows that are devices, whatever the folder.
_RESERVED = {"aux", "con", "nul", "prn", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10))}
_PART = re.compile(r"(?P<name>[^()]*)(?:\((?P<weight>[^()]*)\))?")

Mix = tuple[tuple[str, float], ...]  # names and weights; the weights sum to 1


def is_name(name: str) -> bool:
    """Whether a voice may be called so."""
    return _NAME.fullmatch(name) is not None and name not in _RESERVED


def checked_name(name: str) -> str:
    """The same name.

    Raises:
        InvalidRequest: no voice may be called so.
    """
    if not is_name(name):
        allowed = "1 to 64 of a-z, 0-9, _ and -, the first a letter or a digit, and no device of Windows"
        raise InvalidRequest(f"name: {allowed}", "name")
    return name


def library_name(voice: str) -> str:
    """The name in the library of a voice that a client asks for: `clone:bob` is `bob`."""
    return voice.removeprefix(CLONE_PREFIX)


def parse_mix(voice: str) -> Mix | None:
    """`bob(0.7)+alice(0.3)` -> (("bob", 0.7), ("alice", 0.3)); None when `voice` is no mix.

    A weight that is left out is 1; the weights are normalised.

    Raises:
        InvalidRequest: a mix that is not allowed; the message says what is.
    """
    if "+" not in voice:
        return None
    parts = voice.split("+", MAX_PARTS)
    if len(parts) > MAX_PARTS:
        raise InvalidRequest(f"voice: a mix has 2 to {MAX_PARTS} voices", "voice")
    weights = dict(_part(part.strip()) for part in parts)
    if len(weights) < len(parts):
        raise InvalidRequest("voice: a mix names each voice once", "voice")
    total = sum(weights.values())
    mix = tuple((name, weight / total) for name, weight in weights.items())
    if min(weight for _, weight in mix) < MIN_WEIGHT:
        raise InvalidRequest(f"voice: each voice has to be {MIN_WEIGHT:g} of a mix at least", "voice")
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
