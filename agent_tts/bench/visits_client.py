"""A process of visitors over WebSockets and HTTP: `python -m agent_tts.bench.visits_client`, see `workers`.

Its job is a plan, where the node is, and which part of the visits is its own; the word to go says when; its answer is a
sample for each visit.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from typing import Any

import httpx

from agent_tts.bench.connection import OPEN_S, dial
from agent_tts.bench.lag import lag_watched
from agent_tts.bench.statistics import Player
from agent_tts.bench.streams_client import BYTES_PER_S, send_text
from agent_tts.bench.visits import TAIL_S, Carrier, Plan, Sample, Visit
from agent_tts.bench.workers import KEY, Turn, work
from agent_tts.errors import SpeechError
from agent_tts.events import FRAME_MS
from agent_tts.serve.run import event_loop_factory

SETTLE_S = 5.0  # for the node to say that it is over, and to answer a ping after it
CONTEXT = "v"
LAST = "last"  # what a visitor pings with when it leaves

Pay = Callable[[Visit, Sample, float], Coroutine[Any, Any, None]]
"""Pays one visit, and writes down what was seen; the last argument is when everybody leaves."""


async def pay_all(
    plan: Plan, carriers: Sequence[Carrier], part: int, parts: int, start: float, pay: Pay
) -> list[Sample]:
    """Pay every visit of ours at its time, whatever becomes of the others; what was seen.

    Args:
        carriers: of our visits; of those, one of `parts` is ours, from number `part` on.
        start: when the plan begins, on the monotonic clock.
    """
    visits = list(plan.visits())
    leave_at = start + (visits[-1].after_s if visits else 0.0) + TAIL_S
    ours = [visit for visit in visits if visit.carrier in carriers]
    samples = []

    async def one(visit: Visit, sample: Sample) -> None:
        try:
            async with asyncio.timeout_at(_on_loop(leave_at + SETTLE_S)):
                await pay(visit, sample, leave_at)
        except SpeechError as error:
            sample.error = sample.error or error.code
        except TimeoutError:
            sample.error = "timeout"
        finally:
            sample.ended_at = time.monotonic()

    async with asyncio.TaskGroup() as tasks:
        for visit in itertools.islice(ours, part, None, parts):
            begin = start + visit.after_s
            await asyncio.sleep(begin - time.monotonic())
            samples.append(Sample(visit.carrier, visit.leaving, begin))
            tasks.create_task(one(visit, samples[-1]))
    return samples


def _on_loop(at: float) -> float:
    """A time of the monotonic clock on the event loop's."""
    return asyncio.get_running_loop().time() + at - time.monotonic()


def patience_s(visit: Visit, leave_at: float) -> float:
    """How long a visitor waits for the end, from now on."""
    return min(visit.patience_s, max(0.0, leave_at - time.monotonic()))


