"""What a component of the agent (speech recognition, language model) is, for `GET /api/agent`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """One component."""

    kind: str
    name: str
    message: str | None = None  # one or two sentences on why another component is not used; None when all is well
