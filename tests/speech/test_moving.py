from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.config.settings import Settings
from agent_tts.engine.factory import create_loop
from agent_tts.engine.loop import EngineLoop
from agent_tts.messages import Audio, EngineCommand, EngineEvent, Finished, Flushed, OnEvents, OnLost, Open, Started
from agent_tts.options import EngineOptions, SpeechOptions
from agent_tts.speech.engine_handle import EngineClient, EngineClientFactory
from agent_tts.speech.moving import LOOK_S, MAX_TEXT, WAITS_S
from agent_tts.speech.service import SpeechService
from agent_tts.speech.utterance import Utterance
from tests.examples import examples
from tests.in_process import InProcessEngine
from tests.support import events_of, uncollected, until

UNPACED = SpeechOptions(lead_ms=None, seed=3)
TEXT = ("Some words ", "that come ", "in pieces ", "while they wait.")


class Engine(InProcessEngine):
    """Notes what is opened, and may answer late."""

    def __init__(self, loop: EngineLoop, on_events: OnEvents, on_lost: OnLost) -> None:
        super().__init__(loop, self._answer, on_lost)
        self.opened: list[Open[int, EngineOptions]] = []
        self.delay_s = 0.0
        self._told = on_events

    def _answer(self, new: list[EngineEvent]) -> None:
        if self.delay_s:
            asyncio.get_running_loop().call_later(self.delay_s, self._told, new)
        else:
            self._told(new)

    def send(self, command: EngineCommand, *, waits: bool = False) -> None:
        if isinstance(command, Open):
            self.opened.append(command)
        super().send(command, waits=waits)


@asynccontextmanager
async def several(*each: dict[str, Any]) -> AsyncIterator[SpeechService]:
    """A service with a tone engine for each of these settings, after the first synthesis of all."""

    def factory(values: dict[str, Any]) -> EngineClientFactory:
        settings = Settings.model_validate({"engine": "tone", "timeouts": {"queue_s": 3.0}, **values})

        def make(on_events: OnEvents, on_lost: OnLost) -> EngineClient:
            return Engine(create_loop(settings, asyncio.get_running_loop().time), on_events, on_lost)

        return make

    service = SpeechService([factory(values) for values in each])
    await service.start()
    await until(lambda: service.speaking == 0)
    yield service
    assert service.speaking == 0
    await service.close()


def opened(service: SpeechService) -> list[list[Open[int, EngineOptions]]]:
    """What was opened at each engine after its first synthesis."""
    return [engine.client.opened[1:] for engine in service.engines]  # pyrefly: ignore[missing-attribute]


class Hearing:
    """Listens to a request."""

    def __init__(self, speech: Utterance) -> None:
        self.speech = speech
        self.kinds: list[type] = []
        self.pcm = b""
        self.queue_ms = -1
        self.opened_at = asyncio.get_running_loop().time()
        self.task = asyncio.create_task(self._hear())

    async def _hear(self) -> None:
        async for event in events_of(self.speech):
            self.kinds.append(type(event))
            if isinstance(event, Audio):
                self.pcm += event.payload
            elif isinstance(event, Started):
                self.queue_ms = event.queue_ms
                self.started_at = asyncio.get_running_loop().time()

    async def end(self) -> Finished[int]:
        """Wait for its end; every event came once and in order."""
        await self.task
        assert self.speech.finished is not None
        assert self.kinds.count(Finished) == 1
        assert self.kinds[-1] is Finished
        assert self.kinds[:1] == [Started] or self.kinds == [Finished]
        assert self.kinds.count(Started) <= 1
        return self.speech.finished


def say(speech: Utterance, *pieces: str) -> Hearing:
    for piece in pieces or TEXT:
        speech.write(piece)
    speech.end()
    return Hearing(speech)


async def occupy(service: SpeechService, count: int | None = None) -> list[Utterance]:
    """Take so many slots, or all, with speech for some seconds. In the order of their engines."""
    count = count or sum(engine.slots for engine in service.engines)
    held = [service.open(SpeechOptions(lead_ms=80)) for _ in range(count)]
    for speech in held:
        speech.write("word " * 100)
    await until(lambda: all(speech.started for speech in held))
    return sorted(held, key=lambda speech: speech.engine)


