"""The lag of a client's own event loop is measured."""

from __future__ import annotations

import asyncio
import time

from agent_tts.bench.statistics import lag_watched, worst


async def test_a_blocked_loop_is_late() -> None:
    async with lag_watched() as late_ms:
        await asyncio.sleep(0.05)
        time.sleep(0.2)  # noqa: ASYNC251 - the lag to measure
        await asyncio.sleep(0.05)
        assert max(late_ms) > 150


def test_the_worst_of_several_clients_is_reported() -> None:
    assert worst([{"p50": 1.0, "p99": 9.0}, {"p50": 2.0, "p99": 3.0}]) == {"p50": 2.0, "p99": 9.0}
    assert worst([{"p50": None}, {"p50": 2.0}]) == {"p50": 2.0}
    assert worst([{"p50": None}]) == {"p50": None}
