"""A node of our own in another process, to be measured; and what /proc tells of processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from agent_tts.bench.statistics import background
from agent_tts.config.settings import ENV_PREFIX
from agent_tts.errors import EngineLost

START_S = 300.0  # a large model is read from disk
STOP_S = 15.0
DRAIN_S = 0.5  # nobody listens any more when the node is stopped
POLL_S = 0.05
WELCOME = "agent-tts: http"  # how the line with its address begins


@dataclass(frozen=True, slots=True)
class OwnNode:
    """A node that takes requests."""

    url: str  # http://127.0.0.1:port
    pids: dict[str, int]  # its processes by name: front, then engine or engine 0, engine 1...


@asynccontextmanager
async def own_node(command: str = "serve", /, **settings: object) -> AsyncIterator[OwnNode]:
    """A node process with these settings (keys with "__" for the dots), ready to speak; stopped with the block.

    Args:
        command: of `agent-tts`, that runs it: serve or agent.

    Raises:
        EngineLost: it does not come up; the message holds its last words.
    """
    settings = {"timeouts__drain_s": DRAIN_S} | settings
    flags = [part for key, value in settings.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent_tts", command, "--port", "0", "--log-level", "warning", *flags),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)},
        start_new_session=sys.platform != "win32",  # Ctrl-C is for us, who then stop it
    )
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with background(_read(process, url), "log of the node"):
        try:
            async with asyncio.timeout(START_S), httpx.AsyncClient() as client:
                address = await url
                while (await client.get(f"{address}/ready")).status_code != 200:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(POLL_S)
            engines = children_of(process.pid)
            names = ["engine"] if len(engines) == 1 else [f"engine {number}" for number in range(len(engines))]
            yield OwnNode(address, {"front": process.pid, **dict(zip(names, engines, strict=True))})
        finally:
            await _stop(process)


async def _read(process: asyncio.subprocess.Process, url: asyncio.Future[str]) -> None:
    """Find the node's address in what it says, and show the rest: errors matter to whoever reads the figures."""
    assert process.stderr is not None
    said: deque[str] = deque(maxlen=5)
    async for raw in process.stderr:
        line = raw.decode(errors="replace").rstrip()
        said.append(line)
        if line.startswith(WELCOME) and not url.done():
            url.set_result(line.removeprefix("agent-tts: "))
        elif url.done():
            print(f"node: {line}", file=sys.stderr)
    if not url.done():
        url.set_exception(EngineLost(f"the node did not start: {' / '.join(said) or 'it said nothing'}"))


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def children_of(pid: int) -> list[int]:
    """Processes that it has started; empty where there is no /proc."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def cpu_s(pid: int) -> float | None:
    """CPU time that a process has used, in seconds; None where /proc does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def cpu_percent(pids: Mapping[str, int], begin: float, end: float) -> dict[str, float]:
    """Share of one core that processes use between two times of the monotonic clock, by name.

    Names that differ only in a number after a space are summed: "clients 0" and "clients 1" are "clients".
    Left out is what /proc does not tell of.
    """
    await asyncio.sleep(begin - time.monotonic())
    before, begun = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
    await asyncio.sleep(end - time.monotonic())
    after, seconds = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic() - begun
    used: dict[str, float] = {}
    for name, then in before.items():
        if then is not None and (now := after[name]) is not None:
            group = name.partition(" ")[0]
            used[group] = used.get(group, 0.0) + 100 * (now - then) / seconds
    return {name: round(percent, 1) for name, percent in used.items()}
