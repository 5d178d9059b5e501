"""Sources of text."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import threading
from collections.abc import AsyncIterator

READ_BYTES = 4_096
READ_AHEAD = 8  # chunks that may wait
# Seconds without input after which the pending text is spoken: well below a node's limit for an open context (15 s).
IDLE_S = 5.0


async def once(text: str) -> AsyncIterator[str | None]:
    """A complete text."""
    yield text


async def arriving(fd: int, *, lines: bool, idle_s: float = IDLE_S) -> AsyncIterator[str | None]:
    """UTF-8 text from a file descriptor as it arrives; None where the text so far is complete.

    A thread reads, because files, terminals and pipes have no common asynchronous interface. If the iteration is
    abandoned, the thread stays blocked in `read`.

    Args:
        lines: every line is complete, for typed input.
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
