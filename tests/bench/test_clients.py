"""How many processes a load takes."""

from __future__ import annotations

import pytest

from agent_tts.bench.clients import clients_for, jobs
from agent_tts.bench.serve import Load


@pytest.mark.parametrize(
    ("messages_per_s", "parts", "cores", "clients"),
    [
        (0, 1, 16, 1),
        (3_000, 64, 16, 1),
        (3_001, 64, 16, 2),
        (25_600, 256, 64, 9),
        (25_600, 256, 16, 8),  # half of the cores are the node's
        (25_600, 3, 64, 3),
        (25_600, 256, 1, 1),
    ],
)
def test_a_large_load_is_shared_out(messages_per_s: float, parts: int, cores: int, clients: int) -> None:
    assert clients_for(messages_per_s, parts, cores) == clients


def test_each_is_told_its_part() -> None:
    found = jobs(2, "ws://here", Load(rate=2), count=5)
    assert [(job["part"], job["parts"], job["count"]) for job in found] == [(0, 2, 5), (1, 2, 5)]
    assert Load(**found[1]["plan"]) == Load(rate=2)
