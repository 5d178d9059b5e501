"""A process of strangers; see `agent_tts.bench.workers`."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from agent_tts.bench.connection import RawConnection, dial
from agent_tts.bench.workers import ready, work
from agent_tts.errors import SpeechError

LOOK_S = 0.005
LAST_S = 20.0  # for the last requests to end
BYTES_PER_S = 48_000


class Stranger:
    """One request on a connection of its own. Times are of the monotonic clock."""

    def __init__(self, context_id: str) -> None:
        self.seen: dict[str, Any] = {"id": context_id, "audio_s": 0.0, "gap_s": 0.0, "frames": 0}
        self.ended = asyncio.Event()
        # When a listener who plays at once will have played all.
        self._until = 0.0

    def heard(self, now: float, pcm: bytes | memoryview) -> None:
        if not pcm:
            return
        if "audio" in self.seen:
            self.seen["gap_s"] = max(self.seen["gap_s"], now - self._until)
        else:
            self.seen["audio"] = self._until = now
        self._until = max(self._until, now) + len(pcm) / BYTES_PER_S
        self.seen["audio_s"] += len(pcm) / BYTES_PER_S
        self.seen["frames"] += 1

    def told(self, now: float, message: dict[str, Any]) -> None:
        match message["type"]:
            case "context.started":
                self.seen["started"] = now
                self.seen["queue_ms"] = message["queue_ms"]
            case "context.done":
                self.seen["ttfa_ms"] = message["ttfa_ms"]
                self.seen["reason"] = message["reason"]
                self.ended.set()
            case "error":
                self.seen["error"] = message.get("code")
                self.ended.set()

    async def visit(self, url: str, words: list[str], pace_s: float, options: dict[str, Any]) -> None:
        """Connect, say the words, and stay to the end of the speech."""
        connection: RawConnection | None = None
        self.seen["dial"] = time.monotonic()
        try:
            connection, _ = await dial(url)
            self.seen["greeted"] = time.monotonic()
            context_id, self.seen["seed"] = self.seen["id"], options["seed"]
            connection.listen(context_id, self)
            connection.send("context.open", context_id=context_id, **options)
            at = time.monotonic()
            for number, word in enumerate(words):
                at += pace_s
                await asyncio.sleep(at - time.monotonic())
                if not number:
                    self.seen["text"] = time.monotonic()
                    self.seen["text_late"] = self.seen["text"] - at
                connection.send("text.append", context_id=context_id, text=word)
            connection.send("context.end", context_id=context_id)
            await self.ended.wait()
        except (SpeechError, TimeoutError, OSError) as error:
            self.seen["error"] = type(error).__name__
        finally:
            if connection is not None:
                await connection.close()


async def main(job: dict[str, Any]) -> Any:
    """`job`: url, rate (visits a second), seconds, seed, pace_s, texts, options."""
    draw = random.Random(job["seed"])
    word = await ready()
    at, end = word["start"] + draw.expovariate(job["rate"]), word["start"] + job["seconds"]
    visits: list[tuple[Stranger, asyncio.Task[None]]] = []
    lags: list[tuple[float, float]] = []

    async def look() -> None:
        while True:
            due = time.monotonic() + LOOK_S
            await asyncio.sleep(LOOK_S)
            lags.append((due, time.monotonic() - due))

    watching = asyncio.create_task(look())
    while at < end:
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        stranger = Stranger(f"{job['seed']}-{len(visits)}")
        words = [f"{one} " for one in draw.choice(job["texts"]).split()]
        options = {**job["options"], "seed": draw.randrange(1 << 30)}
        visit = stranger.visit(job["url"], words, job["pace_s"], options)
        visits.append((stranger, asyncio.create_task(visit)))
        at += draw.expovariate(job["rate"])
    leaving = asyncio.get_running_loop().time() + LAST_S
    for _, task in visits:
        await asyncio.wait([task], timeout=max(0.0, leaving - asyncio.get_running_loop().time()))
    left = [watching, *(task for _, task in visits if not task.done())]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    return {"visits": [stranger.seen for stranger, _ in visits], "lags": lags}


if __name__ == "__main__":
    import uvloop

    work(main, uvloop.new_event_loop)
