"""Starts a node process to measure, and reads figures of processes from /proc."""

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
DRAIN_S = 0.5  # no client is left when the node is stopped
POLL_S = 0.05
WELCOME = "agent-tts: http"  # start of the line with the node's address


@dataclass(frozen=True, slots=True)
class OwnNode:
    """A running node."""

    url: str  # http://127.0.0.1:port
    pids: dict[str, int]  # by name: front, then engine or engine 0, engine 1...


@asynccontextmanager
async def own_node(command: str = "serve", /, **settings: object) -> AsyncIterator[OwnNode]:
    """Start a node process with these settings ("__" for the dots of keys); ready when entered, stopped with the block.

    Args:
        command: subcommand of `agent-tts`: serve or agent.

    Raises:
        EngineLost: the node does not start; the message holds its last log lines.
    """
    settings = {"timeouts__drain_s": DRAIN_S} | settings
    flags = [part for key, value in settings.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent_tts", command, "--port", "0", "--log-level", "warning", *flags),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)},
        start_new_session=sys.platform != "win32",  # Ctrl-C reaches only this process, which stops the node
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
    """Set `url` from the node's log, and print all later lines, because errors explain the figures."""
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
    """Child processes of `pid`; empty without /proc."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def cpu_s(pid: int) -> float | None:
    """CPU time of a process in seconds; None without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def cpu_percent(pids: Mapping[str, int], begin: float, end: float) -> dict[str, float]:
    """CPU use of processes, in percent of one core, between two times of the monotonic clock, by name.

    Names that differ only in a number after a space are summed: "clients 0" and "clients 1" are "clients".
    Processes that /proc does not show are omitted.
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
