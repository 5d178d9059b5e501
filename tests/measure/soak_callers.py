"""A process of callers of `tests.measure.soak`, each of whom ends its speech in another way, again and again."""

from __future__ import annotations

import asyncio
import math
import random
import time
from typing import Any

import httpx

from agent_tts.bench.connection import RawConnection, dial
from agent_tts.bench.scenario import SHORT_TEXTS, TEXTS, CallListener, CallSample
from agent_tts.bench.statistics import lag_watched, percentiles
from agent_tts.bench.workers import ready, work
from agent_tts.serve.processes.process import event_loop_factory

WAYS = ("finishes", "cancels", "flushes", "vanishes", "holds three", "leaves HTTP")
WORD_S = 0.01
BEGIN_S = 5.0  # in which callers begin
TIMEOUT_S = 60.0
PATIENCE_S = (0.1, 1.5)  # of speech before a caller leaves it
PCM_PIECE = 1 << 16


class Caller:
    def __init__(self, urls: dict[str, str], number: int, http: httpx.AsyncClient) -> None:
        self._urls, self._http, self._draw = urls, http, random.Random(number)
        self.samples: list[tuple[str, CallSample]] = []

    async def run(self, end: float) -> None:
        """Begin at a random time, and speak in each way in turn, until a time of the monotonic clock."""
        await asyncio.sleep(self._draw.uniform(0, BEGIN_S))
        while time.monotonic() < end:
            way = self._draw.choice(WAYS)
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await (self._leave_http() if way == "leaves HTTP" else self._speak(way))
            except (TimeoutError, OSError, httpx.HTTPError) as error:
                self._sample(way).error = type(error).__name__

    def _sample(self, way: str) -> CallSample:
        sample = CallSample("http" if way == "leaves HTTP" else "websocket", "heard_out", 0, time.monotonic())
        self.samples.append((way, sample))
        return sample

    async def _speak(self, way: str) -> None:
        connection = await dial(self._urls["ws"])
        try:
            contexts = 3 if way == "holds three" else 1
            await asyncio.gather(*(self._utter(connection, f"c{number}", way) for number in range(contexts)))
            if way != "vanishes":
                await connection.hang_up()
        finally:
            await connection.close(reset=self._draw.random() < 0.5)

    async def _utter(self, connection: RawConnection, context_id: str, way: str) -> None:
        sample, text = self._sample(way), self._draw.choice(TEXTS)
        listener = CallListener(sample, 0.0, (0.0, math.inf))
        connection.listen(context_id, listener)
        connection.send("context.open", context_id=context_id, seed=self._draw.getrandbits(31), timestamps="none")
        for number, word in enumerate(text.split()):
            await asyncio.sleep(WORD_S)
            sample.sent_at = sample.sent_at or time.monotonic()
            connection.send("text.append", context_id=context_id, text=f"{word} ")
            if way == "flushes" and number == 2:
                connection.send("context.flush", context_id=context_id)
        if way in ("cancels", "vanishes"):
            await listener.begun.wait()
            await asyncio.sleep(self._draw.uniform(*PATIENCE_S))
            if way == "cancels" and not listener.over.is_set():
                connection.send("context.cancel", context_id=context_id)
        else:
            connection.send("context.end", context_id=context_id)
        if way != "vanishes":
            await listener.over.wait()
        listener.leave()

    async def _leave_http(self) -> None:
        sample = self._sample("leaves HTTP")
        sample.sent_at, enough = time.monotonic(), self._draw.uniform(*PATIENCE_S) * 48_000
        body = {"model": "tts-1", "input": self._draw.choice(SHORT_TEXTS), "response_format": "pcm"}
        async with self._http.stream("POST", "/v1/audio/speech", json=body) as answer:
            if answer.status_code != 200:
                sample.error = f"http_{answer.status_code}"
            async for piece in answer.aiter_raw(PCM_PIECE):
                sample.first_audio_at = sample.first_audio_at or time.monotonic()
                enough -= len(piece)
                if enough < 0:
                    return


async def main(job: dict[str, Any]) -> dict[str, Any]:
    """See `work`."""
    urls, seconds = job["urls"], job["seconds"]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=urls["http"], timeout=TIMEOUT_S, limits=limits) as http:
        callers = [Caller(urls, number, http) for number in job["numbers"]]
        await ready()
        end = time.monotonic() + seconds
        async with lag_watched() as lag_ms, asyncio.TaskGroup() as tasks:
            for caller in callers:
                tasks.create_task(caller.run(end))
    samples = [one for caller in callers for one in caller.samples]
    paced = [sample for _, sample in samples if sample.transport == "websocket"]
    return {
        "ways": {way: sum(one == way for one, _ in samples) for way in WAYS},
        "first_audio_ms": [sample.ttfa_ms for sample in paced if sample.ttfa_ms is not None],
        "with_gaps": sum(bool(sample.gaps) for sample in paced),
        "errors": [f"{way}: {sample.error}" for way, sample in samples if sample.error],
        "lag_ms": percentiles(lag_ms, 99, 100),
    }


if __name__ == "__main__":
    work(main, event_loop_factory())
