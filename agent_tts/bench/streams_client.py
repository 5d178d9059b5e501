"""A process of listeners of `bench streams`: `python -m agent_tts.bench.streams_client`, see `workers`.

Its job is a plan, the number of all streams, and which part of them is its own; it is ready once it is connected; the
word to go says when; its answer is a sample for each stream.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import asdict
from typing import Any

from agent_tts.bench.connection import RawConnection, dial
from agent_tts.bench.lag import lag_watched
from agent_tts.bench.statistics import Player
from agent_tts.bench.streams import Plan, Sample
from agent_tts.bench.workers import KEY, Turn, work
from agent_tts.events import SAMPLE_RATE
from agent_tts.serve.run import event_loop_factory

BYTES_PER_S = 2 * SAMPLE_RATE
MESSAGE_CHARS = 3_500  # below the limit for one message, in whole words
DIALS = 32  # connections made at once


class Stream:
    """One stream's listener."""

    def __init__(self) -> None:
        self._player = Player()
        # Why it ended before it was to.
        self.ended: str | None = None

    def heard(self, now: float, size: int) -> None:
        self._player.take(now, size / BYTES_PER_S)

    def told(self, now: float, message: dict[str, Any]) -> None:
        if message["type"] == "error":
            self.ended = message["code"]
        elif message["type"] == "context.done":
            self.ended = self.ended or message["reason"]

    def sample(self) -> Sample:
        """What it has heard by now."""
        player = self._player
        margins_ms = [round(margin * 1_000, 3) for margin in player.margins]
        return Sample(player.started_at is not None, self.ended, player.gap_times, player.gaps_s, margins_ms)


async def dial_all(url: str, key: str | None, count: int, session: dict[str, Any]) -> list[RawConnection]:
    """So many connections, whose contexts are to be like `session`.

    Raises:
        SpeechError: one of them cannot be had; none is left.
    """
    gate = asyncio.Semaphore(DIALS)
    connections: list[RawConnection] = []

    async def one() -> None:
        async with gate:
            connection, _ = await dial(url, key)
            connections.append(connection)
            await connection.update({"timestamps": "none", **session})

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(count):
                tasks.create_task(one())
    except BaseException as error:
        await asyncio.gather(*(connection.close() for connection in connections))
        if isinstance(error, BaseExceptionGroup):
            raise error.exceptions[0] from None
        raise
    return connections


def send_text(connection: RawConnection, context_id: str, text: str) -> None:
    """The whole text of a context, in messages that a node takes, and its end."""
    for start in range(0, len(text), MESSAGE_CHARS):
        connection.send("text.append", context_id=context_id, text=text[start : start + MESSAGE_CHARS])
    connection.send("context.end", context_id=context_id)


async def main(job: dict[str, Any], turn: Turn) -> None:
    """See `work`."""
    plan, count = Plan(**job["plan"]), job["count"]
    streams = {number: Stream() for number in range(job["part"], count, job["parts"])}
    connections = await dial_all(job["url"], os.environ.get(KEY), -(-len(streams) // plan.per_connection), plan.session)
    try:
        start = (await turn.ready())["start"]
        async with lag_watched() as lag:
            for place, (number, stream) in enumerate(streams.items()):
                await asyncio.sleep(start + plan.ramp_s * number / count - time.monotonic())
                connection = connections[place % len(connections)]
                connection.listen(f"s{number}", stream)
                send_text(connection, f"s{number}", plan.text)
            await asyncio.sleep(start + plan.ramp_s - time.monotonic())
            lag.clear()
            await asyncio.sleep(start + plan.ramp_s + plan.seconds - time.monotonic())
        turn.answer({"samples": [asdict(stream.sample()) for stream in streams.values()], "lag_ms": lag.figures()})
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))


if __name__ == "__main__":
    work(main, event_loop_factory())