@pytest.fixture
async def service() -> AsyncIterator[SpeechService]:
    """Two engines with a slot each."""
    async with several({"slots": 1}, {"slots": 1}) as two:
        yield two


@pytest.fixture
async def held(service: SpeechService) -> list[Utterance]:
    """Speech in all slots of `service`."""
    return await occupy(service)


async def test_a_request_that_waits_gets_the_slot_that_another_engine_frees(service: SpeechService) -> None:
    """All its text goes with it, the answer to a flush comes once, and its time in line is counted from the start."""
    alone = say(service.open(UNPACED))
    await alone.end()
    held = await occupy(service)
    waiting = service.open(UNPACED)
    home = waiting.engine
    waiting.write(TEXT[0])
    waiting.write(TEXT[1])
    waiting.flush("f")
    hearing = Hearing(waiting)
    await asyncio.sleep(0.3)
    await held[1 - home].cancel()
    await until(lambda: waiting.started)
    assert waiting.engine == 1 - home
    waiting.write(TEXT[2])
    waiting.write(TEXT[3])
    waiting.end()
    assert (await hearing.end()).reason == "end"
    assert hearing.kinds.count(Flushed) == 1
    assert len(hearing.pcm) >= len(alone.pcm)
    assert 300 <= hearing.queue_ms <= round((hearing.started_at - hearing.opened_at) * 1_000)
    await held[home].cancel()


@pytest.mark.parametrize("first", ["home", "other"])
async def test_text_that_comes_while_it_tries_reaches_both_engines(first: str, service: SpeechService) -> None:
    """Whichever starts, the speech is whole."""
    plain = say(service.open(UNPACED))
    await plain.end()
    paused = service.open(UNPACED)
    paused.write(TEXT[0])
    paused.write('<break time="240ms"/>')
    alone = say(paused, *TEXT[1:])
    await alone.end()
    assert len(alone.pcm) == len(plain.pcm) + 240 * 48
    held = await occupy(service)
    waiting = service.open(UNPACED)
    hearing = Hearing(waiting)
    home, other = waiting.engine, 1 - waiting.engine
    clients = [engine.client for engine in service.engines]
    clients[other].delay_s = 1.5 if first == "home" else 0.5  # pyrefly: ignore[missing-attribute]
    waiting.write(TEXT[0])
    waiting.write('<break time="240ms"/>')
    before = len(opened(service)[other])
    held[other].stop()
    await until(lambda: len(opened(service)[other]) > before)
    for piece in TEXT[1:]:
        waiting.write(piece)
        await asyncio.sleep(0.01)
    waiting.end()
    assert not waiting.started
    if first == "home":
        held[home].stop()
    assert (await hearing.end()).reason == "end"
    assert waiting.engine == (home if first == "home" else other)
    assert hearing.pcm == alone.pcm
    held[home].stop()
    await until(lambda: service.speaking == 0)


async def test_a_wrong_guess_costs_no_place_in_line(service: SpeechService, held: list[Utterance]) -> None:
    """A place that is taken meanwhile refuses it, and it waits on at home."""
    first, second = service.open(UNPACED), service.open(UNPACED)
    hearings = [Hearing(first), Hearing(second)]
    for engine in service.engines:
        engine.__class__ = type("Wishful", (type(engine),), {"free": 1})
    await asyncio.sleep(0.5)
    assert sum(map(len, opened(service))) > 6
    assert not any(hearing.kinds for hearing in hearings)
    for speech in held:
        speech.stop()
    for speech in (first, second):
        speech.write("word")
        speech.end()
    for hearing in hearings:
        assert (await hearing.end()).reason == "end"


