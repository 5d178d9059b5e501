"""A machine of a cluster: its part of Ray, its door, and what the door is told. None of them ends with another."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import math
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loguru import logger

from agent_tts.cluster.directory import NodeAddress, address_of
from agent_tts.cluster.door import Door
from agent_tts.cluster.kept_node import FOLDER, START_S, end, living_nodes
from agent_tts.config.settings import is_of_environment
from agent_tts.errors import SettingsError
from agent_tts.system.in_child import die_with
from agent_tts.system.processes import ends, module_command

DOOR_DRAIN_S = 3_600.0  # longest wait for the callers of this door when its machine is taken out
UNATTENDED_S = START_S + 60  # a node that starts is not told of yet
KEEP_S = 120.0  # after the directory last told of a node the door still asks it whether it takes callers
AGAIN_S = 2.0  # before a part is started again
RAY_S = 60.0  # for Ray to end
DEPLOY_S = 120.0  # for the application to be deployed
MAX_LOG_BYTES = 4 << 20  # of what a part complains of: then the file begins anew, with its next start
LOOK_S = 0.5  # between two looks whether the head is there, or nodes have ended
# A part that has run so long since it ended counts as whole again: `haproxy_server_status{proxy="machine"}` shows it.
WHOLE_S = 60.0
# Ray Serve learns the load of nodes each second, not every ten; nothing is sent to Ray's makers.
ENVIRONMENT = {
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray lowers the priority of its workers by 15, and a node, which works in real time, would inherit it.
    "RAY_worker_niceness": "0",
    # Ray of a machine that has lost its head ends, to join the next: after this, not after a minute.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    # It ends at once when it is told to, and nodes are told then; `agent-tts cluster drain` comes before.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    # Ray's own metrics would answer on all interfaces, without the cluster's token.
    "RAY_enable_metrics_collection": "0",
    "AUTOSCALER_METRIC_PORT": "-1",
    "DASHBOARD_METRIC_PORT": "-1",
}
RAY = "agent_tts.cluster.ray_private"


class Known:
    """The nodes that the door is told of. Pure: a node is kept for `KEEP_S` after it was last heard of."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[NodeAddress, float]] = {}

    def hear(self, addresses: list[NodeAddress], now: float) -> list[NodeAddress]:
        """All nodes to tell the door of, by name."""
        self._heard |= {address.name: (address, now) for address in addresses}
        self._heard = {name: known for name, known in self._heard.items() if known[1] > now - KEEP_S}
        return [address for _, (address, _) in sorted(self._heard.items())]


class Unattended:
    """The nodes of a machine that no replica tells of, though the directory answers. Pure.

    A spare machine may have got the replica of a living node while that one's machine was away.
    """

    def __init__(self) -> None:
        # Names of living nodes that nobody tells of, and since when; infinity for those that are to end already.
        self._since: dict[str, float] = {}

    def hear(self, told: Collection[str], living: Collection[str], now: float) -> list[str]:
        """The living nodes that are to end now. The directory has told of `told`."""
        self._since = {name: self._since.get(name, now) for name in living if name not in told}
        ending = [name for name, since in self._since.items() if since < now - UNATTENDED_S]
        self._since |= dict.fromkeys(ending, math.inf)
        return ending


