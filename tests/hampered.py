"""A node in a process of its own that lacks what it needs: a reader of its log, and file descriptors."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.cli.process import environment

START_S = 60.0
STOP_S = 30.0
PIPE_BYTES = 4_096  # the least that Linux allows


@asynccontextmanager
async def hampered_node(*flags: str, files: int | None = None) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """`agent-tts serve` with these flags on a free port. Its stderr is a small pipe, read up to its address only.

    Args:
        files: its hard limit of file descriptors.
    """
    import fcntl

    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    limit = "" if files is None else f"ulimit -n {files}; "
    command = (sys.executable, "-m", "agent_tts", "serve", "--port", "0", *flags)
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", f'{limit}exec "$@"', "sh", *command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=writer,
        env=environment(),
    )
    os.close(writer)
    try:
        yield await asyncio.wait_for(asyncio.to_thread(_address, reader), START_S), process
        process.terminate()
        assert await asyncio.wait_for(process.wait(), STOP_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(reader)


def _address(reader: int) -> str:
    said = b""
    while b"agent-tts: http" not in said or not said.endswith(b"\n"):
        if not (more := os.read(reader, PIPE_BYTES)):
            raise RuntimeError(f"the node did not start: {said.decode()}")
        said += more
    return said.decode().rpartition("agent-tts: ")[2].split()[0]
