"""The node of a machine: found alive and adopted, or started; looked after by one process, and outliving it.

A folder has a place for each node: `N.lock` is held by the process that looks after it, `N.json` says which process the
node is. So a node whose keeper was killed speaks on, and the next keeper finds it with its GPU memory and its callers.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import httpx
from loguru import logger

from agent_tts import __version__
from agent_tts.cluster.directory import host_port
from agent_tts.cluster.scaling import Figures, Load
from agent_tts.config.settings import Settings, is_of_environment
from agent_tts.errors import SettingsError
from agent_tts.serve.processes.reload import with_secrets
from agent_tts.system.processes import module_command, started, write_private

FOLDER = "TTS_CLUSTER_FOLDER"  # variable of Ray's processes: the folder of their machine
DEFAULT_FOLDER = "~/.local/state/agent-tts/cluster"
PLACES = 64  # nodes on one machine, living and ending
FIRST_PORT = 8101
START_S = 600.0  # the first start on a machine compiles kernels and may download a model
LOOK_S = 0.1
ANSWER_S = 3.0
KEY = "cluster"  # name of the key that the keeper reads metrics with, where a node has keys


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a node's process."""

    pid: int
    started: int  # by the kernel's clock, in ticks: another process may get its pid
    name: str
    port: int
    version: str
    gpus: str  # as in CUDA_VISIBLE_DEVICES
    settings: str  # a digest
    key: str | None  # for its metrics

    @property
    def lives(self) -> bool:
        return started(self.pid) == self.started


