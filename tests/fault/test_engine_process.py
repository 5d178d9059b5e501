"""The engine process is killed, hangs, crashes or loses its parent: every request ends, and the engine is restarted."""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from loguru import logger

from agent_tts.config.settings import Settings
from agent_tts.ipc.engine_process import BACKOFF_S, EngineProcess
from agent_tts.messages import Audio, Finished
from agent_tts.options import SpeechOptions
from agent_tts.speech.service import SpeechService
from agent_tts.speech.utterance import Utterance
from tests.events_of import events_of
from tests.ipc.listener import tone_settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc, pidfd and the parent-death signal")

TEXT = "a sentence that is long enough to be killed in the middle of it"
STREAMS = 32


@asynccontextmanager
async def speech_service(settings: Settings) -> AsyncIterator[tuple[SpeechService, EngineProcess]]:
    """A service with its own engine process."""
    links: list[EngineProcess] = []

    def make_client(*callbacks: Any) -> EngineProcess:
        links.append(EngineProcess(settings, *callbacks))
        return links[0]

    service = SpeechService([make_client])
    await service.start()
    try:
        yield service, links[0]
    finally:
        await service.close()


def kill(link: EngineProcess) -> None:
    assert link.pid is not None
    os.kill(link.pid, signal.SIGKILL)


def begin(service: SpeechService, *, text: str = TEXT, **options: Any) -> Utterance:
    """A request with all of its text."""
    speech = service.open(SpeechOptions(seed=1, **options))
    speech.write(text)
    speech.end()
    return speech


async def hear(speech: Utterance) -> tuple[bytes, Finished[str]]:
    """All audio of a request, and its last event."""
    async with asyncio.timeout(20):
        pcm = b"".join([event.payload async for event in events_of(speech) if isinstance(event, Audio)])
    assert speech.done is not None
    return pcm, speech.done


async def back(service: SpeechService) -> None:
    """Wait until the engine is ready again and has spoken."""
    async with asyncio.timeout(20):
        while not service.ready:
            await asyncio.sleep(0.005)  # readiness has no event


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))


# ---------------------------------------------------------------- F10: killed


@pytest.mark.parametrize("seed", range(4))
async def test_kill_at_random_moments_under_load(seed: int) -> None:
    """Five kills under 32 requests: each ends with `engine_lost`, and its audio is a prefix of the expected audio.

    Nothing leaks: file descriptors are as before, and the leak gate finds no process, task or thread. A new request is
    bit-equal. Mutation: without `on_lost` in `EngineChild._lose` every request waits until the test times out.
    """
    moments = random.Random(seed)
    async with speech_service(tone_settings()) as (service, link):
        expected, _ = await hear(begin(service, lead_ms=None))
        before = fds()
        for _ in BACKOFF_S:
            await back(service)
            heard = [asyncio.create_task(hear(begin(service, lead_ms=200))) for _ in range(STREAMS)]
            await asyncio.sleep(moments.uniform(0.0, 0.3))  # the random moment
            kill(link)
            for pcm, finished in await asyncio.gather(*heard):
                assert (finished.reason, finished.code) == ("error", "engine_lost")
                assert expected.startswith(pcm)
                assert len(pcm) < len(expected)
            assert service.speaking == 0
        await back(service)
        assert (await hear(begin(service, lead_ms=None)))[0] == expected
        assert fds() == before
        assert not link.failed.is_set()


async def test_kill_during_the_drain_ends_it() -> None:
    """The drain waits for requests, and the kill ends them."""
    async with speech_service(tone_settings()) as (service, link):
        speech = begin(service, lead_ms=200)
        assert await speech.next() is not None
        drain = asyncio.create_task(service.drain())
        await asyncio.sleep(0)
        kill(link)
        await drain
        assert speech.finished is not None
        assert speech.finished.code == "engine_lost"


# ---------------------------------------------------------------- F11: hanging


@pytest.mark.parametrize("kind", ["hang", "hang_gil"])
async def test_a_hung_engine_is_dumped_killed_and_replaced(kind: str) -> None:
    """The log shows the step that hung, even one that holds the GIL; the next engine works.

    Mutation: without the heartbeat the request waits for a minute; without `faulthandler.register` the signal kills the
    process and the log does not name the place.
    """
    lines: list[str] = []
    sink = logger.add(lines.append, level="WARNING", format="{message}")
    try:
        async with speech_service(tone_settings(timeouts={"engine_heartbeat_s": 1.0})) as (service, link):
            expected, _ = await hear(begin(service, lead_ms=None))
            pid = link.pid
            pcm, finished = await hear(begin(service, instructions=f"fault:{kind}@3", lead_ms=None))
            assert finished.code == "engine_lost"
            assert expected.startswith(pcm)
            await back(service)
            assert link.pid != pid
            assert (await hear(begin(service, lead_ms=None)))[0] == expected
    finally:
        logger.remove(sink)
    [death] = [line for line in lines if f"engine process {pid} (signal 9) is lost: no answer for 1 s" in line]
    assert "tone.py" in death
    assert "in step" in death
    assert TEXT not in death


# ---------------------------------------------------------------- the engine exits


@pytest.mark.parametrize("kind", ["crash", "exit", "oom_step"])
async def test_an_engine_that_exits_is_replaced(kind: str) -> None:
    """All its requests end with `engine_lost`, queued ones included, and a new one succeeds."""
    async with speech_service(tone_settings(slots=3, queue=2)) as (service, _):
        expected, _ = await hear(begin(service, lead_ms=None))
        speeches = [begin(service, lead_ms=80) for _ in range(2)]
        speeches += [begin(service, lead_ms=80, instructions=f"fault:{kind}@3") for _ in range(2)]
        for _, finished in await asyncio.gather(*map(hear, speeches)):
            assert finished.code == "engine_lost"
        await back(service)
        assert (await hear(begin(service, lead_ms=None)))[0] == expected


# ---------------------------------------------------------------- F12: the parent is killed

PARENT = """
import asyncio, sys
from agent_tts.messages import Append, Open, Audio
from agent_tts.options import SpeechOptions
from agent_tts.ipc.engine_process import EngineProcess
from agent_tts.config.settings import Settings

async def main() -> None:
    speaks = asyncio.Event()
    def hear(new: list) -> None:
        if any(isinstance(event, Audio) for event in new):
            speaks.set()
    link = EngineProcess(Settings.model_validate({"engine": "tone", "tone": {"scripted_faults": True}}), hear, print)
    await link.start()
    link.send(Open(1, SpeechOptions(instructions=sys.argv[1] or None)))
    link.send(Append(1, "enough text for some frames of audio "))
    await speaks.wait()
    print(link.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("doing", ["", "fault:hang@1", "fault:hang_gil@1"], ids=["speaking", "hung", "holding the GIL"])
async def test_the_engine_dies_with_its_parent(doing: str) -> None:
    """The engine is gone within a second after its parent is killed, whatever it is doing.

    Mutation: without the parent-death signal the engine that holds the GIL sleeps on for a minute.
    """
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, doing), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert parent.stdout is not None
    try:
        async with asyncio.timeout(20):
            engine = os.pidfd_open(int(await parent.stdout.readline()))
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        await parent.communicate()
    try:
        assert select.select([engine], [], [], 1.0)[0], "the engine outlived its parent"
    finally:
        os.close(engine)
