"""How long the stages of a start took."""

from __future__ import annotations

import time


class Laps:
    """Consecutive stages, the first of which begins now. Shown as "weights 1.0 s, kernels 0.2 s"."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._stages: list[tuple[str, float]] = []

    def end(self, stage: str) -> None:
        now = time.monotonic()
        self._stages.append((stage, now - self._at))
        self._at = now

    def __str__(self) -> str:
        return ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in self._stages)
