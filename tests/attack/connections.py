"""Connections, file descriptors and log lines of strangers, who have no key."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx

from agent_tts.bench.node import MeasuredNode
from tests.attack.harness import ANSWER_S, BACK_S, Broken, Target, attack
from tests.hampered import hampered_node

GARBAGE = b"\x16\x03\x01\x02\x00 this is no HTTP\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
AT_ONCE = 50
FILES = 256


@asynccontextmanager
async def hampered(settings: Mapping[str, object]) -> AsyncIterator[MeasuredNode]:
    """A node whose log nobody reads, and which may open few files."""
    flags = [part for key, value in settings.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]
    async with hampered_node(*flags, files=FILES) as (url, process):
        yield MeasuredNode(url, process.pid, {"front": process.pid})


@asynccontextmanager
async def strangers(target: Target, count: int, sends: bytes = HEALTH) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """Connections that send this once and stay. Some that the node closes are opened no more."""
    opened: list[asyncio.StreamWriter] = []

    async def open_one() -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            opened.append(writer)
            writer.write(sends)
            if sends:
                async with asyncio.timeout(ANSWER_S):
                    await reader.read(1)

    try:
        for begin in range(0, count, AT_ONCE):
            await asyncio.gather(*(open_one() for _ in range(min(AT_ONCE, count - begin))))
        yield opened
    finally:
        for writer in opened:
            writer.close()


async def answered(target: Target) -> None:
    """Whether a newcomer gets /health and /ready, and one with a key gets all else. Raises Broken."""
    for path in ("/health", "/ready", "/v1/models"):
        async with httpx.AsyncClient(base_url=target.url, timeout=ANSWER_S, headers=target.headers) as client:
            answer = await client.get(path)
            if answer.status_code != 200:
                raise Broken(f"{path} answers {answer.status_code} {answer.text[:80]!r}")


@attack("1 300 connections that are kept")
async def kept(target: Target) -> str:
    """Each stranger asks for /health and stays; uvicorn's limit would answer everybody else with 503."""
    rounds = int(target.scaled(5, 1))
    for _ in range(rounds):
        async with strangers(target, 1_300):
            await answered(target)
    return f"{rounds} times"


@attack("1 300 connections that are silent")
async def silent(target: Target) -> str:
    rounds = int(target.scaled(3, 1))
    for _ in range(rounds):
        async with strangers(target, 1_300, b""):
            await answered(target)
    return f"{rounds} times"


@attack("1 300 WebSockets without a key")
async def sockets(target: Target) -> str:
    upgrade = (
        b"GET /v1/tts/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    async with strangers(target, 1_300, upgrade):
        await answered(target)
    return "their closing handshakes never end"


@attack("garbage beside an unread log", node=hampered)
async def garbage(target: Target) -> str:
    """Each gets a line into the log, and once the pipe is full no write to it ends. Only lines are lost."""
    sent = 0
    for _ in range(int(target.scaled(40, 8))):
        async with strangers(target, AT_ONCE, GARBAGE):
            sent += AT_ONCE
    await answered(target)
    async with httpx.AsyncClient(base_url=target.url, headers=target.headers, timeout=ANSWER_S) as client:
        page = (await client.get("/metrics")).text
    lost = float(page.partition('agent_tts_log_lines_lost_total{reason="repeated"} ')[2].split()[0])
    if lost < sent / 2:
        raise Broken(f"{lost:g} lines were left out of the log")
    return f"{sent} invalid requests"


@attack("all descriptors taken, then the engine dies", node=hampered, expected=["engine_lost"])
async def descriptors(target: Target) -> str:
    rounds = int(target.scaled(3, 1))
    for _ in range(rounds):
        async with strangers(target, 2 * FILES):
            (engine,) = target.engine_pids
            os.kill(engine, signal.SIGKILL)
            async with asyncio.timeout(BACK_S), httpx.AsyncClient(base_url=target.url) as client:
                while target.engine_pids in ([], [engine]) or (await client.get("/ready")).status_code != 200:
                    await asyncio.sleep(0.05)
            await answered(target)
    return f"{rounds} engines killed"