async def test_a_refused_request_waits_at_an_engine_with_room() -> None:
    """Counts may be wrong where fronts share engines: the engine decides. Fails if the first refusal is told."""
    async with several({"slots": 1, "queue": 0}, {"slots": 1, "queue": 1}) as service:
        held = await occupy(service)
        full = service.engines[0]
        full._queue = 5
        speech = service.open(UNPACED)
        hearing = say(speech)
        assert speech.engine == 0
        await asyncio.sleep(0.2)
        assert hearing.kinds == []
        await held[1].cancel()
        assert (await hearing.end()).reason == "end"
        assert speech.engine == 1
        await held[0].cancel()


async def test_a_request_is_refused_when_all_engines_refuse_it() -> None:
    """With the first refusal's estimate of a time to try again."""
    async with several({"slots": 1, "queue": 0}, {"slots": 1, "queue": 0}) as service:
        held = await occupy(service)
        for engine in service.engines:
            engine._queue = 5
        end = await say(service.open(UNPACED)).end()
        assert (end.code, [len(each) for each in opened(service)]) == ("at_capacity", [2, 2])
        assert end.retry_after_ms
        for speech in held:
            await speech.cancel()


async def test_time_at_several_engines_is_one_wait(service: SpeechService, held: list[Utterance]) -> None:
    """`queue_s` is not allowed again at each engine."""
    begun = asyncio.get_running_loop().time()
    end = await say(service.open(UNPACED)).end()
    assert end.code == "at_capacity"
    assert 3.0 <= asyncio.get_running_loop().time() - begun < 3.5
    for speech in held:
        await speech.cancel()


async def test_a_waiting_request_that_is_cancelled_leaves_every_place(
    service: SpeechService, held: list[Utterance]
) -> None:
    speech = service.open(UNPACED)
    hearing = say(speech)
    await asyncio.sleep(WAITS_S + LOOK_S)
    await held[1 - speech.engine].cancel()
    while len(opened(service)[1 - speech.engine]) == 1:
        await asyncio.sleep(0)
    await speech.cancel()
    assert (await hearing.end()).reason == "cancelled"
    await until(lambda: service.speaking == 1)
    await held[speech.engine].cancel()


async def test_a_request_outlives_its_home_where_it_has_begun_elsewhere(
    service: SpeechService, held: list[Utterance]
) -> None:
    """The answer of the other engine is on its way when the home is lost."""
    speech = service.open(UNPACED)
    hearing = say(speech)
    home, other = service.engines[speech.engine], service.engines[1 - speech.engine]
    await asyncio.sleep(WAITS_S + LOOK_S)
    other.client.delay_s = 0.1  # pyrefly: ignore[missing-attribute]
    await held[other.number].cancel()
    while len(opened(service)[other.number]) == 1:
        await asyncio.sleep(0)
    home.fail_all("engine_lost", "the engine was lost")
    assert ((await hearing.end()).reason, speech.engine) == ("end", other.number)


@pytest.mark.parametrize("end", ["spoken", "refused", "cancelled"])
async def test_a_request_that_has_ended_is_freed_at_once(end: str) -> None:
    """With its text, not by a later garbage collection. Fails if an attempt keeps its request, or the other way."""
    queue = 0 if end == "refused" else 5
    async with several({"slots": 1, "queue": queue}, {"slots": 1, "queue": queue}) as service:
        held = [] if end == "spoken" else await occupy(service)
        for engine in service.engines:
            engine._queue = 5
        with uncollected():
            hearing = say(service.open(UNPACED))
            freed = weakref.ref(hearing.speech)
            if end == "cancelled":
                await hearing.speech.cancel()
            await hearing.end()
            del hearing
            await asyncio.sleep(0)
            assert freed() is None
        for speech in held:
            await speech.cancel()


async def test_a_long_text_stays(service: SpeechService, held: list[Utterance]) -> None:
    """What may move is kept in memory."""
    speech = service.open(UNPACED)
    speech.write("x" * (MAX_TEXT + 1))
    await held[1 - speech.engine].cancel()
    await asyncio.sleep(1)
    assert not speech.started
    await speech.cancel()
    await held[speech.engine].cancel()


