"""The engine process is killed, hangs, crashes or loses its parent: every request ends, and the engine is restarted."""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import sys

import pytest

from tests.fault.engines import BACK_S, TEXT, begin, hear, kill, several, whole
from tests.support import logged, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc, pidfd and the parent-death signal")

STREAMS = 16
KILLS = 2
GONE_S = 15.0  # far less than the minute of a step that hangs
HEARTBEAT_S = 4.0  # shorter, and a loaded machine's engine is taken for a hung one


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))


# ---------------------------------------------------------------- F10: killed


@pytest.mark.slow
async def test_kill_at_random_moments_under_load() -> None:
    """Each of many requests ends with `engine_lost`, and its audio is a prefix of the expected audio.

    Nothing leaks: file descriptors are as before, and the leak gate finds no process, task or thread. A new request is
    bit-equal. Mutation: without `on_lost` in `EngineChild._lose` every request waits until the test times out.
    """
    moments = random.Random(0)
    async with several(1) as (service, [link]):
        expected = await whole(service)
        before = fds()
        for _ in range(KILLS):
            await until(lambda: service.ready, BACK_S)
            heard = [asyncio.create_task(hear(begin(service, lead_ms=200))) for _ in range(STREAMS)]
            await asyncio.sleep(moments.uniform(0.0, 0.3))  # the random moment
            kill(link)
            for pcm, finished in await asyncio.gather(*heard):
                assert (finished.reason, finished.code) == ("error", "engine_lost")
                assert expected.startswith(pcm)
                assert len(pcm) < len(expected)
            assert service.speaking == 0
        await until(lambda: service.ready, BACK_S)
        assert await whole(service) == expected
        assert fds() == before
        assert not link.failed.is_set()


# ---------------------------------------------------------------- F11: hanging


async def test_a_hung_engine_is_dumped_killed_and_replaced() -> None:
    """The log shows the step that hung, though it holds the GIL; the next engine works.

    Mutation: without the heartbeat the request waits for a minute; without `faulthandler.register` the signal kills the
    process and the log does not name the place.
    """
    with logged() as lines:
        async with several(1, timeouts={"engine_heartbeat_s": HEARTBEAT_S}) as (service, [link]):
            expected = await whole(service)
            pid = link.pid
            pcm, finished = await hear(begin(service, instructions="fault:hang_gil@3", lead_ms=None))
            assert finished.code == "engine_lost"
            assert expected.startswith(pcm)
            await until(lambda: service.ready, BACK_S)
            assert link.pid != pid
            assert await whole(service) == expected
    [death] = [
        line for line in lines if f"engine process {pid} (signal 9) is lost: no answer for {HEARTBEAT_S:g} s" in line
    ]
    assert "tone.py" in death
    assert "in step" in death
    assert TEXT not in death


# ---------------------------------------------------------------- the engine exits


@pytest.mark.slow
async def test_an_engine_that_exits_is_replaced() -> None:
    """All its requests end with `engine_lost`, queued ones included, and a new one succeeds."""
    async with several(1, slots=3, queue=2) as (service, _):
        expected = await whole(service)
        for kind in ("crash", "oom_step"):
            speeches = [begin(service, lead_ms=80) for _ in range(2)]
            speeches += [begin(service, lead_ms=80, instructions=f"fault:{kind}@3") for _ in range(2)]
            for _, finished in await asyncio.gather(*map(hear, speeches)):
                assert finished.code == "engine_lost"
            await until(lambda: service.ready, BACK_S)
            assert await whole(service) == expected


# ---------------------------------------------------------------- F12: the parent is killed

PARENT = """
import asyncio
from agent_tts.messages import Append, Open, Audio
from agent_tts.options import EngineOptions
from agent_tts.ipc.engine_process import EngineProcess
from agent_tts.config.settings import Settings

async def main() -> None:
    speaks = asyncio.Event()
    def hear(new: list) -> None:
        if any(isinstance(event, Audio) for event in new):
            speaks.set()
    link = EngineProcess(Settings.model_validate({"engine": "tone", "tone": {"scripted_faults": True}}), hear, print)
    await link.start()
    link.send(Open(1, EngineOptions(instructions="fault:hang_gil@1")))
    link.send(Append(1, "enough text for some frames of audio "))
    await speaks.wait()
    print(link.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_the_engine_dies_with_its_parent() -> None:
    """The engine is gone soon after its parent is killed, though it holds the GIL.

    Mutation: without the parent-death signal the engine that holds the GIL sleeps on for a minute.
    """
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert parent.stdout is not None
    try:
        async with asyncio.timeout(BACK_S):
            engine = os.pidfd_open(int(await parent.stdout.readline()))
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        await parent.communicate()
    try:
        assert select.select([engine], [], [], GONE_S)[0], "the engine outlived its parent"
    finally:
        os.close(engine)
