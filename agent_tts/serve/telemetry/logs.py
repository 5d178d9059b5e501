"""The log of a node: lines of text or JSON on stderr, without spoken text or audio.

A message of a library or an exception may quote spoken text. So an exception is logged by its type and traceback, and
by its message only where that is about the machine.

Strangers cause lines, too, and stderr may be a pipe that nobody reads. So each place in the code has a limited rate of
lines, and no line ever waits for stderr.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import queue
import select
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from loguru import logger

from agent_tts.errors import SettingsError, SpeechError
from agent_tts.serve.token_bucket import TokenBucket

if TYPE_CHECKING:
    from loguru import Message, Record

# Errors whose messages never quote a client.
_ABOUT_MACHINE = (OSError, ImportError, MemoryError, SettingsError, SpeechError)


STDERR = 2  # its file descriptor

MAX_WAITING_BYTES = 1 << 20  # of lines that wait for the reader of stderr
FLUSH_S = 1.0  # for waiting lines to be written at the end

# Lines of one place in the code: at once, and a second on average. Debug lines, which somebody asked for, are free.
BURST = 50
LINES_PER_S = 1.0
_LIMITED_FROM = 20  # INFO


# Pipecat logs spoken text below the level of errors, and there a message that is not JSON.
SHOWN: dict[str | None, str | int | bool] = {"pipecat": "ERROR", "pipecat.transports.smallwebrtc.connection": False}


def log_to_stderr(
    level: str, form: Literal["text", "json"] = "text", *, front: int | None = None, fd: int = STDERR
) -> StderrLog:
    """Send all logs, those of libraries too, to stderr in one format. `logger.remove()` ends it.

    Args:
        front: number of this front, if it is one of several: each line has it.
        fd: the node's stderr, where that is not the process's own.
    """
    logger.remove()
    log = StderrLog(form, front, fd)
    logger.add(log, level=level.upper(), format="{message}", filter=SHOWN, diagnose=False)
    logging.basicConfig(handlers=[_ToLoguru()], level=logging.WARNING, force=True)
    return log


class StderrLog:
    """A sink of loguru, which calls `write` by one thread at a time and `stop` once."""

    def __init__(self, form: Literal["text", "json"], front: int | None, fd: int) -> None:
        self._form = _text if form == "text" else _json
        self._front = front  # None unless it is one of several
        self._repeats = Repeats()
        dropped = partial(logger.warning, "{} log lines were dropped: stderr was not read in time")
        self._writer = LineWriter(fd, lambda: self.on_lost("unread"), dropped)
        # Called for each line that is lost: "unread", as stderr takes no more, or "repeated".
        self.on_lost: Callable[[str], None] = lambda why: None

    def write(self, message: Message) -> None:
        """Log a record of loguru, unless its place has logged too many. Never waits."""
        record = message.record
        left_out: int | None = 0
        if record["level"].no >= _LIMITED_FROM:
            place = record["extra"].get("place") or f"{record['file'].path}:{record['line']}"
            left_out = self._repeats.take(place, time.monotonic())
        if left_out is None:
            self.on_lost("repeated")
            return
        note = f" ({left_out} more of these were left out)" if left_out else ""
        self._writer.write(self._form(record, self._front, note))

    def stop(self) -> None:
        """Write what waits, within a second."""
        self._writer.stop()


class Repeats:
    """Limits the lines of each place in the code. Pure: the caller passes the time, in seconds."""

    def __init__(self) -> None:
        self._buckets: dict[str, TokenBucket] = {}
        # Lines of each place since the last that was not left out.
        self._left_out: Counter[str] = Counter()

    def take(self, place: str, now: float) -> int | None:
        """None if a line of this place is to be left out; otherwise how many were, since the last that was not."""
        if not self._buckets.setdefault(place, TokenBucket(LINES_PER_S, BURST, now)).allows(now):
            self._left_out[place] += 1
            return None
        return self._left_out.pop(place, 0)


@dataclass(eq=False)
class LineWriter:
    """Never blocks its callers: a thread writes, and a line for which there is no room is dropped."""

    fd: int  # not closed by this object
    on_dropped: Callable[[], None]  # called for each dropped line, in the thread that drops it
    on_moving: Callable[[int], None]  # called with how many were dropped meanwhile, when all that waited is written

    def __post_init__(self) -> None:
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
                    try:
                        rest = rest[os.write(self.fd, rest) :]
                    except BlockingIOError:  # who has the other end, or shares this one, has made it so
                        select.select([], [self.fd], [])
            except OSError:  # the reader is gone
                self._drop()
            self._written += len(data)
            if self._dropped > self._told and self._lines.empty() and not self._stopping:
                dropped, self._told = self._dropped - self._told, self._dropped
                self.on_moving(dropped)

    def _drop(self) -> None:
        self._dropped += 1
        self.on_dropped()


def report_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Exception handler of an event loop. The default one logs the arguments of what failed."""
    error = context.get("exception")
    if error is None:
        logger.error("event loop: {}", context["message"])
    else:
        logger.opt(exception=error).error("event loop: a callback or a task failed")


def _text(record: Record, front: int | None, note: str) -> str:
    said = record["message"] if front is None else f"front {front}: {record['message']}"
    line = f"{record['time']:HH:mm:ss.SSS} {record['level'].name: <7} {said}{note}\n"
    return line + "".join(f"{part}\n" for part in _fault(record))


def _json(record: Record, front: int | None, note: str) -> str:
    fields: dict[str, object] = {
        "time": record["time"].astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record["level"].name.lower(),
        "message": record["message"] + note,
        "source": record["extra"].get("source", record["name"]),
    }
    if front is not None:
        fields["front"] = front
    if fault := _fault(record):
        fields["fault"] = "\n".join(fault)
    return json.dumps(fields) + "\n"


def _fault(record: Record) -> list[str]:
    """The traceback of a record's exception, then its type and message; nothing without an exception."""
    caught = record["exception"]
    if caught is None or caught.type is None:
        return []
    shown = f"{caught.type.__name__}: {caught.value}" if isinstance(caught.value, _ABOUT_MACHINE) else None
    return ["".join(traceback.format_tb(caught.traceback)).rstrip(), shown or caught.type.__name__]


class _ToLoguru(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        place = f"{record.pathname}:{record.lineno}"
        bound = logger.bind(source=record.name, place=place).opt(exception=record.exc_info)
        bound.log(record.levelname, "{}: {}", record.name, record.getMessage())
