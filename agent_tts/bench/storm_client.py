"""A process of strangers: `python -m agent_tts.bench.storm_client`, see `workers` and `storm`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

import httpx

from agent_tts.bench.storm import PROBES_PER_S, Aftermath, Storm
from agent_tts.bench.workers import Turn, work

PROBE_S = 5.0


class Stranger(asyncio.Protocol):
    """A connection that never sends a byte."""

    def __init__(self) -> None:
        self.transport: asyncio.BaseTransport | None = None
        self.came_at = time.monotonic()
        # When the node sent it away; None while it has not.
        self.left_at: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.came_at = time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        self.left_at = time.monotonic()


async def _come(url: str, storm: Storm, start: float) -> list[Stranger]:
    parts, loop, strangers = urlsplit(url), asyncio.get_running_loop(), []
    host, port = parts.hostname or "", parts.port or 80
    for number in range(storm.strangers):
        await asyncio.sleep(start + storm.over_s * number / storm.strangers - time.monotonic())
        with contextlib.suppress(OSError):
            _, stranger = await loop.create_connection(Stranger, host, port)
            strangers.append(stranger)
    return strangers


async def _probe(url: str, end: float) -> tuple[int, list[float]]:
    """Ask for its health again and again, each time on a new connection: failures, and ms."""
    unhealthy, times_ms = 0, []
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=PROBE_S, limits=limits) as client:
        while (before := time.monotonic()) < end:
            try:
                unhealthy += (await client.get("/health")).status_code != 200
            except httpx.HTTPError:
                unhealthy += 1
            times_ms.append(round((time.monotonic() - before) * 1_000, 2))
            await asyncio.sleep(before + 1 / PROBES_PER_S - time.monotonic())
    return unhealthy, times_ms


async def main(job: dict[str, Any], turn: Turn) -> None:
    """See `work`."""
    storm, url = Storm(**job["storm"]), job["url"]
    start = (await turn.ready())["start"]
    end = start + storm.watched_s
    await asyncio.sleep(start - time.monotonic())
    strangers, (unhealthy, probe_ms) = await asyncio.gather(_come(url, storm, start), _probe(url, end))
    stayed_s = [round(one.left_at - one.came_at, 3) for one in strangers if one.left_at is not None]
    left = len(strangers) - len(stayed_s)
    turn.answer(asdict(Aftermath(len(strangers), left, stayed_s, unhealthy, probe_ms)))
    for one in strangers:
        if one.transport is not None:
            one.transport.close()


if __name__ == "__main__":
    work(main)