@dataclass(eq=False)
class KeptNode:
    """One node. `start`, then `look` as often as you like, then `drain` if it shall end; `release` at last."""

    folder: Path  # for places, settings and logs; nobody else may read it
    settings: Settings  # of the node; its port, name and ledger are chosen here
    host: str  # the address at which other machines reach it
    gpus: str  # as in CUDA_VISIBLE_DEVICES; "" for none
    record: Record | None = field(default=None, init=False)  # what is known of its process, from `start` on

    def __post_init__(self) -> None:
        # The number of its place and the lock of it, from `start` on.
        self._place = -1
        self._lock: int | None = None
        self._figures = Figures()
        self._http = httpx.AsyncClient(timeout=ANSWER_S, trust_env=False, verify=False)

    @property
    def counts_path(self) -> Path:
        """Where it asks for the counts of its keys."""
        return self.folder / f"{self._place}.sock"

    @property
    def url(self) -> str:
        assert self.record is not None
        return f"http://{host_port(self.host, self.record.port)}"

    async def start(self, before: Callable[[Path], Any]) -> bool:
        """Adopt a node or start one, and wait until it takes callers; returns whether it was adopted.

        Args:
            before: called, and awaited, with `counts_path` when the place is known.

        Raises:
            SettingsError: it has ended or is not ready in time; the message has the end of its log.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        adopted = self._find(sorted(_places(self.folder)), lambda found: found is not None and self._is_ours(found))
        if not adopted and not self._find(range(PLACES), lambda found: found is None):
            raise SettingsError(f"{self.folder}: all {PLACES} places have a node")
        await before(self.counts_path)
        if adopted:
            await self._until_ready()
        else:
            await self.restart()
        return adopted

    async def restart(self) -> None:
        """Start it in its place, where none lives any more. Raises `SettingsError`, as `start` does."""
        self.record = await asyncio.to_thread(self._launch)
        await self._until_ready()

    @property
    def is_alive(self) -> bool:
        return self.record is not None and self.record.lives

    async def look(self) -> tuple[str, Load]:
        """What `/ready` says, or "lost", and the node's load."""
        assert self.record is not None
        headers = {} if self.record.key is None else {"X-API-Key": self.record.key}
        try:
            ready, page = await asyncio.gather(
                self._http.get(f"{self.url}/ready"), self._http.get(f"{self.url}/metrics", headers=headers)
            )
            return str(ready.json()["status"]), self._figures.read(page.raise_for_status().text)
        except (httpx.HTTPError, ValueError, KeyError):
            return "lost", Load(0, 0)

    def kill(self) -> None:
        """End it at once, with its callers."""
        if self.record is not None:
            end(self.record, signal.SIGKILL)

    async def drain(self) -> None:
        """Let it finish its calls and end: no new ones come. Cancelling it leaves it draining."""
        if self.record is not None:
            end(self.record)
        while self.is_alive:  # noqa: ASYNC110 - another process
            await asyncio.sleep(LOOK_S)
        self._path("json").unlink(missing_ok=True)

    async def release(self) -> None:
        """Look after it no more: another may. Idempotent."""
        await self._http.aclose()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ------------------------------------------------------------ inside

    def _path(self, kind: str) -> Path:
        return self.folder / f"{self._place}.{kind}"

    async def _until_ready(self) -> None:
        try:
            async with asyncio.timeout(START_S):
                while (await self.look())[0] not in ("ok", "full", "draining"):
                    if not self.is_alive:
                        raise SettingsError(f"the node has ended: {self._tail()}")
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise SettingsError(f"the node is not ready after {START_S:g} s: {self._tail()}") from None

    def _find(self, places: Iterable[int], fits: Callable[[Record | None], bool]) -> bool:
        """Take the first of these places that nobody looks after and whose living node, or None, fits."""
        for place in places:
            lock = os.open(self.folder / f"{place}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            found = _living(self.folder / f"{place}.json")
            if fits(found):
                self._place, self._lock, self.record = place, lock, found
                return True
            os.close(lock)
        return False

    def _is_ours(self, found: Record) -> bool:
        return (found.version, found.gpus, found.settings) == self._kind

    @property
    def _kind(self) -> tuple[str, str, str]:
        """The version, GPUs and settings that a node of this one's has."""
        digest = hashlib.sha256(json.dumps(with_secrets(self.settings)).encode()).hexdigest()
        return __version__, self.gpus, digest

    def _launch(self) -> Record:
        values = with_secrets(self.settings)
        key = secrets.token_urlsafe(32) if self.settings.auth.locked else None
        port = _free_port(self.host, FIRST_PORT + self._place)
        name = f"{re.sub('[^a-z0-9]', '-', self.host.lower())}-{port}"
        values |= {"host": self.host, "port": port}
        values["fleet"] |= {"node": name}
        values["tls"] = {}  # the door has the certificate
        if values["fleet"]["secret"] and not values["fleet"]["ledger"]:
            values["fleet"]["ledger"] = f"socket://{self.counts_path}"
        if key is not None:
            values["auth"]["keys"][KEY] = {"key": key, "operator": True}
        log = self._path("log")
        with suppress(FileNotFoundError):
            log.rename(self._path("log.1"))
        write_private(config := self._path("yaml"), json.dumps(values).replace("\x7f", "\\u007f"))  # so it is YAML
        # The settings have the environment's share of them already, and Ray's token is not for the node.
        others = (name for name in os.environ if not is_of_environment(name) and not name.startswith("RAY_"))
        environment = {name: os.environ[name] for name in others}
        environment["CUDA_VISIBLE_DEVICES"] = self.gpus
        # Ray ends the children of its processes: this one's parent is gone at once.
        path, kind = self._path("json"), dict(zip(("version", "gpus", "settings"), self._kind, strict=True))
        assert self._lock is not None
        subprocess.run(
            module_command("agent_tts.cluster.detach", str(log), str(path), "serve", "--config", str(config)),
            env=environment,
            input=json.dumps(kind | {"name": name, "port": port, "key": key}).encode(),
            capture_output=True,
            timeout=60,
            check=True,
            pass_fds=[self._lock],  # the place is taken until the record is there
        )
        record = _living(path)
        if record is None:
            raise SettingsError(f"the node has ended at once: {self._tail()}")
        logger.info("node {} is started, process {}, its log is {}", name, record.pid, log)
        return record

    def _tail(self) -> str:
        with suppress(OSError):
            return self._path("log").read_text(errors="replace")[-2_000:].strip()
        return "it has no log"


def living_nodes(folder: Path) -> dict[str, Record]:
    """The living nodes of a machine, by name."""
    found = [_living(folder / f"{place}.json") for place in _places(folder)]
    return {record.name: record for record in found if record is not None}


def _places(folder: Path) -> list[int]:
    """Those that have, or had, a node."""
    return [int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal()]


def _living(path: Path) -> Record | None:
    try:
        known = json.loads(path.read_text())
        found = Record(*(known[field.name] for field in fields(Record)))  # another version may tell more
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return found if found.lives else None


def end(record: Record, number: signal.Signals = signal.SIGTERM) -> None:
    """Send a node a signal, if it lives: by SIGTERM it finishes its calls first."""
    if record.lives:
        os.kill(record.pid, number)


def _free_port(host: str, wanted: int) -> int:
    """`wanted`, or another that is free if a stranger listens there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in (wanted, 0):
        with suppress(OSError), socket.create_server((host, port), family=family) as probe:
            return int(probe.getsockname()[1])
    raise SettingsError(f"no port is free at {host}")


if sys.platform != "linux":
    raise SettingsError("a cluster needs Linux on its machines")
