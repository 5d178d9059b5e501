"""Child processes of the node: how parents start, bound and reap them, and what they do before they work."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, cast

from loguru import logger

# Environment variables that `run_module` passes on, where they are set. Any other may hold a secret.
ENVIRONMENT = (
    *("PATH", "HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT"),
    *("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
)
TAIL_BYTES = 4_096  # of a child's stderr, kept for the log
REAP_S = 5.0  # for a killed process to be gone; a driver may hold it in the kernel

# Options of a child that Ctrl-C does not reach: its parent decides when it ends.
DETACHED: dict[str, Any] = {}
if sys.platform == "win32":
    DETACHED["creationflags"] = subprocess.CREATE_NEW_PROCESS_GROUP
else:
    DETACHED["start_new_session"] = True

_PR_SET_PDEATHSIG = 1


def module_command(module: str, *args: str) -> list[str]:
    """The command of `python -m module args`; -P: a module of the current directory cannot replace an installed one."""
    return [sys.executable, "-P", "-m", module, *args]


def send_signal(transport: asyncio.SubprocessTransport, signum: int) -> None:
    """Signal a child that is not reaped yet.

    Not by the transport: asyncio's polls the process first and may so steal its exit code from the watcher.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(transport.get_pid(), signum)


def kill(transport: asyncio.SubprocessTransport) -> None:
    """Kill a child that is not reaped yet."""
    if sys.platform != "win32":
        send_signal(transport, signal.SIGKILL)
    else:
        with contextlib.suppress(ProcessLookupError):
            transport.kill()


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
    env = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    async with asyncio.timeout(timeout_s):
        loop = asyncio.get_running_loop()
        transport, child = await loop.subprocess_exec(
            lambda: _ModuleProtocol(output_bytes), *module_command(module, *args), env=env, **DETACHED
        )
        try:
            stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
            stdin.write(data)
            stdin.close()  # when all is written
            await asyncio.wait([child.closed])
        finally:
            child.kill()
            await child.reap()
    errors = child.errors.decode("utf-8", "replace").strip()
    return ModuleResult(transport.get_returncode() or 0, bytes(child.output), errors)


class _ModuleProtocol(asyncio.SubprocessProtocol):
    def __init__(self, output_bytes: int) -> None:
        self._limit = output_bytes
        # Set before any other call.
        self._transport: asyncio.SubprocessTransport
        # All of stdout, and the end of stderr.
        self.output, self.errors = bytearray(), bytearray()
        # Whether the process has ended and is reaped.
        self._exited = False
        # Completed when its pipes are closed, too.
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        if not self._exited:
            kill(self._transport)

    async def reap(self) -> None:
        """Wait until a killed process is gone. Cancelling it skips the wait alone."""
        try:
            await asyncio.wait([self.closed], timeout=REAP_S)
        finally:
            self._transport.close()
        if not self._exited:
            logger.error("process {} cannot be killed", self._transport.get_pid())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.errors = (self.errors + data)[-TAIL_BYTES:]
        elif len(self.output) + len(data) > self._limit:
            self.kill()
        else:
            self.output += data

    def process_exited(self) -> None:
        self._exited = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)


# ---------------------------------------------------------------- lines out, for a thread without an event loop


class LineProcess:
    """`python -m module args` in the background, which reports its progress as lines on stdout.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, module: str, *args: str) -> None:
        command = module_command(module, *args)
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self._stdout = cast(IO[bytes], self._process.stdout)

    def latest_lines(self, deadline: float) -> Iterator[bytes]:
        """The last complete line of each read, until the process closes stdout.

        Args:
            deadline: on the monotonic clock.
        Raises:
            TimeoutError: stdout is still open at the deadline.
        """
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


# ---------------------------------------------------------------- inside the child


def die_with(parent: int) -> None:
    """On Linux, have the kernel kill this process when `parent` dies, even while a library holds the GIL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(0)


def take_stdout() -> int:
    """Keep stdout for this program alone, as the file descriptor returned; prints of libraries go to stderr."""
    out = os.dup(1)
    os.dup2(2, 1)
    return out


def settle() -> None:
    """Exempt all present objects from garbage collection; each full collection would take 0.1 s.

    `gc.unfreeze` undoes it, for libraries that count what is left at the end.
    """
    gc.collect()
    gc.freeze()
