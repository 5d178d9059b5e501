"""One of several engine processes is killed, hangs or does not start: its requests end, and the others continue."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
from loguru import logger

from agent_tts.config.settings import Settings
from agent_tts.errors import EngineLost, SettingsError
from agent_tts.ipc.engine_process import BACKOFF_S, EngineProcess, engine_processes
from agent_tts.messages import Audio, Finished
from agent_tts.options import SpeechOptions
from agent_tts.speech.service import SpeechService
from agent_tts.speech.utterance import Utterance
from tests.events_of import events_of
from tests.fault.test_shutdown import is_running, node_process
from tests.ipc.listener import tone_settings
from tests.support import running_node, until
from tests.wire import wire

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")

TEXT = "a sentence that is long enough to be killed in the middle of it"
LEAD_MS = 800
BACK_S = 20.0


@asynccontextmanager
async def several(engines: int = 2, **values: Any) -> AsyncIterator[tuple[SpeechService, list[EngineProcess]]]:
    """A service with several engine processes, each of which has spoken."""
    service = SpeechService(engine_processes(tone_settings(engines=engines, **values)))
    await service.start()
    try:
        links = [engine.client for engine in service.engines]
        await until(lambda: all(engine.ready for engine in service.engines), BACK_S)
        yield service, links  # type: ignore[misc]
    finally:
        await service.close()


def kill(link: EngineProcess) -> None:
    assert link.pid is not None
    os.kill(link.pid, signal.SIGKILL)


def begin(service: SpeechService, **options: Any) -> Utterance:
    """A request with all of its text."""
    speech = service.open(SpeechOptions(**{"seed": 1, "lead_ms": LEAD_MS, **options}))
    speech.write(TEXT)
    speech.end()
    return speech


class Hearing:
    """Listens to a request."""

    def __init__(self, service: SpeechService, **options: Any) -> None:
        speech = begin(service, **options)
        # The engine of the request, which has a slot at once.
        self.engine = service.engines[speech.engine]
        self.pcm = b""
        # Every `Finished` received.
        self.ends: list[Finished[str]] = []
        # Silence between frames for a listener who plays from the first one on.
        self.gaps_s = 0.0
        self.task = asyncio.create_task(self._hear(speech), name="listener")

    async def _hear(self, speech: Utterance) -> None:
        clock, heard_until = asyncio.get_running_loop().time, None
        async with asyncio.timeout(30):
            async for event in events_of(speech):
                if isinstance(event, Finished):
                    self.ends.append(event)
                elif isinstance(event, Audio):
                    now = clock()
                    heard_until = now if heard_until is None else heard_until
                    self.gaps_s += max(0.0, now - heard_until)
                    heard_until = max(now, heard_until) + len(event.payload) / 48_000
                    self.pcm += event.payload


async def whole(service: SpeechService) -> bytes:
    """All audio of one undisturbed request."""
    hearing = Hearing(service, lead_ms=None)
    await hearing.task
    assert hearing.ends[0].reason == "end"
    return hearing.pcm


def check(hearings: list[Hearing], expected: bytes, lost: set[int]) -> None:
    """Requests on the engines `lost` end once, with an error and a prefix of the audio. Others have no gap."""
    for hearing in hearings:
        [end] = hearing.ends
        if hearing.engine.number in lost:
            assert (end.reason, end.code) == ("error", "engine_lost")
            assert expected.startswith(hearing.pcm)
            assert len(hearing.pcm) < len(expected)
        else:
            assert (end.reason, end.code) == ("end", None)
            assert hearing.pcm == expected
            assert hearing.gaps_s == 0.0


@pytest.mark.parametrize("victim", [0, 1])
async def test_an_engine_killed_under_load_ends_its_own_requests_and_restarts(victim: int) -> None:
    """The other engine's requests are complete without a gap, and new requests go there meanwhile.

    Mutation: with `fail_all` for every engine in `_on_lost`, the other engine's requests end too.
    """
    async with several() as (service, links):
        expected = await whole(service)
        pids = [link.pid for link in links]
        hearings = [Hearing(service) for _ in range(32)]
        assert [engine.speaking for engine in service.engines] == [16, 16]
        await asyncio.sleep(0.5)
        kill(links[victim])
        await until(lambda: not service.engines[victim].alive)
        assert service.ready
        assert service.engines[victim].speaking == 0
        hearings += [Hearing(service) for _ in range(4)]
        assert service.engines[1 - victim].speaking == 20
        await asyncio.gather(*(hearing.task for hearing in hearings))
        check(hearings, expected, {victim})
        await until(lambda: service.engines[victim].ready, BACK_S)
        assert [link.pid == pid for link, pid in zip(links, pids, strict=True)] == [victim == 1, victim == 0]
        again = [Hearing(service) for _ in range(4)]
        assert [engine.speaking for engine in service.engines] == [2, 2]
        await asyncio.gather(*(hearing.task for hearing in again))
        check(again, expected, set())


async def test_a_hung_engine_is_replaced_while_the_other_continues() -> None:
    """Its own requests end, and the other engine's requests are not delayed."""
    async with several(timeouts={"engine_heartbeat_s": 1.0}) as (service, links):
        expected = await whole(service)
        pid = links[0].pid
        hearings = [Hearing(service, instructions="fault:hang_gil@3"), Hearing(service), Hearing(service)]
        assert [hearing.engine.number for hearing in hearings] == [0, 1, 0]
        await asyncio.gather(*(hearing.task for hearing in hearings))
        check(hearings, expected, {0})
        await until(lambda: service.engines[0].ready, BACK_S)
        assert links[0].pid != pid