class Ear:
    """Hears one visit's speech."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._player = Player(FRAME_MS / 1_000)
        # Set when speech has begun, or will not.
        self.begun = asyncio.Event()
        # Set when nothing follows.
        self.over = asyncio.Event()
        # Set by the answer to the last ping.
        self.answered = asyncio.Event()
        # Whether nobody listens any more.
        self.gone = False

    def heard(self, now: float, size: int) -> None:
        """Audio of that many bytes came."""
        if self._sample.first_audio_at is None:
            self._sample.first_audio_at = now
            self._sample.started = True
            self.begun.set()
        self._player.take(now, size / BYTES_PER_S)
        self._sample.gaps, self._sample.gaps_s = self._player.gaps, self._player.gaps_s

    def told(self, now: float, message: dict[str, Any]) -> None:
        """A message about the context came."""
        if self.gone:
            return
        if message["type"] == "error":
            self._sample.error = message["code"]
        if message["type"] in ("error", "context.done"):
            self.begun.set()
            self.over.set()

    def saw(self, message: dict[str, Any]) -> None:
        """Any message came."""
        match message["type"]:
            case "context.started":
                self._sample.started = True
            case "context.done":
                self._sample.ends += 1
            case "pong" if message["t"] == LAST:
                self.answered.set()


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait for it so long; whether it came."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def listen(visit: Visit, ear: Ear, send: Callable[..., None], leave_at: float) -> None:
    """Hear a visit's speech as long as it is to be heard, and then what the node has to say of its end.

    Args:
        send: sends a message of the protocol: its type, and its fields.
    """
    if visit.leaving in ("fin", "reset"):
        await wait_for(ear.over, visit.patience_s)
        return
    if visit.leaving == "barge_in":
        await ear.begun.wait()
    if not await wait_for(ear.over, patience_s(visit, leave_at)):
        send("context.cancel", context_id=CONTEXT)
        await ear.over.wait()
    # The node answers in order: whatever it had to say of the context came before.
    send("ping", t=LAST)
    await wait_for(ear.answered, SETTLE_S)


class Visitors:
    """Pay visits over WebSockets and HTTP."""

    def __init__(self, urls: dict[str, str], key: str | None, plan: Plan, client: httpx.AsyncClient) -> None:
        self._urls = urls
        self._key = key
        self._plan = plan
        self._client = client

    async def pay(self, visit: Visit, sample: Sample, leave_at: float) -> None:
        """See `Pay`."""
        if visit.carrier == "http":
            await self._over_http(visit, sample, leave_at)
        else:
            await self._over_websocket(visit, sample, leave_at)

    async def _over_websocket(self, visit: Visit, sample: Sample, leave_at: float) -> None:
        ear = Ear(sample)
        connection, _ = await dial(self._urls["ws"], self._key)
        try:
            connection.observer = ear.saw
            language = {} if visit.language is None else {"language": visit.language}
            await connection.update({"timestamps": "none", **self._plan.session, **language})
            connection.listen(CONTEXT, ear)
            sample.sent_at = time.monotonic()
            send_text(connection, CONTEXT, visit.text)
            await listen(visit, ear, connection.send, leave_at)
        finally:
            ear.gone = True  # that the connection is lost is no news
            await connection.close(reset=visit.leaving == "reset")

    async def _over_http(self, visit: Visit, sample: Sample, leave_at: float) -> None:
        ear = Ear(sample)
        body = {"input": visit.text, "voice": self._plan.session.get("voice"), "language": visit.language}
        sample.sent_at = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            hearing = tasks.create_task(self._hear(body, ear, sample), name="visit over HTTP")
            if visit.leaving == "barge_in":
                await ear.begun.wait()
            await asyncio.wait({hearing}, timeout=patience_s(visit, leave_at))
            hearing.cancel()

    async def _hear(self, body: dict[str, Any], ear: Ear, sample: Sample) -> None:
        try:
            wanted = {**body, "response_format": "pcm"}
            async with self._client.stream("POST", "/v1/audio/speech", json=wanted) as answer:
                if answer.status_code == 200:
                    async for piece in answer.aiter_raw():
                        ear.heard(time.monotonic(), len(piece))
                else:
                    await answer.aread()
                    sample.error = answer.json()["error"]["code"]
        except (httpx.HTTPError, ValueError):
            sample.error = "connection_lost"
        sample.ends += 1
        ear.begun.set()


async def main(job: dict[str, Any], turn: Turn) -> None:
    """See `work`."""
    plan, key, urls = Plan(**job["plan"]), os.environ.get(KEY), job["urls"]
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=urls["http"], headers=headers, timeout=OPEN_S, limits=limits) as client:
        visitors = Visitors(urls, key, plan, client)
        start = (await turn.ready())["start"]
        async with lag_watched() as lag:
            samples = await pay_all(plan, ("websocket", "http"), job["part"], job["parts"], start, visitors.pay)
        turn.answer({"samples": [asdict(sample) for sample in samples], "lag_ms": lag.figures()})


if __name__ == "__main__":
    work(main, event_loop_factory())
