"""Requests per second, or at once, as a voice agent makes them: text word by word, audio timed as it comes."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agent_tts.bench.connection import RawConnection, dial
from agent_tts.bench.statistics import Player, percentiles
from agent_tts.errors import SpeechError
from agent_tts.events import SAMPLE_RATE

BYTES_PER_S = 2 * SAMPLE_RATE
REQUEST_S = 60.0  # a request that takes longer has failed

# What agents say. Between two and seven seconds each.
TEXTS = (
    "Sure, I can help you with that.",
    "Your order left our warehouse this morning and should be with you by Thursday.",
    "One moment please, I am looking that up for you right now.",
    "The next train to the airport leaves in twelve minutes from platform four.",
    "I have moved your appointment to Friday at half past nine. Does that work for you?",
    "It will be mostly sunny today, with a light breeze in the afternoon.",
    "Could you spell your last name for me, please?",
    "Thank you for waiting. I found two rooms that are still free for the weekend, and both have a view of the lake.",
)


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of the node. One of `rate` and `concurrency` is given."""

    rate: float | None = None  # requests per second, at random times (open loop)
    concurrency: int | None = None  # requests at once, each followed by the next (closed loop)
    warmup_s: float = 10.0  # not measured
    duration_s: float = 60.0  # measured
    words_every_ms: float = 10.0  # 0 sends the whole text at once
    session: dict[str, Any] = field(default_factory=dict)  # voice, lead_ms and the like
    seed: int = 1

    @property
    def name(self) -> str:
        return f"{self.rate:g}/s" if self.rate is not None else f"{self.concurrency} at once"


@dataclass(slots=True, eq=False)
class Request:
    """One request, and what its listener saw. It listens to its context."""

    text: str
    begin: float  # when it was to begin
    sent_at: float = 0.0  # when its first text was sent
    first_audio_at: float | None = None
    audio_s: float = 0.0
    error: str | None = None  # a code of the protocol
    player: Player = field(default_factory=Player)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def heard(self, now: float, size: int) -> None:
        if self.first_audio_at is None:
            self.first_audio_at = now
        self.audio_s += size / BYTES_PER_S
        self.player.take(now, size / BYTES_PER_S)

    def told(self, now: float, message: dict[str, Any]) -> None:
        if message["type"] == "error":
            self.error = message["code"]
        if message["type"] in ("error", "context.done"):
            self.over.set()


class Client:
    """Makes requests on connections that are kept open, as agents keep theirs."""

    def __init__(self, url: str, key: str | None, load: Load) -> None:
        self._url = url
        self._key = key
        self._load = load
        # Connections that no request uses.
        self._idle: list[RawConnection] = []
        # All of them.
        self._all: list[RawConnection] = []
        self._ids = itertools.count(1)
        # Requests that have ended, or were given up.
        self.requests: list[Request] = []
        # Requests now, and the most that there were since `mark`.
        self._in_flight = 0
        self.peak = 0

    def mark(self) -> None:
        """The measurement begins."""
        self.peak = self._in_flight

    async def speak(self, text: str, begin: float) -> None:
        """One request, from its first word to the end of its audio. Its errors are counted, not raised."""
        request = Request(text, begin)
        self.requests.append(request)
        self._in_flight += 1
        self.peak = max(self.peak, self._in_flight)
        try:
            async with asyncio.timeout(REQUEST_S), self._connection() as connection:
                await self._make(request, connection)
        except SpeechError as error:
            request.error = error.code
        except TimeoutError:
            request.error = "timeout"
        finally:
            self._in_flight -= 1

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(connection.close() for connection in self._all))

    async def _make(self, request: Request, connection: RawConnection) -> None:
        context_id = f"r{next(self._ids)}"
        connection.listen(context_id, request)
        every_s = self._load.words_every_ms / 1_000
        pieces = _words(request.text) if every_s else [request.text]
        request.sent_at = time.monotonic()
        for number, piece in enumerate(pieces):
            if number:
                await asyncio.sleep(request.sent_at + number * every_s - time.monotonic())
            connection.send("text.append", context_id=context_id, text=piece)
        connection.send("context.end", context_id=context_id)
        await request.over.wait()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[RawConnection]:
        while self._idle and (connection := self._idle.pop()):
            if not connection.closed.done():
                break
        else:
            connection, _ = await dial(self._url, self._key)
            self._all.append(connection)
            connection.send("session.update", session={"timestamps": "none", **self._load.session})
        yield connection  # one that failed is not used again: its context may still speak
        self._idle.append(connection)


