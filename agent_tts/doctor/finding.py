"""The result of a check."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from agent_tts.errors import SettingsError


class Verdict(StrEnum):
    GOOD = "ok"
    NOTE = "warning"  # a node can run, but lacks something
    BAD = "error"  # a node cannot run


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    verdict: Verdict
    found: str
    advice: str = ""  # what to do; empty if good


def good(what: str, found: str) -> Finding:
    return Finding(what, Verdict.GOOD, found)


def note(what: str, found: str, advice: str) -> Finding:
    return Finding(what, Verdict.NOTE, found, advice)


def bad(what: str, found: str, advice: str) -> Finding:
    return Finding(what, Verdict.BAD, found, advice)


def refused(what: str, error: SettingsError) -> Finding:
    """What a node would refuse to start with; its advice stands last in it."""
    problem, *advice = re.split(r"[;:] (?!.*[;:] )", str(error), maxsplit=1, flags=re.S)
    return bad(what, problem, advice[0] if advice else problem)
