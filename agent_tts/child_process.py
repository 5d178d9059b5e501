"""A child process that runs a Python module, as its parent sees it: spawned, signalled and reaped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, cast

from loguru import logger

TAIL_BYTES = 4_096  # of its stderr, kept for the log
REAP_S = 5.0  # for a killed process to exit; a driver may hold it in the kernel
PIPES_S = 0.2  # for the pipes of an exited process to run empty


class ChildProcess(asyncio.SubprocessProtocol):
    """One child process. Whoever spawned it must await `reap`, after `kill` if it still runs."""

    def __init__(self, name: str) -> None:
        # What the log calls it.
        self._name = name
        self._loop = asyncio.get_running_loop()
        # None until it is spawned.
        self._transport: asyncio.SubprocessTransport | None = None
        # Its stdin. None until it is spawned.
        self._stdin: asyncio.WriteTransport | None = None
        # Completed when the process has exited.
        self.exited: asyncio.Future[None] = self._loop.create_future()
        # Completed when its pipes are closed, too.
        self.closed: asyncio.Future[None] = self._loop.create_future()
        # The end of its stderr, at most `TAIL_BYTES`.
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

    async def spawn(self, module: str, *args: str, passes: Callable[[str], object]) -> asyncio.WriteTransport:
        """Run `python -m module args`; returns its stdin. After an error or a cancellation, `kill` and `reap` end it.

        Args:
            passes: whether it gets an environment variable, by the variable's name.

        Raises:
            OSError: it cannot be started.
        """
        options: dict[str, Any] = {}
        if sys.platform == "win32":
            options["creationflags"] = subprocess.CREATE_NEW_PROCESS_GROUP
        else:
            options["start_new_session"] = True  # Ctrl-C is for the parent alone
        # -P: a module in the current directory must not replace one of ours.
        command = (sys.executable, "-P", "-m", module, *args)
        env = {name: value for name, value in os.environ.items() if passes(name)}
        transport, _ = await self._loop.subprocess_exec(lambda: self, *command, env=env, **options)
        self._stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        return self._stdin

    def send_signal(self, signum: int) -> None:
        """Send a signal, unless the process has exited or was never spawned. POSIX only."""
        # Not by the transport: asyncio's polls the process first and may so steal its exit code from the watcher.
        if not self.exited.done() and self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill(self) -> None:
        """Kill it, unless it has exited or was never spawned."""
        if sys.platform != "win32":
            self.send_signal(signal.SIGKILL)
        elif self._transport is not None and not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                self._transport.kill()

    async def reap(self) -> None:
        """Wait until a killed or exited process and its pipes are gone, for seconds at most.

        Cancelling it skips the wait; the process is reaped all the same.
        """
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
