"""Writes lines to a file descriptor whose reader may be slow, stopped or gone."""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Callable

MAX_WAITING_BYTES = 1 << 20
FLUSH_S = 1.0  # for waiting lines to be written at the end


class LineWriter:
    """Never blocks its callers: a thread writes, and a line for which there is no room is dropped.

    Args:
        fd: blocking; not closed by this object.
        on_dropped: called with 1 for each dropped line, in the thread that drops it.
        on_moving: called with the number of lines dropped since the last call, when all that waited is written.
    """

    def __init__(self, fd: int, on_dropped: Callable[[], None], on_moving: Callable[[int], None]) -> None:
        self._fd = fd
        self._on_dropped = on_dropped
        self._on_moving = on_moving
        # Lines that wait; None ends the thread. Its `put` may be called anywhere, in a signal handler too.
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # Bytes put into the queue, by callers, and taken out and written, by the thread alone.
        self._put = 0
        self._written = 0
        # Lines dropped, and the number of them that `on_moving` has told.
        self._dropped = 0
        self._told = 0
        self._stopping = False
        atexit.register(self.stop)
        # A daemon: the process must end while it is blocked.
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Write a line, in time. Calls from several threads must not overlap."""
        data = line.encode("utf-8", "backslashreplace")
        if self._put - self._written + len(data) > MAX_WAITING_BYTES:
            self._drop()
            return
        self._put += len(data)
        self._lines.put(data)

    def stop(self) -> None:
        """Write what waits, for `FLUSH_S` at most. No line may follow. Idempotent."""
        self._stopping = True
        atexit.unregister(self.stop)
        self._lines.put(None)
        self._thread.join(FLUSH_S)

    def _run(self) -> None:
        while (data := self._lines.get()) is not None:
            rest = memoryview(data)
            try:
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            except OSError:  # the reader is gone
                self._drop()
            self._written += len(data)
            if self._dropped > self._told and self._lines.empty() and not self._stopping:
                dropped, self._told = self._dropped - self._told, self._dropped
                self._on_moving(dropped)

    def _drop(self) -> None:
        self._dropped += 1
        self._on_dropped()