async def test_a_late_engine_gets_no_new_streams_until_it_answers() -> None:
    async with several({}, {}) as service:
        late = service.engines[0].client
        late.late = True  # pyrefly: ignore[read-only]
        speeches = [service.open(UNPACED) for _ in range(4)]
        assert {speech.engine for speech in speeches} == {1}
        late.late = False  # pyrefly: ignore[read-only]
        speeches += [service.open(UNPACED) for _ in range(4)]
        assert [speech.engine for speech in speeches[4:]] == [0] * 4
        for engine in service.engines:
            engine.client.late = True  # pyrefly: ignore[read-only]
        speeches.append(service.open(UNPACED))
        for speech in speeches:
            await speech.cancel()


@pytest.mark.parametrize("prefers", [0, 1, 2, 5])
async def test_fronts_begin_at_different_engines(prefers: int) -> None:
    async with several({}, {}, {}) as service:
        service._prefers = prefers
        speeches = [service.open(UNPACED) for _ in range(4)]
        assert [speech.engine for speech in speeches] == [(prefers + n) % 3 for n in (0, 1, 2, 0)]
        for speech in speeches:
            await speech.cancel()


# ---------------------------------------------------------------- any order

MOMENTS = st.floats(0, 1.5, allow_nan=False)
REQUESTS = st.lists(
    st.tuples(MOMENTS, st.integers(0, 2), st.integers(1, 12), st.floats(0, 0.2), st.booleans(), MOMENTS),
    min_size=1,
    max_size=12,
)
ENGINES = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 6)), min_size=2, max_size=3)


@given(requests=REQUESTS, engines=ENGINES)
@examples(40)
async def test_any_load_is_spoken_once_and_whole(
    requests: list[tuple[float, int, int, float, bool, float]], engines: list[tuple[int, int]]
) -> None:
    """Each request ends once; what is spoken to its end is what one engine would say."""

    async def one(
        service: SpeechService, at: float, owner: int, words: int, pause: float, stops: bool, life: float
    ) -> None:
        await asyncio.sleep(at)
        speech = service.open(SpeechOptions(lead_ms=80, seed=owner), owner)
        hearing = Hearing(speech)
        for word in range(words):
            speech.write(f"word{word} ")
            await asyncio.sleep(pause)
        speech.end()
        if stops:
            await asyncio.sleep(life)
            await speech.cancel()
        end = await hearing.end()
        assert end.reason in (("end", "cancelled") if stops else ("end",)) or end.code == "at_capacity"
        if end.reason == "end":
            assert speech.received == sum(len(f"word{word}") for word in range(words)) * 60 * 24
            whole = say(service.open(SpeechOptions(lead_ms=None, seed=owner)), *(f"word{n} " for n in range(words)))
            if (await whole.end()).reason == "end":
                assert hearing.pcm == whole.pcm

    async with several(*({"slots": slots, "queue": queue} for slots, queue in engines)) as service:
        async with asyncio.TaskGroup() as tasks:
            for request in requests:
                tasks.create_task(one(service, *request))
        await until(lambda: service.speaking == 0)


async def test_no_request_waits_long_while_a_slot_is_free() -> None:
    """A crowd at engines of different speed: after `WAITS_S` and a look each free slot is used."""
    idle_s = 0.0
    values = {"slots": 2, "queue": 40, "timeouts": {"queue_s": 60.0}}
    async with several(values, values) as service:
        hearings = [say(service.open(SpeechOptions(lead_ms=80, seed=n)), "w" * (3 if n % 2 else 30)) for n in range(20)]
        clock = asyncio.get_running_loop().time
        while not all(hearing.task.done() for hearing in hearings):
            waiting = sum(not hearing.kinds for hearing in hearings)
            free = sum(engine.slots - len(engine.owners()) for engine in service.engines)
            before = clock()
            await asyncio.sleep(0.01)
            idle_s = idle_s + clock() - before if waiting and free else 0.0
            assert idle_s < WAITS_S + 2 * LOOK_S
        for hearing in hearings:
            assert (await hearing.end()).reason == "end"
