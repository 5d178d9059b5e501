"""What the door adds: `python -m tests.measure.door_cost --callers 100`, on Linux.

One node with the tone engine and a HAProxy as `agent_tts.cluster.door` starts it. Callers listen to speech at its own
pace, directly and through the door in turn. Prints CPU time for a frame of 80 ms; and then, while others send `ping`,
quantiles of the time to the answer, which goes through the door twice.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer

from agent_tts.cluster.directory import NodeAddress
from agent_tts.cluster.door import Door
from agent_tts.cluster.haproxy import Callers
from agent_tts.system.processes import module_command
from tests.node_process import RunningProcess, running_process
from tests.wire import wire

TEXT = "A long story, told at its own pace. " * 100  # 60 ms a character: minutes
SPREAD_S = 1.0  # in which they begin: their frames come at different times
SETTLE_S = 3.0  # for the audio ahead to be made and sent
PROBES = 4
PROBE_PAUSE_S = 0.01


async def listen(url: str, callers: int) -> None:
    """Listen as so many callers; prints the frames that have come, for each line of stdin."""
    frames = 0

    async def call(number: int) -> None:
        nonlocal frames
        async with wire(url, ping_interval=None) as peer:
            await asyncio.sleep(SPREAD_S * number / callers)
            await peer.say("t", TEXT)
            async for message in peer.socket:
                frames += isinstance(message, bytes)

    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(call(number)) for number in range(callers)]
        while await asyncio.to_thread(sys.stdin.readline):
            print(frames, flush=True)
        for task in calls:
            task.cancel()


def cpu_used(pids: dict[str, int]) -> dict[str, float]:
    """CPU time of processes by name, s; exact, where `/proc/PID/stat` counts ticks that hit."""
    return {
        name: sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
        for name, pid in pids.items()
    }


async def probe(url: str, until: float, waited_ms: list[float]) -> None:
    """Send pings until a time of the monotonic clock."""
    async with wire(url, ping_interval=None) as peer:
        await peer.until("session.created")
        while (sent := time.monotonic()) < until:
            await peer.send("ping", t=1)
            await peer.until("pong")
            waited_ms.append(1_000 * (time.monotonic() - sent))
            await asyncio.sleep(PROBE_PAUSE_S)


async def measure(url: str, callers: int, seconds: float, pids: dict[str, int]) -> tuple[list[float], dict[str, float]]:
    """Milliseconds to each answer, and microseconds of CPU a frame of each process."""
    command = module_command("tests.measure.door_cost", "--callers", str(callers), "--listens-to", url)
    pipe = asyncio.subprocess.PIPE
    listener = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert listener.stdin is not None
    assert listener.stdout is not None

    async def frames() -> int:
        assert listener.stdin is not None
        assert listener.stdout is not None
        listener.stdin.write(b"\n")
        return int(await listener.stdout.readline())

    try:
        while not await frames():
            await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE_S)
        count, before = await frames(), cpu_used(pids)
        await asyncio.sleep(seconds)
        used = {name: after - before[name] for name, after in cpu_used(pids).items()}
        count = await frames() - count
        waited_ms: list[float] = []
        until = time.monotonic() + seconds
        await asyncio.gather(*(probe(url, until, waited_ms) for _ in range(PROBES)))
    finally:
        listener.stdin.close()
        await listener.wait()
    return waited_ms, {name: 1e6 * cpu / count for name, cpu in used.items()}


async def compare(node: RunningProcess, folder: Path, callers: int, seconds: float, rounds: int) -> None:
    async with AsyncExitStack() as closing:
        door = Door(0, "127.0.0.1", folder / "door", Callers())
        await door.start()
        closing.push_async_callback(door.close)
        await door.update([NodeAddress("one", "127.0.0.1", node.port)])
        assert door.pid is not None
        through = f"ws://127.0.0.1:{door.port}/v1/tts/stream"
        pids = {"node": node.pids()["front"], "HAProxy": door.pid}
        all_ms: dict[str, list[float]] = {"directly": [], "through the door": []}
        all_us: dict[str, list[dict[str, float]]] = {way: [] for way in all_ms}
        for _ in range(rounds):
            for way, url in zip(all_ms, (node.ws_url, through), strict=True):
                waited_ms, us = await measure(url, callers, seconds, pids)
                all_ms[way] += waited_ms
                all_us[way].append(us)
    for way, waited_ms in all_ms.items():
        cuts = statistics.quantiles(waited_ms, n=100)
        print(
            f"{way:16}: {callers} callers, {len(waited_ms)} answers after {cuts[49]:.2f} ms at p50, "
            f"{cuts[94]:.2f} at p95, {cuts[98]:.2f} at p99"
        )
        for name in pids:
            each = [used[name] for used in all_us[way]]
            print(f"  {name}: {statistics.mean(each):.1f} us of CPU a frame ({min(each):.1f} to {max(each):.1f})")


def main(
    callers: Annotated[int, typer.Option(min=1)] = 100,
    seconds: Annotated[float, typer.Option(help="of each turn")] = 10.0,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    listens_to: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Compare callers of a node with callers through the door."""
    if listens_to is not None:
        asyncio.run(listen(listens_to, callers))
        return
    with tempfile.TemporaryDirectory() as name:
        slots = str(callers + PROBES)
        with running_process(Path(name), "--slots", slots) as node:
            asyncio.run(compare(node, Path(name), callers, seconds, rounds))


if __name__ == "__main__":
    typer.run(main)
