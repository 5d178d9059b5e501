"""A process that works once: bytes in, bytes out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from agent_tts.child_process import ChildProcess

# The environment variables that it gets: those that Python needs to start. Any other may hold a secret.
ENVIRONMENT = (
    *("PATH", "HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT"),
    *("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
)


@dataclass(frozen=True, slots=True)
class Done:
    """How it ended."""

    code: int  # exit code; on POSIX, minus the signal that killed it
    output: bytes  # of stdout
    errors: str  # the end of its stderr


async def run(module: str, *args: str, data: bytes, output_bytes: int, timeout_s: float) -> Done:
    """Run `python -m module args` on `data`. Cancelling it is safe: the process is killed and reaped.

    Args:
        output_bytes: a process that writes more to stdout is killed.

    Raises:
        TimeoutError: it took longer than `timeout_s`, and was killed.
        OSError: it cannot be started.
    """
    child = _Child(module, output_bytes)
    async with asyncio.timeout(timeout_s):
        try:
            stdin = await child.spawn(module, *args, passes=ENVIRONMENT.__contains__)
            stdin.write(data)
            stdin.close()  # when all is written
            await asyncio.wait([child.closed])
        finally:
            child.kill()
            await child.reap()
    return Done(child.exit_code or 0, bytes(child.output), child.tail)


class _Child(ChildProcess):
    def __init__(self, name: str, output_bytes: int) -> None:
        super().__init__(name)
        self._limit = output_bytes
        # What it wrote to stdout.
        self.output = bytearray()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        super().pipe_data_received(fd, data)
        if fd == 1 and len(self.output) + len(data) > self._limit:
            self.kill()
        elif fd == 1:
            self.output += data
