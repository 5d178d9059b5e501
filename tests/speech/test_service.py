from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_tts.engine.factory import create_loop
from agent_tts.engine_info import EngineInfo, Model
from agent_tts.errors import Draining, EngineLost, UnknownVoice
from agent_tts.messages import Audio, EngineEvent, Finished, Flushed, Started
from agent_tts.options import SpeechOptions
from agent_tts.speech.engine_handle import EngineClient, EngineClientFactory, EngineObserver
from agent_tts.speech.service import SpeechService
from agent_tts.speech.utterance import Utterance
from agent_tts.text.entries import Lexicon
from agent_tts.voices.library import StoredVoice, VoiceLibrary
from tests.events_of import events_of
from tests.in_process import InProcessEngine
from tests.support import in_this_loop, logged, present, settings_of, typed, until, with_models

UNPACED = SpeechOptions(lead_ms=None)


def tone(**values: Any) -> EngineClientFactory:
    """An engine with faults on demand. `values` are settings."""
    return in_this_loop(settings_of(**{"tone": {"scripted_faults": True}, **values}))


def mute(on_events: Callable[[list[EngineEvent]], None], on_lost: Callable[[str], None]) -> EngineClient:
    """An engine that gives no audio."""
    return tone()(lambda new: on_events([event for event in new if not isinstance(event, Audio)]), on_lost)


@asynccontextmanager
async def running(*engines: EngineClientFactory, library: VoiceLibrary | None = None) -> AsyncIterator[SpeechService]:
    """A service with these engines, or with one, after the first synthesis of all."""
    service = SpeechService(engines or [tone()], library)
    await service.start()
    await until(lambda: service.speaking == 0)
    yield service
    await service.close()


async def test_ready_means_that_a_real_synthesis_succeeded() -> None:
    """Fails if `EngineReady` alone sets `ready`."""
    service = SpeechService([tone()])
    await service.start()
    assert service.alive
    assert not service.ready
    await until(lambda: service.ready)
    await service.close()
    assert not service.alive


async def test_a_start_that_has_begun_is_waited_for_and_told_to_an_observer_that_comes_later() -> None:
    """A node makes its application while its engines start; a fast engine is there first."""
    seen: list[str] = []

    class Observer(EngineObserver):
        def started(self, engine: int, info: EngineInfo) -> None:
            seen.append(info.engine)

    for is_first in (True, False):
        service = SpeechService([tone()])
        service.begin()
        if is_first:
            await until(lambda service=service: service.ready)
        service.observe(Observer())
        await service.start()
        assert service.alive
        await service.close()
    assert seen == ["tone", "tone"]


async def test_a_start_that_has_begun_ends_with_the_service() -> None:
    closed = False

    class Slow(InProcessEngine):
        async def start(self) -> None:
            await asyncio.Event().wait()

        async def close(self) -> None:
            nonlocal closed
            closed = True
            await super().close()

    service = SpeechService([lambda events, lost: Slow(create_loop(settings_of()), events, lost)])
    service.begin()
    await asyncio.sleep(0)
    await service.close()
    assert closed


@pytest.mark.real_time
async def test_a_request_has_its_own_lexicon_before_its_voices_and_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = VoiceLibrary(tmp_path, limit=3)
    library.add(StoredVoice(name="bob", kind="designed", prompt="A man."), {})
    node, voice, own = (Lexicon.of({"a": alias}) for alias in "nvo")
    designs = Model("design", "designed", "nowhere")
    service = SpeechService([with_models(designs)], library, lexicon=node)
    await service.start()
    try:
        options = SpeechOptions(voice="bob", lexicon=own)
        assert service.resolve(options).lexicons == (own, node)
        library.set_lexicon("bob", voice)
        assert service.resolve(options).lexicons == (own, library.get("bob").lexicon, node)
        assert service.resolve(SpeechOptions()).lexicons == (node,)
        first = service.open(options)
        assert first.waits_for_lexicons
        while first.waits_for_lexicons:  # a thread reads it
            await asyncio.sleep(0.01)
        assert not service.open(options).waits_for_lexicons
        asked = threading.Event()
        library.set_lexicon("bob", own)
        monkeypatch.setattr(library, "read_lexicon", lambda _: asked.wait(5))
        late = service.open(options)
        late.write("Two words.")
        while late.waits_for_lexicons:  # the folder does not answer
            await asyncio.sleep(0.01)
        asked.set()
    finally:
        await service.close()