@dataclass(eq=False)
class Machine:
    """Runs until it is told to end."""

    folder: Path  # for its state; nobody else may write there. One machine of a cluster has one
    head: str  # `HOST:PORT` of the cluster's head
    ray: list[str]  # more arguments of `ray start`
    door: Door
    options: dict[str, Any] | None  # of the application (`app.build`), where this machine is the head
    targets: Path | None = None  # where all nodes are written for Prometheus, as its `file_sd_configs` want them

    def __post_init__(self) -> None:
        self._known = Known()

    async def run(self, started: Callable[[], None]) -> None:
        """Take part until SIGTERM or SIGINT: then the nodes of this machine finish their calls, and all of it ends.

        Args:
            started: called when the door is open, to tell of it; what it cannot write ends nothing.

        Raises:
            SettingsError: the door cannot be opened, or this folder has a machine already.
        """
        ending = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ending.set)
        loop.add_signal_handler(signal.SIGHUP, logger.info, "SIGHUP: a cluster keeps the settings of its start")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])  # also one that has come before
        with _only_one(self.folder):
            await self.door.start()
            parts = {"ray": self._keep_ray, "watching": self._keep_watching}
            tasks = [asyncio.create_task(self._supervise(*part), name=part[0]) for part in parts.items()]
            try:
                _write(self.folder / "head", self.head)
                await self._tell_door(_read(self.folder / "nodes.json"))
                with contextlib.suppress(OSError):  # nobody need be able to read it, and a disk may be full
                    started()
                await ending.wait()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                # Callers of other machines' nodes may have come by this door.
                await asyncio.gather(self._end_nodes(), self.door.close(DOOR_DRAIN_S))

    # ------------------------------------------------------------ parts

    async def _supervise(self, name: str, part: Callable[[], Awaitable[None]]) -> None:
        """Run a part, which only a fault ends, again and again."""
        while True:
            whole = asyncio.get_running_loop().call_later(WHOLE_S, self.door.tell, name, True)
            try:
                await part()
            except Exception:  # noqa: BLE001 - whatever it is, such as a full disk, the machine goes on
                logger.exception("{} has failed: it is started again", name)
            finally:
                whole.cancel()
            self.door.tell(name, False)
            await asyncio.sleep(AGAIN_S)

    async def _keep_ray(self) -> None:
        """Ray's processes of this machine; when they have ended they are started again."""
        place = ["--head", f"--port={self.head.rpartition(':')[2]}", "--include-dashboard=false"]
        if self.options is None:
            place = [f"--address={self.head}"]
        while True:
            if self.options is None:
                await self._until_head()
            async with self._running(RAY, "start", "--block", *place, *self.ray) as process:
                await process.wait()
            logger.warning("Ray has ended on this machine: it is started again; nodes and callers go on")
            await asyncio.sleep(AGAIN_S)

    async def _keep_watching(self) -> None:
        """Tell the door of the nodes that the directory knows. Where nobody tells, the head deploys the application."""
        while True:
            told, unattended = False, Unattended()
            await self._until_head()
            async with self._running("agent_tts.cluster.watch", self.head) as process:
                assert process.stdout is not None
                async for line in process.stdout:
                    told = True
                    addresses = list(_addresses(json.loads(line)))
                    await self._tell_door(addresses)
                    here = living_nodes(self.folder)
                    for name in unattended.hear({address.name for address in addresses}, here, time.monotonic()):
                        logger.warning("no replica tells of the node {}: it finishes its calls and ends", name)
                        end(here[name])
            if told or not await self._deploy():
                await asyncio.sleep(AGAIN_S)

    async def _until_head(self) -> None:
        """Wait until something listens where the head is: a process of Ray that finds nobody costs seconds of CPU."""
        host, _, port = self.head.rpartition(":")
        while not await asyncio.to_thread(is_taken, host, int(port)):  # noqa: ASYNC110 - another process
            await asyncio.sleep(LOOK_S)

    async def _deploy(self) -> bool:
        """Whether this machine is the head, and the application is deployed."""
        if self.options is None:
            return False
        # So many nodes may live on without a head: without a replica nobody would end them.
        options = self.options | {"found": len(_read(self.folder / "nodes.json"))}
        async with self._running("agent_tts.cluster.app", self.head, input_=json.dumps(options).encode()) as process:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DEPLOY_S):
                    if await process.wait() == 0:
                        logger.info("the cluster is deployed")
                        return True
        return False

    async def _tell_door(self, addresses: list[NodeAddress]) -> None:
        nodes = self._known.hear(addresses, time.monotonic())
        await self.door.update(nodes)
        text = json.dumps([asdict(node) for node in nodes])
        if nodes:
            _write(self.folder / "nodes.json", text)
        if self.targets is not None:
            _write(self.targets, json.dumps([{"targets": [node.target for node in nodes]}]))

    @asynccontextmanager
    async def _running(self, module: str, *args: str, input_: bytes = b"") -> AsyncIterator[asyncio.subprocess.Process]:
        """`python -m MODULE ARGS`, with what it complains of in a file; what is left of it ends with the block."""
        with (self.folder / f"{module.rpartition('.')[2]}.log").open("ab") as log:
            if log.tell() > MAX_LOG_BYTES:
                log.truncate(0)
            process = await asyncio.create_subprocess_exec(
                *module_command(module, *args),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE if module.endswith("watch") else log,
                stderr=log,
                # The nodes' settings come with the application: keys are not for Ray's processes.
                env={name: value for name, value in os.environ.items() if not is_of_environment(name)}
                | ENVIRONMENT
                | {FOLDER: str(self.folder)},
                # Where the application is deployed from, workers on all machines look for modules first. Nodes inherit
                # Ray's: there settings may name files.
                cwd=None if module == RAY else self.folder,
                start_new_session=True,
                # Ray ends with this process, so a killed machine can be started again; its node and its door live on.
                preexec_fn=partial(die_with, os.getpid()),
                limit=1 << 20,
            )
        assert process.stdin is not None
        try:
            process.stdin.write(input_)
            process.stdin.close()
            yield process
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGTERM)  # see `ends`
                await ends(process, RAY_S)

    async def _end_nodes(self) -> None:
        """The nodes of this machine finish their calls and end. A second signal ends this process at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
        for name, record in living_nodes(self.folder).items():
            logger.info("node {} finishes its calls", name)
            end(record)
        while living_nodes(self.folder):  # noqa: ASYNC110 - another process
            await asyncio.sleep(LOOK_S)


def _addresses(reports: list[dict[str, Any]]) -> Iterator[NodeAddress]:
    """Where nodes are. One that cannot be reached by what it tells is left out, so the door learns of the others."""
    for report in reports:
        try:
            yield address_of(report)
        except (ValueError, KeyError, TypeError) as error:
            logger.error("a node tells what cannot be used: {}: {}", type(error).__name__, error)


def _write(path: Path, text: str) -> None:
    """Write a file that others read at any time. A fault is told: on a full disk the door still learns of nodes."""
    try:
        if not path.exists() or path.read_bytes() != text.encode():
            new = path.with_name(f".{path.name}.new")
            new.write_bytes(text.encode())
            new.replace(path)
    except OSError as error:
        logger.error("{}: {}", path, error.strerror)


def _read(path: Path) -> list[NodeAddress]:
    try:
        return list(_addresses(json.loads(path.read_text())))
    except (OSError, ValueError, TypeError):
        return []


@contextlib.contextmanager
def _only_one(folder: Path) -> Any:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "machine.pid").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(
                f"this machine is in a cluster already (process {running(folder)}): `agent-tts cluster stop` ends it"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def running(folder: Path) -> int | None:
    """The process of the machine with this folder; None if there is none."""
    try:
        with (folder / "machine.pid").open() as file:
            pid = int(file.read())
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return pid
    except (OSError, ValueError):
        pass
    return None


def is_taken(host: str, port: int) -> bool:
    """Whether something listens there. A name that no name server knows, or that cannot be one, stands for nobody."""
    with contextlib.suppress(OSError, UnicodeError):
        socket.create_connection((host, port), 1.0).close()
        return True
    return False
