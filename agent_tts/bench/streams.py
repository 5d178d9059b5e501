"""How many streams a node speaks in real time: N at once, each paced, each with a listener who plays it."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from agent_tts.bench.connection import RawConnection, dial
from agent_tts.bench.node import cpu_s
from agent_tts.bench.statistics import Player, percentiles
from agent_tts.events import SAMPLE_RATE

BYTES_PER_S = 2 * SAMPLE_RATE
WORD = "speech "
CHARS_PER_S = 25  # more than any engine speaks, so that no stream ends before the measurement
SPARE_S = 2.0
MESSAGE_CHARS = 3_500  # below the limit for one message, in whole words
DIALS = 32  # connections made at once


@dataclass(slots=True, eq=False)
class Stream:
    """One stream's listener."""

    player: Player = field(default_factory=Player)
    ended: str | None = None  # why it ended before it was to

    def heard(self, now: float, size: int) -> None:
        self.player.take(now, size / BYTES_PER_S)

    def told(self, now: float, message: dict[str, Any]) -> None:
        if message["type"] == "error":
            self.ended = message["code"]
        elif message["type"] == "context.done":
            self.ended = self.ended or message["reason"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How streams are held."""

    seconds: float = 30.0  # measured, once all have begun
    ramp_s: float = 2.0  # in which they begin, evenly
    per_connection: int = 16
    lead_ms: int = 1_000
    voice: str | None = None


async def hold(url: str, key: str | None, count: int, plan: Plan, pids: dict[str, int]) -> dict[str, Any]:
    """Hold `count` streams; their figures. Cancelling it ends them.

    Args:
        pids: processes whose share of the CPU is told, by name.
    """
    connections = await _dial_all(url, key, -(-count // plan.per_connection))
    try:
        return await _hold(connections, count, plan, {**pids, "client": os.getpid()})
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))


async def _dial_all(url: str, key: str | None, count: int) -> list[RawConnection]:
    gate = asyncio.Semaphore(DIALS)
    connections: list[RawConnection] = []

    async def one() -> None:
        async with gate:
            connections.append((await dial(url, key))[0])

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(count):
                tasks.create_task(one())
    except BaseExceptionGroup as group:
        await asyncio.gather(*(connection.close() for connection in connections))
        raise group.exceptions[0] from None
    return connections


async def _hold(connections: list[RawConnection], count: int, plan: Plan, pids: dict[str, int]) -> dict[str, Any]:
    session = {"timestamps": "none", "lead_ms": plan.lead_ms, "voice": plan.voice}
    for connection in connections:
        connection.send("session.update", session=session)
    spoken_s = plan.seconds + plan.ramp_s + plan.lead_ms / 1_000 + SPARE_S
    words = WORD * round(CHARS_PER_S * spoken_s / len(WORD))
    streams = [Stream() for _ in range(count)]
    start = time.monotonic()
    for number, stream in enumerate(streams):
        await asyncio.sleep(start + plan.ramp_s * number / count - time.monotonic())
        _begin(connections[number % len(connections)], f"s{number}", stream, words)
    before, begun = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic()
    await asyncio.sleep(plan.seconds)
    after, seconds = {name: cpu_s(pid) for name, pid in pids.items()}, time.monotonic() - begun
    figures = _figures(streams)
    figures["cpu_percent"] = {
        name: round(100 * (used - was) / seconds, 1)
        for name in pids
        if (used := after[name]) is not None and (was := before[name]) is not None
    }
    return figures


def _begin(connection: RawConnection, context_id: str, stream: Stream, text: str) -> None:
    connection.listen(context_id, stream)
    for start in range(0, len(text), MESSAGE_CHARS):
        connection.send("text.append", context_id=context_id, text=text[start : start + MESSAGE_CHARS])
    connection.send("context.end", context_id=context_id)


def _figures(streams: list[Stream]) -> dict[str, Any]:
    margins_ms = [margin * 1_000 for stream in streams for margin in stream.player.margins]
    return {
        "streams": len(streams),
        "silent": sum(stream.player.started_at is None for stream in streams),
        "ended": dict(Counter(stream.ended for stream in streams if stream.ended is not None)),
        "underruns": sum(stream.player.gaps > 0 for stream in streams),
        "gaps": sum(stream.player.gaps for stream in streams),
        "gaps_s": round(sum(stream.player.gaps_s for stream in streams), 3),
        # How long before its turn a chunk came: the 1st percentile is what a listener can count on.
        "margin_ms": percentiles(margins_ms, 50, 1, 0, digits=1),
    }


def is_clean(figures: dict[str, Any]) -> bool:
    """Whether every stream spoke without a gap."""
    return not (figures["underruns"] or figures["silent"] or figures["ended"])
