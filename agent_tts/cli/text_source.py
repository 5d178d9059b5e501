"""Text as it arrives."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import threading
from collections.abc import AsyncIterator

READ_BYTES = 4_096
READ_AHEAD = 8  # chunks that may wait
# Silence after which what has come is spoken to its end: well before a node calls an open context starved (15 s).
IDLE_S = 5.0


async def once(text: str) -> AsyncIterator[str | None]:
    """A text that is all there."""
    yield text


async def arriving(fd: int, *, lines: bool, idle_s: float = IDLE_S) -> AsyncIterator[str | None]:
    """UTF-8 text from a file descriptor, as soon as it comes; None where a pause says that a piece is complete.

    A thread of its own reads, because files, terminals and pipes have no common way to be waited for. It is left
    behind in its `read` when the iteration is given up.

    Args:
        lines: every line is complete, as a person's is who types.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()  # bounded by `permits`
    permits = threading.Semaphore(READ_AHEAD)

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            while permits.acquire():
                try:
                    data = os.read(fd, READ_BYTES)
                except OSError:
                    data = b""
                loop.call_soon_threadsafe(chunks.put_nowait, data)
                if not data:
                    return

    threading.Thread(target=read, name="text reader", daemon=True).start()
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    complete = True
    while True:
        try:
            async with asyncio.timeout(None if complete else idle_s):
                data = await chunks.get()
        except TimeoutError:
            complete = True
            yield None
            continue
        permits.release()
        text = decoder.decode(data, final=not data)
        if text:
            yield text
            complete = lines and text.endswith("\n")
            if complete:
                yield None
        if not data:
            return
