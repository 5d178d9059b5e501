"""Two fronts share two engine processes: engines are killed, stopped and full."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest

from agent_tts.errors import EngineLost
from agent_tts.ipc.engine_link import EngineLink
from agent_tts.ipc.engine_process import EngineProcess, engine_processes
from agent_tts.speech.service import SpeechService
from tests.fault.engines import BACK_S, begin, hear, kill
from tests.ipc.listener import tone_settings
from tests.speech.test_moving import occupy
from tests.support import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="descriptors are passed")

HEARTBEAT_S = 3.0


class Owner:
    """The engines, and two fronts that get links to them."""

    def __init__(self, **values: Any) -> None:
        timeouts = {"engine_heartbeat_s": HEARTBEAT_S, "queue_s": 10.0}
        settings = tone_settings(engines=2, timeouts=timeouts, **values)
        self.service = SpeechService(engine_processes(settings))
        self.processes = [cast(EngineProcess, engine.client) for engine in self.service.engines]
        self.fronts = [
            SpeechService(
                [partial(EngineLink, partial(self._connect, front, number), HEARTBEAT_S) for number in range(2)],
                tries=False,
                prefers=front,
            )
            for front in range(2)
        ]
        self._tasks: set[asyncio.Task[None]] = set()

    def _connect(self, front: int, number: int) -> None:
        """Answer a front that asks for a link."""
        if self.service.engines[number].ready:
            task = asyncio.create_task(self.connect(front, number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def connect(self, front: int, number: int) -> None:
        """Hand a link to a front, and tell it the engine's state."""
        process, engine = self.processes[number], self.fronts[front].engines[number]
        with contextlib.suppress(EngineLost):  # the front may hear of a death first; it asks again
            sock = process.attach()
            assert process.greeting is not None
            await cast(EngineLink, engine.client).connect(sock, process.greeting)
            engine.tell("ready")


@asynccontextmanager
async def owned(**values: Any) -> AsyncIterator[Owner]:
    owner = Owner(**values)
    await owner.service.start()
    try:
        await until(lambda: all(engine.ready for engine in owner.service.engines), BACK_S)
        for front in (0, 1):
            await owner.fronts[front].start()
            for number in (0, 1):
                await owner.connect(front, number)
        yield owner
    finally:
        for service in (*owner.fronts, owner.service):
            await service.close()


@pytest.mark.slow
async def test_all_fronts_speak_on_all_engines_and_a_killed_one_comes_back() -> None:
    """They hear the same; what a killed engine speaks ends on all fronts, and that alone."""
    async with owned() as owner:
        speeches = [begin(front, lead_ms=None) for front in owner.fronts for _ in range(6)]
        assert [speech.engine for speech in speeches] == [0, 1] * 3 + [1, 0] * 3
        heard = await asyncio.gather(*map(hear, speeches))
        assert {end.reason for _, end in heard} == {"end"}
        (whole,) = {pcm for pcm, _ in heard}
        assert whole

        speeches = [begin(front) for front in owner.fronts for _ in range(4)]
        await until(lambda: all(speech.received for speech in speeches), BACK_S)
        kill(owner.processes[0])
        await until(lambda: not any(front.engines[0].alive for front in owner.fronts), BACK_S)
        assert {begin(front).engine for front in owner.fronts for _ in range(2)} == {1}
        for speech, (pcm, end) in zip(speeches, await asyncio.gather(*map(hear, speeches)), strict=True):
            if speech.engine == 0:
                assert end.code == "engine_lost"
                assert whole.startswith(pcm)
            else:
                assert (end.reason, pcm) == ("end", whole)
        engines = [front.engines[0] for front in owner.fronts]
        for front in owner.fronts:  # which hears of what the other speaks a heartbeat later
            await until(lambda: all(engine.able and engine.load == (False, 0.0) for engine in engines), BACK_S)
            speeches = [begin(front, lead_ms=None) for _ in range(4)]
            assert 0 in {speech.engine for speech in speeches}
            for pcm, _ in await asyncio.gather(*map(hear, speeches)):
                assert pcm == whole


async def test_a_front_sees_the_load_of_others_and_gets_the_slots_that_they_leave() -> None:
    """Fails if a front counts its own requests alone: it would choose an engine that others have filled."""
    async with owned(slots=1, queue=8) as owner:
        one, other = owner.fronts
        held = await occupy(one, 2)
        await held[0].cancel()
        await until(lambda: [engine.load for engine in other.engines] == [(False, 0.0), (False, 1.0)], BACK_S)
        spoken = begin(other, lead_ms=None)
        assert spoken.engine == 0
        whole, end = await hear(spoken)
        assert end.reason == "end"

        held[:1] = await occupy(one, 1)
        await until(lambda: all(engine.load[1] >= 1.0 for engine in other.engines), BACK_S)
        waiting = begin(other, lead_ms=None)
        home = waiting.engine
        await asyncio.sleep(0.3)
        assert not waiting.started
        await held[1 - home].cancel()
        pcm, end = await hear(waiting)
        assert (end.reason, waiting.engine, pcm) == ("end", 1 - home, whole)

        await occupy(one, 1)
        queued = [begin(other, lead_ms=None) for _ in range(4)]
        await asyncio.sleep(0.2)
        assert not any(speech.started for speech in queued)
        await one.close()
        assert {end.reason for _, end in await asyncio.gather(*map(hear, queued))} == {"end"}


@pytest.mark.slow
@pytest.mark.real_time
async def test_a_stopped_engine_gets_no_streams_before_it_is_given_up_and_some_when_it_goes_on() -> None:
    """Those that wait there move. Fails if only a lost engine is avoided."""
    async with owned(slots=1, queue=8) as owner:
        [front, _] = owner.fronts
        stopped = owner.processes[0]
        kill(stopped, signal.SIGSTOP)
        waiting = begin(front, lead_ms=None)
        assert waiting.engine == 0
        assert (await hear(waiting))[1].reason == "end"
        assert waiting.engine == 1
        await until(lambda: not front.engines[0].able, BACK_S)
        assert front.engines[0].alive
        for _ in range(3):
            speech = begin(front, lead_ms=None)
            assert speech.engine == 1
            assert (await hear(speech))[1].reason == "end"
        kill(stopped, signal.SIGCONT)
        await until(lambda: front.engines[0].able, BACK_S)
        assert {begin(front).engine, begin(front).engine} == {0, 1}