async def test_a_truncated_first_synthesis_counts() -> None:
    """A model may draw its end of speech later than the limit."""
    async with running(tone(limits={"max_frames": 2})) as service:
        assert service.ready


async def test_a_first_synthesis_without_audio_does_not_count() -> None:
    async with running(mute) as service:
        assert not service.ready


async def test_a_stream_gives_its_events_in_order() -> None:
    async with running() as service:
        speech = service.open(UNPACED)
        speech.write("Hello world")
        speech.flush("f")
        speech.end()
        kinds = [type(event) async for event in events_of(speech)]
        assert kinds == [Started, *[Audio] * (len(kinds) - 4), Flushed, Audio, Finished]  # the last one is empty
        assert await speech.next() is None


async def test_cancel_returns_when_the_slot_is_free_and_can_be_repeated() -> None:
    async with running(tone(slots=1, queue=0)) as service:
        for _ in range(3):
            speech = service.open(UNPACED)
            speech.write("word " * 100)
            assert isinstance(await speech.next(), Audio)
            await speech.cancel()
            await speech.cancel()
            assert service.speaking == 0
            event = typed(Finished, await speech.next())
            assert event.reason == "cancelled"
            assert await speech.next() is None


async def test_a_failed_stream_raises_where_its_audio_is_read() -> None:
    async with running(tone(slots=1, queue=0)) as service:
        first, second = service.open(UNPACED), service.open(UNPACED)
        with pytest.raises(Exception, match="slots are in use"):
            async for _ in second:
                pass
        await first.cancel()


LANGUAGES = {
    "auto": "auto",
    "GERMAN": "de",
    "de": "de",
    "de_AT": "de",
    "chinese": "cmn",
    "english": "en-us",
    "fr-XX": "fr-fr",
}


@pytest.mark.node
async def test_languages_are_accepted_by_name_and_code() -> None:
    async with running(tone(engine="espeak")) as service:
        found = {name: service.resolve(SpeechOptions(language=name)).options.language for name in LANGUAGES}
    assert found == LANGUAGES


async def test_voices_are_available_from_adding_to_deleting(tmp_path: Path) -> None:
    """Fails if the first `Routing` is kept."""
    library = VoiceLibrary(tmp_path / "voices", limit=10)
    async with running(with_models(Model("design", "designed", "/d")), library=library) as service:
        for _ in range(2):
            with pytest.raises(UnknownVoice):
                service.resolve(SpeechOptions(voice="old"))
            library.add(StoredVoice(name="old", kind="designed", prompt="a calm old man"), {})
            assert service.resolve(SpeechOptions(voice="old")).options.model == "design"
            assert service.routing is service.routing
            library.delete("old")


async def test_draining_waits_for_open_streams_of_every_engine_and_refuses_new_ones() -> None:
    async with running(tone(), tone()) as service:
        first, second = service.open(UNPACED), service.open(UNPACED)
        drain = asyncio.create_task(service.drain())
        await first.cancel()
        await asyncio.sleep(0.01)
        assert not drain.done()
        with pytest.raises(Draining):
            service.open(UNPACED)
        second.write("word")
        second.end()
        await drain
        assert service.speaking == 0


async def test_draining_can_be_cancelled() -> None:
    async with running() as service:
        service.open(UNPACED)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await service.drain()
        assert service.speaking == 1


