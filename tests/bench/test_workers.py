"""Worker processes that measure, started for real."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent_tts.bench.workers import Worker, answers, workers
from agent_tts.errors import SpeechError
from tests.cli.process import is_running

pytestmark = pytest.mark.node

ECHO = "tests.bench.echo_worker"
READY_S = 30.0


async def test_each_worker_answers_its_own_job_whatever_libraries_print() -> None:
    jobs = [{"do": "one"}, {"do": "two"}]
    async with workers(ECHO, jobs, ready_s=READY_S) as found:
        pids = [worker.pid for worker in found]
        assert await answers(found, {"start": 1.5}, READY_S) == [["one", {"start": 1.5}], ["two", {"start": 1.5}]]
    assert not any(map(is_running, pids))


@pytest.mark.parametrize(("do", "said"), [("refuse", "no slot is free"), ("die", "has died")])
async def test_a_failing_worker_is_an_error_and_ends_the_others(do: str, said: str) -> None:
    with pytest.raises(SpeechError, match=said):
        async with workers(ECHO, [{"do": "one"}, {"do": do}], ready_s=READY_S):
            pass


async def test_a_worker_that_is_not_ready_in_time_is_ended() -> None:
    with pytest.raises(TimeoutError):
        async with workers(ECHO, [{"do": "sleep"}], ready_s=0.5):
            pass


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
async def test_cancelling_ends_all_processes() -> None:
    started: asyncio.Future[list[Worker]] = asyncio.get_running_loop().create_future()

    async def hold() -> None:
        async with workers(ECHO, [{"do": "one"}, {"do": "two"}], ready_s=READY_S) as found:
            started.set_result(found)
            await asyncio.sleep(60)

    task = asyncio.create_task(hold())
    pids = [worker.pid for worker in await started]
    assert all(map(is_running, pids))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not any(map(is_running, pids))
