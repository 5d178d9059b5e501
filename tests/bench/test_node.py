"""A node started by the benchmark, and its figures from /proc."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import httpx
import pytest

from agent_tts.bench.node import ProcessStats, children_of, cpu_s, own_node, pin, watched
from agent_tts.errors import EngineLost, SettingsError
from agent_tts.system.processes import started
from tests.support import present, until

pytestmark = pytest.mark.node

PROC = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


BENCHMARK = """
import asyncio
from agent_tts.bench.node import own_node

async def main() -> None:
    async with own_node(engine="tone") as node:
        print(*node.pids.values(), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def threads_of(pid: int) -> list[int]:
    return list(map(int, os.listdir(f"/proc/{pid}/task")))


@PROC
@pytest.mark.slow
async def test_an_own_node_is_ready_and_ends_with_the_block() -> None:
    async with own_node(engine="tone", slots=7, fronts=2, engines=2) as node:
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{node.url}/ready")).status_code == 200
        assert list(node.pids) == ["supervisor", "front 0", "front 1", "engine 0", "engine 1"]
        assert set(node.pids.values()) == {node.pid, *children_of(node.pid)}
        assert all(map(cpu_s, node.pids.values()))
        async with watched(node.url, node.pid, 60) as watch:
            (look,) = watch.looks
            assert len(look.engines) == 2
            assert look.front.threads == sum(
                ProcessStats.of(pid).threads for name, pid in node.pids.items() if not name.startswith("engine")
            )
        fronts = [pid for name, pid in node.pids.items() if name.startswith("front")]
        cores = sorted(os.sched_getaffinity(0))[:2]
        pin(node.pids, "front", cores)
        for pid, core in zip(fronts, cores, strict=False):
            assert {*map(frozenset, map(os.sched_getaffinity, threads_of(pid)))} == {frozenset({core})}
        with pytest.raises(SettingsError, match="no core 4095"):
            pin(node.pids, "front", [4_095])
    assert not any(map(cpu_s, node.pids.values()))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux tells")
async def test_a_node_ends_with_a_benchmark_that_is_killed() -> None:
    """Mutation: `own_node` starts it without `die_with`."""
    benchmark = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", BENCHMARK), stdout=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    pids = [int(pid) for pid in (await present(benchmark.stdout).readline()).split()]
    assert len(pids) == 2
    assert all(map(cpu_s, pids))
    benchmark.kill()
    await benchmark.wait()
    await until(lambda: not any(started(pid) for pid in pids))


async def test_a_node_that_fails_to_start_reports_why() -> None:
    with pytest.raises(EngineLost, match="'auto', 'qwen3', 'vox', 'hibari', 'espeak' or 'tone'"):
        async with own_node(engine="expeak"):
            pass


@PROC
def test_cpu_time_grows_with_work() -> None:
    before = present(cpu_s(os.getpid()))
    while (now := cpu_s(os.getpid())) is not None and now <= before:
        sum(range(10_000))
    assert now is not None
