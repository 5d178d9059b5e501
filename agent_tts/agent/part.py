"""A part of the agent, as the page is told of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """What is there."""

    kind: str
    name: str
    message: str | None = None  # why something else is not, in one or two sentences; None when all is well
