"""Two fronts share two engine processes: engines are killed, stopped and full."""

from __future__ import annotations

import asyncio
import contextlib
import os
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
from agent_tts.messages import Audio, Finished, Started
from agent_tts.options import SpeechOptions
from agent_tts.speech.service import SpeechService
from agent_tts.speech.utterance import Utterance
from tests.events_of import events_of
from tests.ipc.listener import tone_settings
from tests.support import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="descriptors are passed")

BACK_S = 20.0
HEARTBEAT_S = 2.0
TEXT = "some words that are the same everywhere"


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


def begin(service: SpeechService, **options: Any) -> Utterance:
    speech = service.open(SpeechOptions(**{"seed": 1, "lead_ms": 400, **options}))
    speech.write(TEXT)
    speech.end()
    return speech


async def hear(speech: Utterance) -> tuple[bytes, Finished[str]]:
    """All audio and the end of a request; it starts once at most."""
    async with asyncio.timeout(BACK_S):
        events = [event async for event in events_of(speech)]
    assert sum(isinstance(event, Started) for event in events) <= 1
    assert speech.done is not None
    return b"".join(event.payload for event in events if isinstance(event, Audio)), speech.done


async def occupy(front: SpeechService, count: int) -> list[Utterance]:
    """Speech for many seconds in so many slots, in the order of their engines."""
    held = [front.open(SpeechOptions(lead_ms=80)) for _ in range(count)]
    for speech in held:
        speech.write("word " * 100)
    await until(lambda: all(speech.started for speech in held))
    return sorted(held, key=lambda speech: speech.engine)


async def test_all_fronts_speak_on_all_engines_and_hear_the_same() -> None:
    async with owned() as owner:
        speeches = [begin(front, lead_ms=None) for front in owner.fronts for _ in range(6)]
        assert [speech.engine for speech in speeches] == [0, 1] * 3 + [1, 0] * 3
        heard = await asyncio.gather(*map(hear, speeches))
        assert {end.reason for _, end in heard} == {"end"}
        assert len({pcm for pcm, _ in heard}) == 1
        assert heard[0][0]


async def test_a_front_sees_the_load_of_others() -> None:
    """Fails if a front counts its own requests alone: it would choose an engine that others have filled."""
    async with owned(slots=4) as owner:
        one, other = owner.fronts
        held = [one.open(SpeechOptions()) for _ in range(6)]
        for speech in held:
            if speech.engine == 0:
                await speech.cancel()
        await until(lambda: other.engines[1].load == (False, 3 / 4) and other.engines[0].load == (False, 0.0))
        assert {other.open(SpeechOptions()).engine for _ in range(3)} == {0}


async def test_a_request_moves_to_the_slot_that_another_fronts_speech_has_left() -> None:
    async with owned(slots=1, queue=4) as owner:
        one, other = owner.fronts
        held = await occupy(one, 2)
        waiting = begin(other, lead_ms=None)
        home = waiting.engine
        await asyncio.sleep(0.3)
        assert not waiting.started
        await held[1 - home].cancel()
        pcm, end = await hear(waiting)
        assert (end.reason, waiting.engine) == ("end", 1 - home)
        assert pcm == (await hear(begin(other, lead_ms=None)))[0]
        await held[home].cancel()


async def test_a_front_that_goes_frees_its_slots_for_others() -> None:
    async with owned(slots=2, queue=8) as owner:
        one, other = owner.fronts
        await occupy(one, 4)
        waiting = [begin(other, lead_ms=None) for _ in range(4)]
        await asyncio.sleep(0.2)
        assert not any(speech.started for speech in waiting)
        await one.close()
        for _, end in await asyncio.gather(*map(hear, waiting)):
            assert end.reason == "end"


async def test_a_killed_engine_ends_its_own_speech_on_all_fronts_and_comes_back() -> None:
    async with owned() as owner:
        whole, _ = await hear(begin(owner.fronts[0], lead_ms=None))
        speeches = [begin(front) for front in owner.fronts for _ in range(4)]
        await until(lambda: all(speech.samples for speech in speeches))
        assert owner.processes[0].pid is not None
        os.kill(owner.processes[0].pid, signal.SIGKILL)
        await until(lambda: not any(front.engines[0].alive for front in owner.fronts))
        assert {begin(front).engine for front in owner.fronts for _ in range(2)} == {1}
        for speech, (pcm, end) in zip(speeches, await asyncio.gather(*map(hear, speeches)), strict=True):
            if speech.engine == 0:
                assert end.code == "engine_lost"
                assert whole.startswith(pcm)
            else:
                assert (end.reason, pcm) == ("end", whole)
        await until(lambda: all(front.engines[0].able for front in owner.fronts), BACK_S)
        for front in owner.fronts:
            speeches = [begin(front, lead_ms=None) for _ in range(4)]
            assert 0 in {speech.engine for speech in speeches}
            for pcm, _ in await asyncio.gather(*map(hear, speeches)):
                assert pcm == whole


@pytest.mark.real_time
async def test_a_stopped_engine_gets_no_streams_before_it_is_given_up_and_some_when_it_goes_on() -> None:
    """Those that wait there move. Fails if only a lost engine is avoided."""
    async with owned(slots=1, queue=8) as owner:
        [front, _] = owner.fronts
        stopped = owner.processes[0]
        assert stopped.pid is not None
        clock = asyncio.get_running_loop().time
        os.kill(stopped.pid, signal.SIGSTOP)
        begun = clock()
        waiting = begin(front, lead_ms=None)
        assert waiting.engine == 0
        assert (await hear(waiting))[1].reason == "end"
        assert waiting.engine == 1
        await until(lambda: not front.engines[0].able, BACK_S)
        assert clock() - begun < 0.75 * HEARTBEAT_S
        for _ in range(3):
            speech = begin(front, lead_ms=None)
            assert speech.engine == 1
            assert (await hear(speech))[1].reason == "end"
        os.kill(stopped.pid, signal.SIGCONT)
        await until(lambda: front.engines[0].able, BACK_S)
        assert {begin(front).engine, begin(front).engine} == {0, 1}
