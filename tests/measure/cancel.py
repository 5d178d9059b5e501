"""Measure how fast a full node ends speech and frees its slot. `python -m tests.measure.cancel --help`.

All slots speak, and one more context waits for a slot. After a cancel, `context.cancelled` is the front's answer; the
start of the waiting context proves that the slot is free. Then another context waits, and the next one is cancelled.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer

from agent_tts.bench import report
from agent_tts.bench.connection import RawConnection, dial, send_text
from agent_tts.bench.statistics import lag_watched, percentiles, together
from agent_tts.cli.bench_options import NodeOptions, Outputs, PacedVoiceOptions
from agent_tts.cli.bench_runs import SPARE_CONNECTIONS, print_memory, progress, run, target
from agent_tts.cli.options import command
from agent_tts.errors import SpeechError
from agent_tts.serve.fronts import FEWEST_CONNECTIONS

START_S = 60.0  # for all slots to speak
ANSWER_S = 10.0  # for a cancel to have its effects
PAUSE_S = (0.02, 0.1)  # random time between two cancels, so that they hit any part of a step
TEXT = "speech " * 500
DIALS = 32  # connections that are opened concurrently
EVENTS = ("cancelled", "done", "started", "first_audio")
NAMES = {
    "cancelled": "context.cancelled",
    "done": "context.done",
    "started": "slot is the waiting one's",
    "first_audio": "its first audio",
}
TONE, VOICE, NO_FILES = NodeOptions(engine="tone"), PacedVoiceOptions(), Outputs()


@dataclass(frozen=True, slots=True)
class CancelPlan:
    """The streams and their cancels."""

    streams: int = 64  # slots of the node; all of them speak
    cancels: int = 200
    per_connection: int = 16
    session: dict[str, Any] = field(default_factory=dict)  # lead_ms, voice and other session fields


class CancelListener:
    """Listens to one context."""

    def __init__(self, connection: RawConnection, context_id: str) -> None:
        self.connection = connection
        self.id = context_id
        # First time of each of `EVENTS`, on the monotonic clock.
        self.at: dict[str, float] = {}
        # The node's error message; None without an error.
        self.error: str | None = None
        # Bytes of audio after `context.cancelled`; the protocol promises none.
        self.late_bytes = 0
        # Set on every arrival.
        self._news = asyncio.Event()

    def heard(self, now: float, pcm: bytes | memoryview) -> None:
        if "cancelled" in self.at:
            self.late_bytes += len(pcm)
        if "first_audio" not in self.at:
            self._saw("first_audio", now)

    def told(self, now: float, message: dict[str, Any]) -> None:
        if message["type"] == "error":
            self.error = message["code"]
            self._news.set()
        kind = message["type"].removeprefix("context.")
        if kind in EVENTS:
            self._saw(kind, now)

    def speak(self) -> None:
        """Open the context with more text than it needs."""
        self.connection.listen(self.id, self)
        send_text(self.connection.send, self.id, TEXT)

    async def seen(self, event: str) -> float:
        """Time of the event; waits for it.

        Raises:
            SpeechError: the context has failed or ended instead.
        """
        while event not in self.at:
            if self.error is not None or "done" in self.at:
                raise SpeechError(f"a stream ended before it was cancelled: {self.error or 'its text was spoken'}")
            self._news.clear()
            await self._news.wait()
        return self.at[event]

    def _saw(self, event: str, now: float) -> None:
        self.at.setdefault(event, now)
        self._news.set()


async def measure_cancels(url: str, key: str | None, plan: CancelPlan) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Fill the node and cancel one stream after the other; the figures, and all times after a cancel in ms, by event.

    Raises:
        SpeechError: the node refuses, or does not have as many slots as the plan.
        TimeoutError: an effect of a cancel did not occur.
    """
    # Every cancelled stream frees its slot for the waiting context on the same connection.
    connections = await _dial_all(url, key, -(-(plan.streams + 1) // plan.per_connection), plan.session)
    try:
        async with lag_watched() as lag_ms:
            ids = itertools.count()
            speaking = deque(_open(connections[n % len(connections)], ids) for n in range(plan.streams))
            async with asyncio.timeout(START_S):
                for ear in speaking:
                    await ear.seen("first_audio")
            waiting = _open(connections[plan.streams % len(connections)], ids)
            lag_ms.clear()
            draw = random.Random(1)
            times: dict[str, list[float]] = {event: [] for event in EVENTS}
            late_bytes = 0
            for _ in range(plan.cancels):
                await asyncio.sleep(draw.uniform(*PAUSE_S))
                ear = speaking.popleft()
                for event, ms in (await _cancel(ear, waiting, plan)).items():
                    times[event].append(ms)
                late_bytes += ear.late_bytes
                speaking.append(waiting)
                waiting = _open(ear.connection, ids)
        return _figures(plan, times, late_bytes, percentiles(lag_ms, 50, 99, 100)), times
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))


