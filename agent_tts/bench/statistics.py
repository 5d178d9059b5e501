"""Percentiles, the player that underruns are counted with, and the lag of an event loop."""

from __future__ import annotations

import asyncio
import math
import socketserver
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

Server = TypeVar("Server", bound=socketserver.BaseServer)


def percentile(values: Iterable[float | None], percent: float) -> float | None:
    """The smallest value that `percent` of those that are not None do not exceed (nearest rank); None of nothing."""
    known = sorted(value for value in values if value is not None)
    rank = max(1, math.ceil(len(known) * percent / 100))
    return known[rank - 1] if known else None


def percentiles(values: Iterable[float | None], *percents: float, digits: int = 2) -> dict[str, float | None]:
    """Percentiles by name, `p50`, `p99`, as `percentile` has them."""
    ordered = sorted(value for value in values if value is not None)
    found = {f"p{percent:g}": percentile(ordered, percent) for percent in percents}
    return {name: None if value is None else round(value, digits) for name, value in found.items()}


def most_at_once(spans: Sequence[tuple[float, float]], begin: float, end: float) -> int:
    """How many of some spans of time overlap at most, between two times."""
    changes = [(max(start, begin), 1) for start, stop in spans if start < end and stop > begin]
    changes += [(stop, -1) for start, stop in spans if start < end and begin < stop < end]
    most = now = 0
    for _, change in sorted(changes):  # at one time, what ends comes before what begins
        now += change
        most = max(most, now)
    return most


def mean_at_once(spans: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """How many of some spans of time overlap on average, between two times."""
    return sum(max(0.0, min(stop, end) - max(start, begin)) for start, stop in spans) / (end - begin)


@dataclass(slots=True)
class Player:
    """A player that starts some time after the first chunk: when chunks come in time, when it runs dry.

    All times are in seconds on one clock.
    """

    start_after_s: float = 0.0
    started_at: float | None = None  # when the first chunk came
    plays_until: float = 0.0  # when all that has come has been played
    least_margin_s: float = math.inf  # from a chunk, but the first, until its turn; negative is late
    gaps: list[tuple[float, float]] = field(default_factory=list)  # when it had run dry and went on, and for how long

    def take(self, now: float, seconds: float) -> float:
        """A chunk of that length came; returns for how long the player had run dry."""
        if self.started_at is None:
            self.started_at = now
            self.plays_until = now + self.start_after_s + seconds
            return 0.0
        margin = self.plays_until - now
        if margin < self.least_margin_s:
            self.least_margin_s = margin
        self.plays_until += seconds
        if margin >= 0:
            return 0.0
        self.gaps.append((now, -margin))
        self.plays_until -= margin
        return -margin


LAG_INTERVAL_S = 0.01
LAG_KEPT = 100_000  # a quarter of an hour


@asynccontextmanager
async def lag_watched() -> AsyncIterator[deque[float]]:
    """The lateness in ms of a timer in this event loop while the block runs, the last ones: a client that cannot keep
    up measures itself."""
    late_ms: deque[float] = deque(maxlen=LAG_KEPT)

    async def watch() -> None:
        while True:
            due = time.monotonic() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            late_ms.append(max(0.0, (time.monotonic() - due) * 1_000))

    async with background(watch(), "lag"):
        yield late_ms


@asynccontextmanager
async def background(main: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Run a coroutine while the block runs; cancelled with its end. Its errors are dropped."""
    task = asyncio.create_task(main, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextmanager
def serving(server: Server, name: str) -> Iterator[Server]:
    """Run a server in a thread of this name while the block runs."""
    with server:
        thread = threading.Thread(target=server.serve_forever, name=name)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


async def together(waiting: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """The result of each; the first that fails cancels the others."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one) for one in waiting]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return [task.result() for task in running]


def worst(figures: list[dict[str, float | None]]) -> dict[str, float | None]:
    """Of several processes, each percentile of the one where it is largest."""
    names = figures[0] if figures else {}
    return {name: max((found for one in figures if (found := one[name]) is not None), default=None) for name in names}
