"""A node started by the benchmark, and its figures from /proc."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

from agent_tts.bench.node import children_of, cpu_s, own_node
from agent_tts.errors import EngineLost

pytestmark = pytest.mark.node

PROC = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


@PROC
async def test_an_own_node_is_ready_and_ends_with_the_block() -> None:
    async with own_node(engine="tone", engines=2, slots=7) as node:
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{node.url}/ready")).status_code == 200
        assert {node.pids["engine 0"], node.pids["engine 1"]} == set(children_of(node.pids["front"]))
        assert list(node.pids) == ["front", "engine 0", "engine 1"]
        assert all(map(cpu_s, node.pids.values()))
    assert [cpu_s(pid) for pid in node.pids.values()] == [None, None, None]


async def test_a_node_that_fails_to_start_reports_why() -> None:
    with pytest.raises(EngineLost, match="'auto', 'qwen3', 'espeak' or 'tone'"):
        async with own_node(engine="expeak"):
            pass


@PROC
def test_cpu_time_grows_with_work() -> None:
    before = cpu_s(os.getpid())
    assert before is not None
    while (now := cpu_s(os.getpid())) is not None and now <= before:
        sum(range(10_000))
    assert now is not None
