"""What a look at something finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """How bad it is."""

    GOOD = "ok"
    NOTE = "warning"  # a node can do without, but somebody may miss it
    BAD = "error"  # a node cannot run like that


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    found: str
    advice: str = ""  # what to do, unless good
