"""CPU time of processes."""

from __future__ import annotations

from collections.abc import Mapping

from agent_tts.bench.node import cpu_s


def cpu_used(pids: Mapping[str, int]) -> dict[str, float]:
    """CPU time of processes by name, s; without those that /proc does not show."""
    return {name: used for name, pid in pids.items() if (used := cpu_s(pid)) is not None}
