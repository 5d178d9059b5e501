"""A process of clients of `bench serve`: `python -m agent_tts.bench.serve_client`, see `workers`.

Its job is a load and which part of it is its own; the word to go says when; its answer is a sample for each request.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from agent_tts.bench.connection import RawConnection, dial
from agent_tts.bench.lag import lag_watched
from agent_tts.bench.serve import REQUEST_S, Load, Sample
from agent_tts.bench.statistics import Player
from agent_tts.bench.workers import KEY, Turn, work
from agent_tts.errors import SpeechError
from agent_tts.events import SAMPLE_RATE
from agent_tts.serve.run import event_loop_factory

BYTES_PER_S = 2 * SAMPLE_RATE
REFUSED_S = 0.1  # before a closed loop asks again: not a storm of refused requests


class Request:
    """Listens to one request's context.

    Args:
        begin: when it was to begin.
        window: audio that comes between these times is counted as measured.
    """

    def __init__(self, begin: float, window: tuple[float, float]) -> None:
        self._window = window
        self._player = Player()
        self.sample = Sample(begin)
        # Set when nothing follows.
        self.over = asyncio.Event()

    def heard(self, now: float, size: int) -> None:
        seconds = size / BYTES_PER_S
        if self.sample.first_audio_at is None:
            self.sample.first_audio_at = now
        self.sample.audio_s += seconds
        if self._window[0] <= now < self._window[1]:
            self.sample.measured_audio_s += seconds
        self._player.take(now, seconds)

    def told(self, now: float, message: dict[str, Any]) -> None:
        if message["type"] == "error":
            self.sample.error = message["code"]
        if message["type"] in ("error", "context.done"):
            self.over.set()

    def end(self) -> None:
        """It has ended, or was given up."""
        self.sample.ended_at = time.monotonic()
        self.sample.gaps, self.sample.gaps_s = self._player.gaps, self._player.gaps_s


class Client:
    """Makes requests on connections that are kept open, as agents keep theirs."""

    def __init__(self, url: str, key: str | None, load: Load, window: tuple[float, float]) -> None:
        self._url = url
        self._key = key
        self._load = load
        self._window = window
        # Connections that no request uses.
        self._idle: list[RawConnection] = []
        # All of them.
        self._all: list[RawConnection] = []
        self._ids = itertools.count(1)
        # Of all requests that have begun.
        self.samples: list[Sample] = []

    async def speak(self, text: str, begin: float) -> Sample:
        """One request, from its first word to the end of its audio. Its errors are counted, not raised."""
        request = Request(begin, self._window)
        self.samples.append(request.sample)
        try:
            async with asyncio.timeout(REQUEST_S), self._connection() as connection:
                await self._make(request, text, connection)
        except SpeechError as error:
            request.sample.error = error.code
        except TimeoutError:
            request.sample.error = "timeout"
        finally:
            request.end()
        return request.sample

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(connection.close() for connection in self._all))

    async def _make(self, request: Request, text: str, connection: RawConnection) -> None:
        context_id = f"r{next(self._ids)}"
        connection.listen(context_id, request)
        every_s = self._load.words_every_ms / 1_000
        pieces = [f"{word} " for word in text.split()] if every_s else [text]
        request.sample.sent_at = sent_at = time.monotonic()
        for number, piece in enumerate(pieces):
            if number:
                await asyncio.sleep(sent_at + number * every_s - time.monotonic())
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
            await connection.update({"timestamps": "none", **self._load.session})
        yield connection  # one that failed is not used again: its context may still speak
        self._idle.append(connection)


async def _open_loop(client: Client, load: Load, start: float, end: float, part: int, parts: int) -> None:
    """Requests begin when their time has come, whatever became of those before them."""
    async with asyncio.TaskGroup() as tasks:
        for at, text in itertools.islice(load.arrivals(start), part, None, parts):
            if at >= end:
                break
            await asyncio.sleep(at - time.monotonic())
            tasks.create_task(client.speak(text, at))


async def _closed_loop(client: Client, load: Load, start: float, end: float, part: int, parts: int) -> None:
    """Chains of requests, each of which begins when the one before it has ended."""
    count = load.concurrency or 0

    async def chain(number: int) -> None:
        await asyncio.sleep(start + load.ramp_s * number / count - time.monotonic())
        for text in load.sayings(number):
            if time.monotonic() >= end:
                return
            if (await client.speak(text, time.monotonic())).error is not None:
                await asyncio.sleep(REFUSED_S)

    async with asyncio.TaskGroup() as tasks:
        for number in range(part, count, parts):
            tasks.create_task(chain(number))


async def main(job: dict[str, Any], turn: Turn) -> None:
    """See `work`."""
    load, part, parts = Load(**job["plan"]), job["part"], job["parts"]
    start = (await turn.ready())["start"]
    measured = start + load.warmup_s
    end = measured + load.duration_s
    client = Client(job["url"], os.environ.get(KEY), load, (measured, end))
    loop = _open_loop if load.rate is not None else _closed_loop
    try:
        async with lag_watched() as lag:
            asyncio.get_running_loop().call_later(measured - time.monotonic(), lag.clear)
            await loop(client, load, start, end, part, parts)
        turn.answer({"samples": [asdict(sample) for sample in client.samples], "lag_ms": lag.figures()})
    finally:
        await client.close()


if __name__ == "__main__":
    work(main, event_loop_factory())
