"""A process that works once: bytes in, bytes out. Made, killed and reaped here alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, cast

from loguru import logger

# The variables that it gets, of those that there are: what a Python needs to start. Any other may hold a secret.
ENVIRONMENT = (
    *("PATH", "HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT"),
    *("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
)
TAIL_BYTES = 4_096  # of its stderr, kept for the log
REAP_S = 5.0  # for a killed process to be gone


@dataclass(frozen=True, slots=True)
class Done:
    """How it ended."""

    code: int  # exit code; on POSIX, minus the signal that killed it
    output: bytes  # of stdout
    errors: str  # the end of its stderr


async def run(module: str, *args: str, data: bytes, output_bytes: int, timeout_s: float) -> Done:
    """Run `python -m module args` on `data`. Cancelling it is safe: the process is killed and reaped.

    Args:
        output_bytes: if it writes more, it is killed.
    Raises:
        TimeoutError: it took longer, and is killed.
        OSError: it cannot be started.
    """
    options: dict[str, Any] = {}
    if sys.platform == "win32":
        options["creationflags"] = subprocess.CREATE_NEW_PROCESS_GROUP
    else:
        options["start_new_session"] = True  # Ctrl-C is for its parent alone
    # -P: no module of the current directory may take the place of one of ours.
    command = (sys.executable, "-P", "-m", module, *args)
    env = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    async with asyncio.timeout(timeout_s):
        loop = asyncio.get_running_loop()
        transport, child = await loop.subprocess_exec(lambda: _Child(output_bytes), *command, env=env, **options)
        try:
            stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
            stdin.write(data)
            stdin.close()  # when all is written
            await asyncio.wait([child.closed])
        finally:
            child.kill()
            await child.reap()
    return Done(transport.get_returncode() or 0, bytes(child.output), child.errors.decode("utf-8", "replace").strip())


class _Child(asyncio.SubprocessProtocol):
    def __init__(self, output_bytes: int) -> None:
        self._limit = output_bytes
        # Set before anything else happens.
        self._transport: asyncio.SubprocessTransport
        # What it wrote to stdout.
        self.output = bytearray()
        # The end of what it wrote to stderr.
        self.errors = bytearray()
        # Whether the process has ended and is reaped.
        self._exited = False
        # Completed when its pipes are closed, too.
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self._exited:
            return
        if sys.platform == "win32":
            self._transport.kill()
        else:
            # Not by the transport: asyncio's polls the process first and may so steal its exit code from the watcher.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._transport.get_pid(), signal.SIGKILL)

    async def reap(self) -> None:
        """Wait until a killed process is gone. Cancelling it skips the waiting alone."""
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
