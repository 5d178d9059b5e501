"""One of several engine processes is killed, hangs or does not start: its requests end, and the others continue."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import Any

import httpx
import pytest

from agent_tts.config.settings import Settings
from agent_tts.errors import EngineLost, SettingsError
from agent_tts.ipc.engine_process import EngineProcess, engine_processes
from agent_tts.speech.service import SpeechService
from tests.fault.engines import BACK_S, Hearing, begin, check, kill, several, whole
from tests.ipc.listener import tone_settings
from tests.support import logged, present, running_node, until
from tests.wire import wire

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


async def test_an_engine_killed_under_load_ends_its_own_requests_and_restarts() -> None:
    """The other engine's requests are complete, and new requests go there meanwhile. The log names the engine.

    A drain waits for the requests of all engines, also where one is killed meanwhile.

    Mutation: with `fail_all` for every engine in `_on_lost`, the other engine's requests end too.
    """
    with logged() as lines:
        async with several() as (service, links):
            expected = await whole(service)
            first, second = (link.pid for link in links)
            hearings = [Hearing(begin(service)) for _ in range(16)]
            assert [engine.speaking for engine in service.engines] == [8, 8]
            await until(lambda: all(hearing.pcm for hearing in hearings), BACK_S)
            kill(links[1])
            await until(lambda: not service.engines[1].alive, BACK_S)
            assert service.ready
            assert service.engines[1].speaking == 0
            hearings += [Hearing(begin(service)) for _ in range(4)]
            assert service.engines[0].speaking == 12
            await asyncio.gather(*(hearing.task for hearing in hearings))
            check(hearings, expected, {1})
            await until(lambda: service.engines[1].ready, BACK_S)
            assert links[0].pid == first
            assert links[1].pid != second
            again = [Hearing(begin(service)) for _ in range(4)]
            assert [engine.speaking for engine in service.engines] == [2, 2]
            await asyncio.gather(*(hearing.task for hearing in again))
            check(again, expected, set())
            drained = [Hearing(begin(service)) for _ in range(6)]
            drain = asyncio.create_task(service.drain())
            await until(lambda: all(hearing.pcm for hearing in drained), BACK_S)
            kill(links[1])
            await drain
            await asyncio.gather(*(hearing.task for hearing in drained))
            check(drained, expected, {1})
    assert any(line.startswith(f"engine 1 process {second} (signal 9) is lost: it closed its pipe") for line in lines)


@pytest.mark.slow
async def test_an_engine_that_cannot_start_ends_the_others_and_its_error_is_raised() -> None:
    """The leak gate finds no process of the others; the error is the same as with a single engine."""
    bad = tone_settings(timeouts={"engine_start_s": 0.1})
    makers = [*engine_processes(tone_settings(engines=2)), *engine_processes(bad)]
    with pytest.raises(EngineLost, match=r"the engine did not start \(not ready within 0\.1 s\)"):
        await SpeechService(makers).start()
    wrong = Settings.model_validate({"engine": "espeak", "engines": 2, "espeak": {"voice": "zz"}})
    with pytest.raises(SettingsError, match=r"espeak\.voice"):
        await SpeechService(engine_processes(wrong)).start()


@pytest.mark.slow
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


# ---------------------------------------------------------------- a whole node


@pytest.mark.slow
async def test_a_node_shows_each_engine_and_is_ready_while_one_is_up() -> None:
    async with running_node(engine="espeak", engines=2, slots=3) as node, httpx.AsyncClient(base_url=node.url) as http:
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


async def test_a_node_ends_with_1_when_none_of_its_engines_can_be_kept_running() -> None:
    """When that is, and that the others go on until then: `tests/ipc/test_engine_process.py` and above."""
    with logged("ERROR") as lines:
        async with running_node() as node:
            present(node.node.service.engines[0].client).failed.set()
            await until(lambda: node.server.exit_code == 1)
    assert lines == ["no engine can be kept running: the node exits\n"]