async def test_when_all_engines_are_killed_all_requests_end_and_all_engines_restart() -> None:
    async with several(3) as (service, links):
        expected = await whole(service)
        hearings = [Hearing(service) for _ in range(9)]
        await asyncio.sleep(0.3)
        for link in links:
            kill(link)
        await asyncio.gather(*(hearing.task for hearing in hearings))
        check(hearings, expected, {0, 1, 2})
        assert not service.ready
        with pytest.raises(EngineLost):
            begin(service)
        await until(lambda: all(engine.ready for engine in service.engines), BACK_S)
        assert await whole(service) == expected


async def test_an_engine_that_dies_too_often_stays_down_and_the_node_runs_on() -> None:
    """Mutation: with `any` in `SpeechService.failed` the node would end."""
    async with several() as (service, links):
        expected = await whole(service)
        for _ in range(len(BACKOFF_S) + 1):
            await until(lambda: links[0].alive, BACK_S)
            kill(links[0])
            await until(lambda: not links[0].alive)
        await until(lambda: links[0].failed.is_set())
        assert [engine.state for engine in service.engines] == ["failed", "ready"]
        assert not service.failed
        assert await whole(service) == expected


async def test_an_engine_that_cannot_start_ends_the_others_and_its_error_is_raised() -> None:
    """The leak gate finds no process of the others; the error is the same as with a single engine."""
    bad = tone_settings(timeouts={"engine_start_s": 0.1})
    makers = [*engine_processes(tone_settings(engines=2)), *engine_processes(bad)]
    with pytest.raises(EngineLost, match=r"the engine did not start \(not ready within 0\.1 s\)"):
        await SpeechService(makers).start()
    wrong = Settings.model_validate({"engine": "espeak", "engines": 2, "espeak": {"voice": "zz"}})
    with pytest.raises(SettingsError, match=r"espeak\.voice"):
        await SpeechService(engine_processes(wrong)).start()


async def test_an_engine_that_fails_last_ends_the_running_ones() -> None:
    """Mutation: without `_stop` in `SpeechService.start` the leak gate finds their processes."""

    class Late(EngineProcess):
        """Fails once the others are up."""

        async def start(self) -> None:
            await until(lambda: service.engines[0].alive and service.engines[1].alive, BACK_S)
            raise EngineLost("it is too late")

    service = SpeechService([*engine_processes(tone_settings(engines=2)), partial(Late, tone_settings())])
    with pytest.raises(EngineLost, match="too late"):
        await service.start()
    assert not service.alive


