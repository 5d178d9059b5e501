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
    front_pid: int
    engine_pids: tuple[int, ...]  # oldest first; empty where /proc does not tell

    @property
    def pids(self) -> dict[str, int]:
        """Its processes by name."""
        if len(self.engine_pids) == 1:
            return {"front": self.front_pid, "engine": self.engine_pids[0]}
        return {"front": self.front_pid, **{f"engine {number}": pid for number, pid in enumerate(self.engine_pids)}}


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
    reader = asyncio.create_task(_read(process, url), name="log of the node")
    try:
        async with asyncio.timeout(START_S):
            address = await url
            await _ready(address)
        yield OwnNode(address, process.pid, tuple(children_of(process.pid)))
    finally:
        await _stop(process)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


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


async def _ready(url: str) -> None:
    async with httpx.AsyncClient() as client:
        while (await client.get(f"{url}/ready")).status_code != 200:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(POLL_S)


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
