"""Machines of a cluster on this one: each is `agent-tts cluster start` or `join` in processes of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from agent_tts import connect
from agent_tts.bench.node import children_of
from agent_tts.cluster.kept_node import living_nodes
from agent_tts.errors import SpeechError
from tests.cli.process import environment, start

UP_S = 90.0  # for a part of a cluster to start on a busy machine
ARGUMENTS = ("--host", "127.0.0.1", "--port", "0", "--cpus", "1")
Listed = dict[str, dict[str, Any]]  # what `cluster status` shows of each node, by its name
WORDS = "one two three four five six seven eight nine ten. "


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ClusterMachine:
    """One machine, while its process runs."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.arguments = (*arguments, *ARGUMENTS, "--folder", str(folder))
        self.log = folder.with_suffix(".log")
        self._start()

    def _start(self, installed: Path | None = None) -> None:
        other = {} if installed is None else {"cwd": installed, "env": environment(PYTHONPATH=str(installed))}
        with self.log.open("ab") as log:
            self.process = start("cluster", *self.arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **other)

    def restart(self, port: int, installed: Path | None = None) -> None:
        """Start it again, after its process has ended, with its door at this port.

        Args:
            installed: a folder with another agent_tts.
        """
        self.arguments = (*self.arguments, "--port", str(port))
        self._start(installed)

    async def url(self) -> str:
        """The address of its door."""
        async with asyncio.timeout(UP_S):
            while True:
                for line in self.log.read_text().splitlines():
                    if line.startswith("agent-tts cluster: "):
                        return line.split()[2]
                assert self.process.poll() is None, self.log.read_text()
                await asyncio.sleep(0.05)

    def nodes(self) -> dict[str, int]:
        """The living nodes of this machine: name and process."""
        return {name: record.pid for name, record in living_nodes(self.folder).items()}

    def ray(self, name: str) -> list[int]:
        """Its Ray processes whose command has this in it."""
        found, todo = [], [self.process.pid]
        while todo:
            children = children_of(todo.pop())
            todo += children
            for child in children:
                with suppress(OSError):
                    if name in Path(f"/proc/{child}/cmdline").read_text():
                        found.append(child)
        return found

    def told(self) -> str:
        """What it and its parts have logged."""
        return "\n".join(path.read_text(errors="replace")[-1_500:] for path in (self.log, *self.folder.glob("*.log")))


@asynccontextmanager
async def machines(folder: Path, joined: int, *settings: str, **options: Any) -> AsyncIterator[list[ClusterMachine]]:
    """A head and so many machines that joined it. Nodes have the tone engine. All is gone after the block."""
    head = f"127.0.0.1:{free_port()}"
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    flags += [f"--set={setting}" for setting in ("engine=tone", "tone.char_ms=40", *settings) if setting]
    made = [ClusterMachine(folder / "head", "start", f"--head-port={head.rpartition(':')[2]}", *flags)]
    try:
        await made[0].url()
        await until_listed(made[0], bool)
        join = ("join", head, "--token", (folder / "head" / "token").read_text())
        made += [ClusterMachine(folder / f"machine-{number}", *join) for number in range(joined)]
        for machine in made:
            await open_door(machine)
        yield made
    finally:
        for machine in reversed(made):
            for pid in machine.nodes().values():
                os.kill(pid, signal.SIGKILL)
            if machine.process.poll() is None:
                machine.process.terminate()
        for machine in reversed(made):
            await asyncio.to_thread(machine.process.wait, UP_S)


async def nodes(machine: ClusterMachine) -> Listed:
    """What `cluster status` shows of each node; nothing while the head does not answer."""
    with start("cluster", "status", "--json", "--folder", str(machine.folder), stderr=subprocess.DEVNULL) as process:
        said, _ = await asyncio.to_thread(process.communicate)
    return {node["name"]: node for node in json.loads(said)} if process.returncode == 0 else {}


async def until_listed(machine: ClusterMachine, right: Callable[[Listed], bool]) -> Listed:
    """Wait until `cluster status` shows what is right."""
    found: Listed = {}
    try:
        async with asyncio.timeout(UP_S):
            while not right(found := await nodes(machine)):
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"there are {found}\n{machine.told()}") from None
    return found


async def until_nodes(machine: ClusterMachine, count: int, *but: str) -> Listed:
    """Wait until so many nodes take callers or are full, none of them named in `but`."""

    def right(found: Listed) -> bool:
        states = {each["state"] for each in found.values()}
        return len(found) == count and not found.keys() & {*but} and states <= {"ok", "full"}

    return await until_listed(machine, right)


async def open_door(machine: ClusterMachine) -> str:
    """The address of a machine's door, once that knows a node with room."""
    url = await machine.url()
    async with asyncio.timeout(UP_S), httpx.AsyncClient() as http:
        while (await http.get(f"{url}/ready")).status_code != 200:
            await asyncio.sleep(0.1)
    return url


async def until_led_to(url: str, name: str) -> None:
    """Wait until a door leads to a node: it hears of one a second or two after `cluster status` does."""
    async with asyncio.timeout(UP_S):
        while True:
            with suppress(SpeechError):
                async with connect(url) as connection:
                    if connection.info.session_id.startswith(f"{name}."):
                        return
            await asyncio.sleep(0.05)


class Caller:
    """Speaks until it is told to end, and counts each sample."""

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url
        self._options = options
        self._ending = asyncio.Event()
        # Set with the first audio; the name of its first node.
        self.speaking = asyncio.Event()
        self.node = ""
        self.samples = self.gaps = 0
        self.told_ms: float | None = None  # by the node, at the end
        self.task = asyncio.create_task(self._speak())

    async def _speak(self) -> None:
        async with connect(self._url, **self._options) as connection:
            self.node = connection.info.session_id.partition(".")[0]
            utterance = await connection.open()
            writer = asyncio.create_task(self._write(utterance))
            try:
                while (event := await utterance.next()) is not None:
                    if hasattr(event, "payload"):
                        self.gaps += event.first_sample != self.samples
                        self.samples += len(event.payload) // 2
                        self.speaking.set()
                self.told_ms = utterance.done.audio_ms if utterance.done else None
            finally:
                writer.cancel()
                await asyncio.wait([writer])

    async def _write(self, utterance: Any) -> None:
        while not self._ending.is_set():
            utterance.write(WORDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await self._ending.wait()
        utterance.end()

    async def end(self) -> None:
        """Finish the sentence. Raises what the caller's connection raised."""
        self._ending.set()
        await self.task
        assert self.told_ms is not None
        assert self.gaps == 0
        assert abs(self.samples / 24 - self.told_ms) < 1, "a frame is lost or doubled"


async def hang_up(spoken_to: Iterable[Caller]) -> None:
    """Each finishes its sentence."""
    for caller in spoken_to:
        await caller.end()


@asynccontextmanager
async def callers(url: str, count: int, **options: Any) -> AsyncIterator[list[Caller]]:
    """So many callers who are spoken to."""
    made = [Caller(url, **options) for _ in range(count)]
    try:
        async with asyncio.timeout(UP_S):
            for caller in made:
                await caller.speaking.wait()
        yield made
    finally:
        for caller in made:
            caller.task.cancel()
        await asyncio.gather(*(caller.task for caller in made), return_exceptions=True)
