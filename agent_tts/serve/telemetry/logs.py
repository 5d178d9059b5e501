"""The log of a node: lines of text or JSON on stderr, without spoken text or audio.

A message of a library or an exception may quote spoken text. So an exception is logged by its type and traceback, and
by its message only where that is about the machine.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import traceback
from datetime import UTC
from typing import TYPE_CHECKING, Any, Literal

from loguru import logger

from agent_tts.errors import SettingsError, SpeechError

if TYPE_CHECKING:
    from loguru import Message, Record

# Errors whose messages never quote a client.
_ABOUT_MACHINE = (OSError, ImportError, MemoryError, SettingsError, SpeechError)


def log_to_stderr(level: str, form: Literal["text", "json"] = "text") -> None:
    """Send all logs, those of libraries too, to stderr in one format."""
    logger.remove()
    write = _write_text if form == "text" else _write_json
    # Pipecat logs spoken text below the level of errors.
    logger.add(write, level=level.upper(), format="{message}", filter={"pipecat": "ERROR"}, diagnose=False)
    logging.basicConfig(handlers=[_ToLoguru()], level=logging.WARNING, force=True)


def report_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Exception handler of an event loop. The default one logs the arguments of what failed."""
    error = context.get("exception")
    if error is None:
        logger.error("event loop: {}", context["message"])
    else:
        logger.opt(exception=error).error("event loop: a callback or a task failed")


def _write_text(message: Message) -> None:
    record = message.record
    line = f"{record['time']:HH:mm:ss.SSS} {record['level'].name: <7} {record['message']}\n"
    sys.stderr.write(line + "".join(f"{part}\n" for part in _fault(record)))


def _write_json(message: Message) -> None:
    record = message.record
    fields = {
        "time": record["time"].astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record["level"].name.lower(),
        "message": record["message"],
        "source": record["extra"].get("source", record["name"]),
    }
    if fault := _fault(record):
        fields["fault"] = "\n".join(fault)
    sys.stderr.write(json.dumps(fields) + "\n")


def _fault(record: Record) -> list[str]:
    """The traceback of a record's exception, then its type and message; nothing without an exception."""
    caught = record["exception"]
    if caught is None or caught.type is None:
        return []
    shown = f"{caught.type.__name__}: {caught.value}" if isinstance(caught.value, _ABOUT_MACHINE) else None
    return ["".join(traceback.format_tb(caught.traceback)).rstrip(), shown or caught.type.__name__]


class _ToLoguru(logging.Handler):
    """Hands the standard library's records to loguru."""

    def emit(self, record: logging.LogRecord) -> None:
        bound = logger.bind(source=record.name).opt(exception=record.exc_info)
        bound.log(record.levelname, "{}: {}", record.name, record.getMessage())
