"""Child processes of the node: how parents start, bound and reap them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from loguru import logger

from agent_tts.system.open_files import for_child

# Environment variables that `run_module` passes on, where they are set. Any other may hold a secret.
ENVIRONMENT = (
    *("PATH", "HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT"),
    *("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
)
TAIL_BYTES = 4_096  # of a child's stderr, kept for the log
DUMP_S = 0.2  # for a hung process to write its stacks, and for one that is exiting to be gone
REAP_S = 5.0  # for a killed process to exit; a driver may hold it in the kernel
DEATHS_WITHIN_S = 60.0  # those that count in `Deaths`
PIPES_S = 0.2  # for the pipes of an exited process to run empty


def write_private(path: Path, text: str) -> None:
    """Write a file, which may hold keys, for this user alone, in one step. Its folder is this user's alone, too."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.touch(0o600)
    new.chmod(0o600)
    new.write_text(text, "utf-8")
    new.replace(path)


def stat_of(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the process's state on; None if it has ended, or without /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def started(pid: int) -> int | None:
    """When a process was started, in ticks since the machine was; None if it has ended. Linux only."""
    fields = stat_of(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def module_command(module: str, *args: str) -> list[str]:
    """The command of `python -m module args`. -P: a module in the current directory cannot replace an installed one."""
    return [sys.executable, "-P", "-m", module, *args]


async def ends(process: asyncio.subprocess.Process, within_s: float) -> bool:
    """Whether a process ends in time. If not, or if this is cancelled, it is killed; it is gone in any case."""
    with contextlib.suppress(TimeoutError):
        try:
            async with asyncio.timeout(within_s):
                await process.wait()
                return True
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    # asyncio's own method polls the process, and so takes its exit code from the watcher.
                    process.kill() if sys.platform == "win32" else os.kill(process.pid, signal.SIGKILL)
                await process.wait()
    return False


class Deaths:
    """The deaths of one child process and its successors; whether and when it is restarted. Pure."""

    def __init__(self, backoff_s: Sequence[float]) -> None:
        """Take the pauses before the restart after the 1st, 2nd, ... death within `DEATHS_WITHIN_S`.

        One more death is the end.
        """
        self._backoff_s = backoff_s
        self._at: deque[float] = deque()

    def __len__(self) -> int:
        """Deaths within `DEATHS_WITHIN_S`, as of the last."""
        return len(self._at)

    def pause_s(self, now: float) -> float | None:
        """It has died now: the pause before its restart, in seconds; None if it has died too often."""
        self._at.append(now)
        while self._at[0] < now - DEATHS_WITHIN_S:
            self._at.popleft()
        return self._backoff_s[len(self._at) - 1] if len(self._at) <= len(self._backoff_s) else None


# ---------------------------------------------------------------- a child of an event loop


class ChildProcess(asyncio.SubprocessProtocol):
    """One child process. After `spawn` the caller must await `reap`, and call `kill` before if it still runs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        # They are None until it is spawned.
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: asyncio.WriteTransport | None = None
        # They are completed when the process has exited, and when its pipes are closed, too.
        self.exited: asyncio.Future[None] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._tail = bytearray()

    @property
    def pid(self) -> int | None:
        """Its process id; None until it is spawned."""
        return None if self._transport is None else self._transport.get_pid()

    @property
    def exit_code(self) -> int | None:
        """On POSIX minus the signal that killed it; None while it runs."""
        return None if self._transport is None else self._transport.get_returncode()

    @property
    def tail(self) -> str:
        """The end of its stderr, at most 4 KiB."""
        return self._tail.decode("utf-8", "replace").strip()

    async def spawn(
        self, module: str, *args: str, passes: Callable[[str], object], pass_fds: Sequence[int] = ()
    ) -> asyncio.WriteTransport:
        """Run `python -m module args`; returns its stdin. After an error or a cancellation, `kill` and `reap` end it.

        Args:
            passes: whether it gets an environment variable, by the variable's name.
            pass_fds: descriptors that it inherits under their numbers; none on Windows.

        Raises:
            OSError: it cannot be started.
        """
        env = {name: value for name, value in os.environ.items() if passes(name)}
        return await self.spawn_program(module_command(module, *args), env=env, pass_fds=pass_fds)

    async def spawn_program(
        self, command: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int] = (), cwd: Path | None = None
    ) -> asyncio.WriteTransport:
        """Run any program, with this environment; see `spawn`."""
        # Ctrl-C does not reach it: its parent decides when it ends.
        detached: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            detached = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        if pass_fds:
            detached["pass_fds"] = pass_fds
        with for_child():
            transport, _ = await self._loop.subprocess_exec(lambda: self, *command, env=env, cwd=cwd, **detached)
        self._stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        return self._stdin

    def send_signal(self, signum: int) -> None:
        """Send a signal, unless the process has exited or was never spawned. POSIX only."""
        # Not by the transport: asyncio's polls the process first and may so steal its exit code from the watcher.
        if not self.exited.done() and self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    async def write_stacks(self) -> None:
        """Have a hung process print all stacks on stderr; `in_child.arrange_signals` has prepared it. POSIX only."""
        self.send_signal(signal.SIGUSR1)
        await asyncio.wait([self.exited], timeout=DUMP_S)

    def kill(self) -> None:
        """Kill it, unless it has exited or was never spawned."""
        if sys.platform != "win32":
            self.send_signal(signal.SIGKILL)
        elif self._transport is not None and not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                self._transport.kill()

    async def reap(self) -> None:
        """Wait seconds at most until a killed or exited process is gone. Cancelling skips the wait, not the reaping."""
        if self._transport is None:
            return
        try:
            await asyncio.wait([self.exited], timeout=REAP_S)
            if self._stdin is not None and not self._stdin.is_closing():
                self._stdin.abort()
            await asyncio.wait([self.closed], timeout=PIPES_S)
        finally:
            self._transport.close()
        await asyncio.wait([self.closed], timeout=PIPES_S)
        if not self.closed.done():
            logger.error("{} process {} cannot be killed", self._name, self.pid)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._tail = (self._tail + data)[-TAIL_BYTES:]

    def process_exited(self) -> None:
        self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)

    def __str__(self) -> str:
        if self.pid is None:
            return f"{self._name} process"
        code = self.exit_code
        if code is None:
            return f"{self._name} process {self.pid} (running)"
        return f"{self._name} process {self.pid} (" + (f"signal {-code})" if code < 0 else f"exit code {code})")


# ---------------------------------------------------------------- bytes in, bytes out


@dataclass(frozen=True, slots=True)
class ModuleResult:
    """How a process of `run_module` ended."""

    code: int  # exit code; on POSIX, minus the signal that killed it
    output: bytes  # of stdout
    errors: str  # the last `TAIL_BYTES` of stderr


async def run_module(module: str, *args: str, data: bytes, output_bytes: int, timeout_s: float) -> ModuleResult:
    """Run `python -m module args` with `data` as its stdin. Cancelling it is safe: the process is killed and reaped.

    Args:
        output_bytes: limit of stdout; a process that writes more is killed.
    Raises:
        TimeoutError: it took longer than `timeout_s`, and was killed.
        OSError: it cannot be started.
    """
    child = _ModuleProcess(module, output_bytes)
    async with asyncio.timeout(timeout_s):
        try:
            stdin = await child.spawn(module, *args, passes=ENVIRONMENT.__contains__)
            stdin.write(data)
            stdin.close()  # when all is written
            await asyncio.wait([child.closed])
        finally:
            child.kill()
            await child.reap()
    return ModuleResult(child.exit_code or 0, bytes(child.output), child.tail)


class _ModuleProcess(ChildProcess):
    def __init__(self, name: str, output_bytes: int) -> None:
        super().__init__(name)
        self._limit = output_bytes
        self.output = bytearray()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        super().pipe_data_received(fd, data)
        if fd == 1 and len(self.output) + len(data) > self._limit:
            self.kill()
        elif fd == 1:
            self.output += data


# ---------------------------------------------------------------- lines out, for a thread without an event loop


class LineProcess:
    """`python -m module args` in the background: takes a line on stdin, and reports its progress as lines on stdout.

    Raises `OSError`.
    """

    def __init__(self, module: str, *args: str) -> None:
        command = module_command(module, *args)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._stdin, self._stdout = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)

    def send(self, line: str) -> None:
        """Give it its line, and end its stdin."""
        with contextlib.suppress(BrokenPipeError):  # it has ended, which its exit code tells
            self._stdin.write(line.encode() + b"\n")
            self._stdin.close()

    def latest_lines(self, deadline: float) -> Iterator[bytes]:
        """The last complete line of each read, until stdout closes. TimeoutError at the (monotonic) deadline."""
        unread = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                chunk = os.read(self._stdout.fileno(), 1 << 12)
                if not chunk:
                    return
                *lines, unread = (unread + chunk).split(b"\n")
                yield from lines[-1:]
        raise TimeoutError

    def reap(self) -> int | None:
        """The exit code of a process that is ending; None when it has not ended after `REAP_S`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(REAP_S)
        return None

    def close(self) -> None:
        """Kill the process, unless it has ended, and reap it."""
        self._process.kill()
        self.reap()
        self._stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