async def test_cancelling_the_start_leaves_no_process() -> None:
    service = SpeechService(engine_processes(tone_settings(engines=2)))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await service.start()


async def test_a_drain_waits_for_the_requests_of_all_engines() -> None:
    """An engine killed meanwhile ends its own requests."""
    async with several() as (service, links):
        expected = await whole(service)
        hearings = [Hearing(service) for _ in range(6)]
        drain = asyncio.create_task(service.drain())
        await asyncio.sleep(0.2)
        kill(links[1])
        await drain
        await asyncio.gather(*(hearing.task for hearing in hearings))
        check(hearings, expected, {1})


async def test_the_log_names_the_engine() -> None:
    lines: list[str] = []
    sink = logger.add(lines.append, level="WARNING", format="{message}")
    try:
        async with several() as (service, links):
            pid = links[1].pid
            kill(links[1])
            await until(lambda: any("is lost: it closed its pipe" in line for line in lines))
            await until(lambda: service.engines[1].ready, BACK_S)
    finally:
        logger.remove(sink)
    assert any(line.startswith(f"engine 1 process {pid} (signal 9)") for line in lines)


# ---------------------------------------------------------------- a whole node


@pytest.mark.parametrize("engine", ["tone", "espeak"])
async def test_a_node_shows_each_engine_and_is_ready_while_one_is_up(engine: str) -> None:
    async with running_node(engine=engine, engines=2, slots=3) as node, httpx.AsyncClient(base_url=node.url) as http:
        engines, value = node.node.service.engines, node.node.metrics.registry.get_sample_value
        await until(lambda: all(each.ready for each in engines), BACK_S)
        assert (await http.get("/health")).json() == {"status": "ok", "engines": ["ready", "ready"]}
        assert value("agent_tts_slots") == 6
        async with wire(node.ws_url) as peer:
            for number in range(4):
                await peer.say(f"t{number}", "Several of them are speaking, and one is not going to end. " * 5)
                await peer.until_audio(f"t{number}")
            await until(lambda: value("agent_tts_slots_used") == 4, BACK_S)
            used = [value("agent_tts_engine_slots_used", {"engine": number}) for number in ("0", "1")]
            assert used == [2, 2]
            link: Any = engines[0].client
            kill(link)
            ends = [(await peer.until("context.done", f"t{number}"))["reason"] for number in (0, 2)]
            assert ends == ["error", "error"]
            health = await http.get("/health")
            assert (health.status_code, health.json()["engines"][1]) == (200, "ready")
            assert (await http.get("/ready")).status_code == 200
            for number in (1, 3):
                await peer.send("context.cancel", context_id=f"t{number}")
                assert (await peer.until("context.done", f"t{number}"))["reason"] == "cancelled"
        await until(lambda: engines[0].ready, BACK_S)
        starts = [value("agent_tts_engine_starts_total", {"engine": number}) for number in ("0", "1")]
        assert starts == [2, 1]
        assert value("agent_tts_slots") == 6


async def test_a_node_ends_when_all_its_engines_die_too_often() -> None:
    async with node_process("--engine", "tone", "--set", "engines=2") as node:
        await node.wait_ready()
        pids = node.engines()
        assert len(pids) == 2
        async with asyncio.timeout(60):
            while node.process.returncode is None:
                for child in node.engines():
                    os.kill(child, signal.SIGKILL)
                await asyncio.sleep(0.05)
        assert await node.exit_code(1.0) == 1
        assert not any(map(is_running, pids))


async def test_sigterm_lets_the_requests_of_every_engine_finish() -> None:
    async with node_process("--engine", "tone", "--set", "engines=2") as node:
        await node.wait_ready()
        pids = node.engines()
        async with wire(node.ws_url) as peer:
            for number in range(4):
                await peer.say(f"t{number}", TEXT, seed=3, lead_ms=200)
                await peer.until_audio(f"t{number}")
            node.process.send_signal(signal.SIGTERM)
            for number in range(4):
                assert (await peer.until("context.done", f"t{number}"))["reason"] == "end"
        assert await node.exit_code(10.0) == 0
        await until(lambda: not any(map(is_running, pids)), 2.0)
