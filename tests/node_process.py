"""A node in processes of its own, with one front or several, as `agent-tts serve` starts them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed

from agent_tts.bench.node import children_of
from tests.cli.process import is_running, start
from tests.support import until
from tests.wire import Wire, wire

START_S = 60.0
BACK_S = 30.0  # for a front or an engine to start on a busy machine
WELCOME = "agent-tts: "


def processes_of(pid: int) -> dict[str, int]:
    """The running processes of a node, by name: `front`, or `supervisor`, `front 0` and so on; `engine 0` and so on."""
    found: dict[str, int] = {}
    engines = []
    for child in children_of(pid):
        try:
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        except OSError:  # it has just ended
            continue
        if "agent_tts.serve.processes.front" in words:
            found[f"front {words[-2]}"] = child
        elif "agent_tts.ipc.child" in words:
            engines.append(child)
    found["supervisor" if found else "front"] = pid
    return found | {f"engine {number}": engine for number, engine in enumerate(engines)}


class RunningProcess:
    """A node that takes requests."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        deadline = time.monotonic() + START_S
        while WELCOME not in self.log:
            assert process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)
        self.url = re.findall(f"{WELCOME}(http.*)", self.log)[0]
        self.ws_url = self.url.replace("http", "ws", 1) + "/v1/tts/stream"
        self.port = int(self.url.rpartition(":")[2])

    @property
    def log(self) -> str:
        """All that its processes have printed and logged."""
        return self._log.read_text()

    def pids(self) -> dict[str, int]:
        """See `processes_of`."""
        return processes_of(self.process.pid)

    def kill(self, name: str, sig: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to one of its processes; returns its id."""
        pid = self.pids()[name]
        os.kill(pid, sig)
        return pid

    async def reload(self) -> str:
        """Have it read its settings again; the line that tells what came of it."""
        said = self.log.count("SIGHUP: ")
        self.process.send_signal(signal.SIGHUP)
        await until(lambda: self.log.count("SIGHUP: ") > said, BACK_S)
        return [line for line in self.log.splitlines() if "SIGHUP: " in line][-1]

    def front_of(self, client: tuple[Any, ...]) -> str:
        """The name of the front that has the connection with this address of the client."""
        return front_of(self.process.pid, self.port, client)


def front_of(pid: int, port: int, client: tuple[Any, ...]) -> str:
    """The name of the front of a node on this port that has the connection with this address of the client."""
    inode = _inode(port, client[1])
    for name, front in processes_of(pid).items():
        if name.startswith("front") and f"socket:[{inode}]" in _links(front):
            return name
    raise AssertionError("no front has this connection")


def _inode(local_port: int, remote_port: int) -> str:
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(f":{local_port:04X}") and fields[2].endswith(f":{remote_port:04X}"):
            return fields[9]
    raise AssertionError("no such connection")


def _links(pid: int) -> set[str]:
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:  # closed meanwhile
            continue
    return found


@contextmanager
def running_process(
    folder: Path, *flags: str, command: str = "serve", files: int | None = None, **options: Any
) -> Iterator[RunningProcess]:
    """`agent-tts COMMAND` with the tone engine on a free port; ready when entered, gone after the block.

    Args:
        files: its hard limit of file descriptors.
    """
    if files is not None:
        import resource

        options["preexec_fn"] = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (files, files))
    log = folder / "node.log"
    with log.open("wb") as file:
        arguments = (command, "--engine", "tone", "--port", "0", *flags)
        process = start(*arguments, stdin=subprocess.DEVNULL, stdout=file, stderr=file, **options)
        pids: list[int] = []
        try:
            node = RunningProcess(process, log)
            pids = list(node.pids().values())
            yield node
        finally:
            if process.poll() is None:
                pids = list(processes_of(process.pid).values())
                process.kill()
            process.wait()
    deadline = time.monotonic() + 5
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"processes are left: {left}"
        time.sleep(0.02)


@asynccontextmanager
async def callers(node: RunningProcess) -> AsyncIterator[dict[str, Wire]]:
    """A connection to each of its fronts, by their names."""
    fronts = {name for name in node.pids() if name.startswith("front")}
    async with AsyncExitStack() as closing:
        found: dict[str, Wire] = {}
        async with asyncio.timeout(BACK_S):
            while found.keys() != fronts:
                peer = await closing.enter_async_context(wire(node.ws_url))
                found[node.front_of(peer.socket.local_address)] = peer
        yield found


async def served_by_all(node: RunningProcess, fronts: int = 2) -> None:
    """Wait until all of its fronts speak."""
    async with asyncio.timeout(BACK_S):
        spoke: set[str] = set()
        while len(spoke) < fronts:
            try:
                async with wire(node.ws_url) as peer:
                    name = node.front_of(peer.socket.local_address)
                    await peer.say("t", "a word", lead_ms=None)
                    while not peer.messages or peer.messages[-1]["type"] not in ("context.done", "error"):
                        await peer.receive()
                    if peer.messages[-1].get("reason") == "end":
                        spoke.add(name)
            except (OSError, ConnectionClosed):
                pass
            await asyncio.sleep(0.02)
