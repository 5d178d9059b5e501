"""`bench streams` on a real node."""

from __future__ import annotations

import os

import pytest

from agent_tts.bench.streams import Plan, hold, is_clean
from agent_tts.errors import SpeechError
from tests.support import running_node

NOBODY = 1 << 30  # no process: the kernel's largest id is 2**22


async def test_paced_streams_are_held_without_a_gap() -> None:
    async with running_node(slots=8) as node:
        plan = Plan(seconds=1.5, ramp_s=0.2, per_connection=3)
        figures = await hold(node.ws_url, None, 8, plan, {"front": os.getpid(), "gone": NOBODY})
        assert len(node.node.sessions) <= 3
    assert figures["streams"] == 8
    assert is_clean(figures)
    assert 0 < figures["margin_ms"]["p50"] <= 1_080
    assert figures["cpu_percent"].keys() == {"front", "client"}


async def test_streams_that_get_no_slot_are_not_clean() -> None:
    async with running_node(slots=2, queue=0) as node:
        figures = await hold(node.ws_url, None, 3, Plan(seconds=0.3, ramp_s=0.1), {})
    assert figures["ended"] == {"at_capacity": 1}
    assert figures["silent"] == 1
    assert not is_clean(figures)


async def test_a_node_that_refuses_is_an_error_and_leaves_no_connection() -> None:
    async with running_node(limits={"connections": 1}) as node:
        with pytest.raises(SpeechError, match="refuses"):
            await hold(node.ws_url, None, 4, Plan(per_connection=1), {})
