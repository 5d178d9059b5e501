"""How many processes it takes to listen to a node without being late, and what they are told."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from agent_tts.bench.workers import Worker

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MESSAGES_A_CLIENT = 3_000  # a second: some tenth of what keeps a core busy
READY_S = 60.0  # for a process to start and to connect
HEAD_START_S = 0.2  # between the word to go and the first request


def clients_for(messages_per_s: float, parts: int, cores: int | None = None) -> int:
    """Processes that take so many messages without being late: one where the load is small.

    Args:
        messages_per_s: all together.
        parts: what can be shared out among them.
        cores: of this machine; half of them are left to the node.
    """
    room = max(1, (cores or os.cpu_count() or 1) // 2)
    return max(1, min(math.ceil(messages_per_s / MESSAGES_A_CLIENT), parts, room))


def jobs(parts: int, url: str, plan: DataclassInstance, **fields: Any) -> list[dict[str, Any]]:
    """What each of so many processes is told: the same, and which part of it is its own."""
    whole = {"url": url, "plan": asdict(plan), "parts": parts, **fields}
    return [{**whole, "part": part} for part in range(parts)]


def by_name(pids: Mapping[str, int], found: Sequence[Worker]) -> dict[str, int]:
    """Processes of the node and of its clients, for `cpu_percent`."""
    return {**pids, **{f"clients {number}": worker.pid for number, worker in enumerate(found)}}


def start_time() -> float:
    """When all begin, on the monotonic clock, which the processes of a machine share."""
    return time.monotonic() + HEAD_START_S