def _words(text: str) -> list[str]:
    return [f"{word} " for word in text.split()]


async def measure(url: str, key: str | None, load: Load) -> tuple[dict[str, Any], list[float]]:
    """Put the load on the node; its figures, and every time to first audio in ms. Cancelling it ends all requests."""
    client = Client(url, key, load)
    start = time.monotonic()
    measured = (start + load.warmup_s, start + load.warmup_s + load.duration_s)
    marker = asyncio.get_running_loop().call_later(load.warmup_s, client.mark)
    try:
        if load.rate is not None:
            await _open_loop(client, load, start, measured[1])
        else:
            await _closed_loop(client, load, measured[1])
    finally:
        marker.cancel()
        await client.close()
    return _figures(client, load, measured)


async def _open_loop(client: Client, load: Load, start: float, end: float) -> None:
    """Requests begin when their time has come, whatever became of those before them."""
    async with asyncio.TaskGroup() as tasks:
        for text, at in zip(_texts(load.seed), _arrivals(load, start), strict=False):
            if at >= end:
                break
            await asyncio.sleep(at - time.monotonic())
            tasks.create_task(client.speak(text, at))


async def _closed_loop(client: Client, load: Load, end: float) -> None:
    async def worker(number: int) -> None:
        for text in _texts(load.seed + number):
            if time.monotonic() >= end:
                return
            await client.speak(text, time.monotonic())
            if client.requests[-1].error is not None:
                await asyncio.sleep(0.1)  # not a storm of refused requests

    async with asyncio.TaskGroup() as tasks:
        for number in range(load.concurrency or 0):
            tasks.create_task(worker(number))


def _texts(seed: int) -> Iterator[str]:
    draw = random.Random(seed)
    while True:
        yield draw.choice(TEXTS)


def _arrivals(load: Load, start: float) -> Iterator[float]:
    """Times of a Poisson process."""
    draw = random.Random(load.seed)
    at = start
    while load.rate is not None:
        at += draw.expovariate(load.rate)
        yield at


def _figures(client: Client, load: Load, measured: tuple[float, float]) -> tuple[dict[str, Any], list[float]]:
    requests = [request for request in client.requests if measured[0] <= request.begin < measured[1]]
    good = [r for r in requests if r.error is None and r.first_audio_at is not None]
    ttfa_ms = [(r.first_audio_at - r.sent_at) * 1_000 for r in good if r.first_audio_at is not None]
    figures = {
        "load": load.name,
        "requests": len(requests),
        "errors": dict(Counter(r.error for r in requests if r.error is not None)),
        "silent": sum(r.error is None and r.first_audio_at is None for r in requests),
        "ttfa_ms": percentiles(ttfa_ms, 50, 95, 99),
        "underruns": sum(r.player.gaps > 0 for r in good),
        "underrun_s": round(sum(r.player.gaps_s for r in good), 3),
        "audio_s_per_s": round(sum(r.audio_s for r in good) / load.duration_s, 2),
        "peak_in_flight": client.peak,
        # How late requests were sent: a client that cannot keep up measures itself.
        "client_lag_ms": percentiles([(r.sent_at - r.begin) * 1_000 for r in requests if r.sent_at], 50, 99),
    }
    return figures, ttfa_ms
