"""What a node promises, as numbers that can be checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_tts.bench import report


@dataclass(frozen=True, slots=True)
class Promise:
    """A figure and the most that it may be."""

    what: str  # with its unit
    found: float | None  # None is that nothing could be measured, which keeps no promise
    most: float

    @property
    def kept(self) -> bool:
        return self.found is not None and self.found <= self.most

    def as_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        return {"what": self.what, "found": self.found, "most": self.most, "kept": self.kept}


def tell(title: str, promises: Sequence[Promise]) -> None:
    """Print them, with what was found."""
    rows = [
        (
            promise.what,
            "-" if promise.found is None else f"{promise.found:g}",
            f"{promise.most:g}",
            "yes" if promise.kept else "NO",
        )
        for promise in promises
    ]
    report.table(title, ("promise", "found", "at most", "kept"), rows)
