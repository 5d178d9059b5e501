"""Wyoming's events: a line of JSON, then data and payload of the lengths that it gives. Every size is limited."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from agent_tts.errors import BadMessage

MAX_LINE = 65_536  # bytes; also the limit of the stream's reader
MAX_PART = 65_536  # bytes of the data or the payload after a line
REST_S = 5.0  # for the data and payload after a line


@dataclass(frozen=True, slots=True)
class WyomingEvent:
    type: str
    data: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""
    size: int = field(default=0, compare=False)  # bytes, of one that was read


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
            head = json.loads(line)
            data = dict(head.get("data") or {})
            if length := _length(head, "data_length"):
                data |= json.loads(await reader.readexactly(length))
            payload = await reader.readexactly(_length(head, "payload_length"))
            return WyomingEvent(str(head["type"]), data, payload, len(line) + length + len(payload))
    except asyncio.IncompleteReadError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadMessage("an event is a line of JSON with a type, its data and its payload") from None


def _length(head: dict[str, Any], name: str) -> int:
    length = head.get(name) or 0
    if not isinstance(length, int) or not 0 <= length <= MAX_PART:
        raise ValueError(name)
    return length


def write(event: WyomingEvent) -> bytes:
    head: dict[str, Any] = {"type": event.type}
    data = json.dumps(event.data).encode() if event.data else b""
    if data:
        head["data_length"] = len(data)
    if event.payload:
        head["payload_length"] = len(event.payload)
    return json.dumps(head).encode() + b"\n" + data + event.payload