async def test_closing_ends_open_streams() -> None:
    async with running() as service:
        speech = service.open(UNPACED)
        await service.close()
        assert speech.finished is not None
        await speech.cancel()


# ---------------------------------------------------------------- several engines


def counts(service: SpeechService) -> list[int]:
    """Open requests of each engine."""
    return [engine.speaking for engine in service.engines]


async def finished(speech: Utterance) -> Finished[int]:
    """The end of a request."""
    await until(lambda: speech.finished is not None)
    return present(speech.finished)


async def test_streams_go_to_the_least_loaded_engine_and_stay_there() -> None:
    """Load is a share of the slots and is current: no heartbeat comes in between."""
    async with running(tone(slots=1), tone(slots=3)) as service:
        speeches = [service.open(UNPACED) for _ in range(4)]
        assert counts(service) == [1, 3]
        await speeches[0].cancel()
        assert counts(service) == [0, 3]
        speeches.append(service.open(UNPACED))
        assert counts(service) == [1, 3]
        for speech in speeches[1:]:
            speech.write("a few words")
            speech.end()
            assert (await finished(speech)).reason == "end"
            assert speech.received == len("afewwords") * 60 * 24
        assert counts(service) == [0, 0]


async def test_a_stream_is_refused_only_when_every_engine_is_full() -> None:
    """Fails if only shares are compared."""
    async with running(tone(slots=1, queue=3), tone(slots=4, queue=0)) as service:
        speeches = [service.open(UNPACED) for _ in range(8)]
        await asyncio.sleep(0.05)  # time for a refusal to arrive
        assert [speech.finished for speech in speeches] == [None] * 8
        one_more = await finished(service.open(UNPACED))
        assert (one_more.code, counts(service)) == ("at_capacity", [4, 4])


async def test_a_lost_engine_ends_its_own_streams_and_takes_no_more() -> None:
    """The other engines go on; the service is lost when the last engine is."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the in-process engine reports its crash there
    async with running(tone(), tone()) as service:
        spoiled, sound = service.open(SpeechOptions(lead_ms=None, instructions="fault:crash@1")), service.open(UNPACED)
        beside = service.open(UNPACED)
        assert counts(service) == [2, 1]
        for speech in (spoiled, beside, sound):
            speech.write("word " * 5)
        for speech in (spoiled, beside):
            assert (await finished(speech)).code == "engine_lost"
        assert [engine.state for engine in service.engines] == ["failed", "ready"]
        assert (service.alive, service.ready, service.failed) == (True, True, False)
        later = [service.open(UNPACED) for _ in range(3)]
        assert counts(service) == [0, 4]
        sound.end()
        assert (await finished(sound)).reason == "end"
        later[0].write("word")
        crash = service.open(SpeechOptions(lead_ms=None, instructions="fault:crash@0"))
        crash.write("word")
        for speech in (*later, crash):
            assert (await finished(speech)).code == "engine_lost"
        assert (service.alive, service.ready, service.failed, service.speaking) == (False, False, True, 0)
        with pytest.raises(EngineLost):
            service.open(UNPACED)


async def test_an_engine_that_is_not_ready_gets_streams_only_when_there_is_no_other() -> None:
    """It would fail requests so quickly that it attracts all of them. Fails if every live engine is eligible."""
    async with running(mute, tone()) as service:
        assert [engine.state for engine in service.engines] == ["starting", "ready"]
        assert service.ready
        for _ in range(3):
            service.open(UNPACED)
        assert counts(service) == [0, 3]


async def test_a_failed_stream_is_named_in_the_log() -> None:
    with logged(filter="agent_tts.speech.engine_handle") as said:
        async with running() as service:
            speech = service.open(SpeechOptions(lead_ms=None, instructions="fault:raise@2"))
            speech.write("word " * 10)
            await until(lambda: speech.finished is not None)
    assert [line.partition(": ")[0] for line in said] == [f"request 0/{speech.request_id} failed"]
