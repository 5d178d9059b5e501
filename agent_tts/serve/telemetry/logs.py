"""The log of a node: lines on stderr, for people or for machines, that hold neither text nor audio.

What a library or a fault of ours says may quote what is being spoken, so of an exception only its type and the places
that it came by are shown, and its message where it speaks of the machine alone.
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

# Errors whose messages are about this machine, or are made without a client's words.
_OF_THE_MACHINE = (OSError, ImportError, MemoryError, SettingsError, SpeechError)


def log_to_stderr(level: str, form: Literal["text", "json"] = "text") -> None:
    """Send all logs, of libraries too, to stderr in one format."""
    logger.remove()
    write = _write_text if form == "text" else _write_json
    # Pipecat's lines below errors hold what was said.
    logger.add(write, level=level.upper(), format="{message}", filter={"pipecat": "ERROR"}, diagnose=False)
    logging.basicConfig(handlers=[_ToLoguru()], level=logging.WARNING, force=True)


def report_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An event loop's exception handler. The loop's own would show the arguments of what failed."""
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
    """Where an exception came by, and what it was; nothing where there is none."""
    caught = record["exception"]
    if caught is None or caught.type is None:
        return []
    told = f"{caught.type.__name__}: {caught.value}" if isinstance(caught.value, _OF_THE_MACHINE) else None
    return ["".join(traceback.format_tb(caught.traceback)).rstrip(), told or caught.type.__name__]


class _ToLoguru(logging.Handler):
    """Hands the standard library's records to loguru."""

    def emit(self, record: logging.LogRecord) -> None:
        told = logger.bind(source=record.name).opt(exception=record.exc_info)
        told.log(record.levelname, "{}: {}", record.name, record.getMessage())
