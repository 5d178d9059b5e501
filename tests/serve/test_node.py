"""The state that all routes share."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agent_tts.serve.node import Aside
from tests.support import until


@pytest.mark.real_time
async def test_a_place_is_free_when_its_work_has_ended_whoever_waits_for_it() -> None:
    """A client that leaves while its message is parsed would have several parsed at the same time."""
    aside, go_on = Aside(1), threading.Event()
    running: list[int] = []

    def work(number: int) -> None:
        running.append(number)
        go_on.wait(10)
        if number == 0:
            raise ValueError
        running.remove(number)

    first = asyncio.create_task(aside(work, 0))
    await until(lambda: running == [0])
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    others = [asyncio.create_task(aside(work, number)) for number in (1, 2)]
    await asyncio.sleep(0.05)
    assert running == [0]
    go_on.set()
    await asyncio.gather(*others)
    assert running == [0]


async def test_work_with_a_lock_waits_for_it() -> None:
    lock = threading.Lock()
    with lock:
        working = asyncio.create_task(Aside(1, lock)(lambda: lock.locked()))
        await asyncio.wait([working], timeout=0.1)
        assert not working.done()
    assert await working
    assert not lock.locked()
