"""Wyoming's events: a line of JSON, then data and payload of the lengths that it gives. Every size is limited."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from agent_tts.errors import BadMessage

MAX_LINE = 65_536  # bytes; also the limit of the stream's reader
MAX_DATA = 65_536
MAX_PAYLOAD = 65_536
REST_S = 5.0  # for the data and payload after a line


@dataclass(frozen=True, slots=True)
class WyomingEvent:
    """One message, either way."""

    type: str
    data: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""


async def read(reader: asyncio.StreamReader) -> WyomingEvent | None:
    """The next event; None at the end of the stream. Cancelling it may lose a part of an event.

    Raises:
        BadMessage: not an event, or too long.
        TimeoutError: an event is incomplete after `REST_S`.
    """
    try:
        line = await reader.readline()
        if not line:
            return None
        async with asyncio.timeout(REST_S):
            return await _rest(json.loads(line), reader)
    except asyncio.IncompleteReadError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadMessage("an event is a line of JSON with a type, its data and its payload") from None


async def _rest(head: dict[str, Any], reader: asyncio.StreamReader) -> WyomingEvent:
    data: dict[str, Any] = dict(head.get("data") or {})
    if length := _length(head, "data_length", MAX_DATA):
        data |= json.loads(await reader.readexactly(length))
    payload = await reader.readexactly(_length(head, "payload_length", MAX_PAYLOAD))
    return WyomingEvent(str(head["type"]), data, payload)


def _length(head: dict[str, Any], name: str, limit: int) -> int:
    length = head.get(name) or 0
    if not isinstance(length, int) or not 0 <= length <= limit:
        raise ValueError(name)
    return length


def write(event: WyomingEvent) -> bytes:
    """An event as bytes."""
    head: dict[str, Any] = {"type": event.type}
    data = json.dumps(event.data).encode() if event.data else b""
    if data:
        head["data_length"] = len(data)
    if event.payload:
        head["payload_length"] = len(event.payload)
    return json.dumps(head).encode() + b"\n" + data + event.payload