async def _dial_all(url: str, key: str | None, count: int, session: dict[str, Any]) -> list[RawConnection]:
    """Open `count` connections with this session. Cancelling closes them. Raises SpeechError."""
    gate = asyncio.Semaphore(DIALS)
    connections: list[RawConnection] = []

    async def one() -> None:
        async with gate:
            connection, _ = await dial(url, key)
            connections.append(connection)
            await connection.update({"timestamps": "none", **session})

    try:
        await together(one() for _ in range(count))
    except BaseException:
        await asyncio.gather(*(connection.close() for connection in connections))
        raise
    return connections


def _open(connection: RawConnection, ids: itertools.count[int]) -> CancelListener:
    ear = CancelListener(connection, f"c{next(ids)}")
    ear.speak()
    return ear


async def _cancel(ear: CancelListener, waiting: CancelListener, plan: CancelPlan) -> dict[str, float]:
    """Cancel a stream; the ms until it had ended, and until the waiting one had its slot."""
    if waiting.error is not None:
        raise SpeechError(f"the context that waits for a slot was refused ({waiting.error}): raise timeouts.queue_s")
    if waiting.at or ear.error is not None or "done" in ear.at:
        raise SpeechError(f"not all slots of the node speak: is {plan.streams} the number of them? (--streams)")
    sent_at = time.monotonic()
    ear.connection.send("context.cancel", context_id=ear.id)
    async with asyncio.timeout(ANSWER_S):
        at = {event: await ear.seen(event) for event in ("cancelled", "done")}
        at |= {event: await waiting.seen(event) for event in ("started", "first_audio")}
    return {event: (at[event] - sent_at) * 1_000 for event in EVENTS}


def _figures(
    plan: CancelPlan, times: dict[str, list[float]], late_bytes: int, lag_ms: dict[str, float | None]
) -> dict[str, Any]:
    shown: dict[str, Sequence[float]] = dict(times)
    return {
        "streams": plan.streams,
        "cancels": plan.cancels,
        **{f"{event}_ms": percentiles(ms, 50, 99, 100) for event, ms in shown.items()},
        "audio_after_cancelled_bytes": late_bytes,
        "client_lag_ms": lag_ms,
    }


# ---------------------------------------------------------------- the command


@command
def main(
    node: NodeOptions = TONE,
    streams: Annotated[int, typer.Option(min=1, max=10_000, help="Slots of the node; all of them speak.")] = 64,
    cancels: Annotated[int, typer.Option(min=1, max=100_000, help="How many are measured.")] = 200,
    per_connection: Annotated[int, typer.Option(min=1, help="Contexts on one connection.")] = 16,
    voice: PacedVoiceOptions = VOICE,
    outputs: Outputs = NO_FILES,
) -> None:
    """Time from a cancel until the node confirms it, and until a waiting context speaks in the slot.

    The slot's time includes the step that is running when the cancel comes, and the step in which the waiting context
    gets the slot.
    """
    plan = CancelPlan(streams, cancels, per_connection, voice.session)
    settings = {
        "slots": streams,
        "queue": streams,
        "timeouts__queue_s": START_S,
        "limits__connections": max(FEWEST_CONNECTIONS, streams + SPARE_CONNECTIONS),
        "limits__contexts_per_session": per_connection,
    }

    async def measure() -> tuple[dict[str, Any], dict[str, Any], dict[str, list[float]]]:
        async with target(node, plan.session, **settings) as (measured, info):
            with progress("cancelling"):
                asked = replace(plan, session=measured.session)
                return info, *await measure_cancels(measured.ws_url, measured.key, asked)

    info, figures, times = run(measure())
    rows = [(NAMES[event], *figures[f"{event}_ms"].values()) for event in EVENTS]
    title = f"{info['engine']}, {info['model']}: ms after a cancel, all {streams} slots speaking"
    report.table(title, ("until", "p50", "p99", "most"), rows)
    print(f"{figures['cancels']} cancels; client lag p99 {figures['client_lag_ms']['p99']} ms")
    print_memory(info)

    def draw(picture: report.Plot) -> None:
        runs: Sequence[tuple[str, Sequence[float]]] = [(NAMES[event], times[event]) for event in EVENTS]
        labels = ("ms after a cancel", "share of cancels")
        picture.times(f"{info['engine']} engine, {streams} streams", runs, labels)

    outputs.write("cancel", info, [figures], draw)


if __name__ == "__main__":
    typer.run(main)
