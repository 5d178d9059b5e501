"""How late an event loop is: a client that cannot keep up measures itself."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agent_tts.bench.statistics import percentiles

INTERVAL_S = 0.01
KEPT = 100_000  # a quarter of an hour


class Lag:
    """Lateness of a timer in this event loop."""

    def __init__(self) -> None:
        # In ms, the last ones.
        self._late_ms: deque[float] = deque(maxlen=KEPT)

    def clear(self) -> None:
        """Forget what was: the measurement begins."""
        self._late_ms.clear()

    def figures(self) -> dict[str, float | None]:
        """Percentiles in ms: `p50`, `p99`, and `p100`, which is the worst."""
        return percentiles(list(self._late_ms), 50, 99, 100)

    async def watch(self) -> None:
        """Ask again and again, until it is cancelled."""
        while True:
            due = time.monotonic() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self._late_ms.append(max(0.0, (time.monotonic() - due) * 1_000))


@asynccontextmanager
async def lag_watched() -> AsyncIterator[Lag]:
    """The lag of this event loop while the block runs."""
    lag = Lag()
    task = asyncio.create_task(lag.watch(), name="lag")
    try:
        yield lag
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def worst(figures: list[dict[str, float | None]]) -> dict[str, float | None]:
    """Of several processes, each percentile of the one where it is largest."""
    names = figures[0] if figures else {}
    return {name: max((found for one in figures if (found := one[name]) is not None), default=None) for name in names}
