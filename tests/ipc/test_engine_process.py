"""The supervisor: it restarts a dead engine and leaves no resources behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from agent_tts.ipc import engine_process as client
from agent_tts.ipc.engine_process import BACKOFF_S, STOP_S, EngineProcess
from agent_tts.messages import Audio, EnginePong, EngineReady
from agent_tts.system import processes
from tests.ipc.listener import Listener, engine_process, shadow_numpy, speak, tone_settings
from tests.support import logged, present

uvloop = pytest.importorskip("uvloop")
pytestmark = [pytest.mark.node, pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")]


def kill(link: EngineProcess) -> None:
    """Kill the running engine process with SIGKILL, as the kernel's out-of-memory killer does."""
    os.kill(present(link.pid), signal.SIGKILL)


async def dies_and_comes_back() -> None:
    """The engine speaks, is killed, and speaks the same again."""
    async with engine_process(tone_settings()) as (link, listener):
        speak(link, 1, seed=5)
        await listener.until(lambda: listener.finished(1) is not None)
        kill(link)
        await listener.until(lambda: bool(listener.losses))
        assert not link.alive
        await listener.hellos(2)
        assert link.alive
        speak(link, 2, seed=5)
        await listener.until(lambda: listener.finished(2) is not None)
        assert listener.pcm(1) == listener.pcm(2) != b""
    assert listener.losses == ["it closed its pipe"]
    assert not link.failed.is_set()


async def hangs_and_is_closed() -> None:
    """The engine is closed while a step hangs."""
    async with engine_process(tone_settings()) as (link, listener):
        speak(link, 1, instructions="fault:hang_gil@1")
        await listener.until(lambda: bool(listener.all(Audio)))
    assert str(link._child).endswith("(signal 9)")
    assert listener.losses == []


async def stands_still() -> None:
    """The front is blocked for longer than the heartbeat and then finds the answer in the pipe: the engine stays alive.

    Mutation: with a clock instead of counted beats a healthy engine is killed.
    """
    async with engine_process(tone_settings(timeouts={"engine_heartbeat_s": 0.5})) as (_, listener):
        for _ in range(2):
            seen = len(listener.all(EnginePong))
            time.sleep(1.0)  # noqa: ASYNC251 - blocks the event loop on purpose
            await listener.until(lambda seen=seen: len(listener.all(EnginePong)) > seen + 2)
        assert listener.losses == []


@pytest.mark.parametrize(
    "scenario", [dies_and_comes_back, pytest.param(hangs_and_is_closed, marks=pytest.mark.slow), stands_still]
)
def test_on_uvloop(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    """It watches processes in another way than asyncio's own loop, on which the other tests run."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


@pytest.mark.parametrize(
    ("pauses_s", "within_s"), [((0.0, 0.1), 60.0), pytest.param((0.0, 0.0), 0.2, marks=pytest.mark.slow)]
)
async def test_a_loss_is_reported_once_for_each_life_and_too_many_are_final(
    pauses_s: tuple[float, ...], within_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many deaths within a minute as there are pauses are allowed. Each life is one `EngineReady`, then one loss.

    The time of starts does not separate deaths: an engine that loads a model for longer than deaths count would
    otherwise die and come back for ever.
    """
    monkeypatch.setattr(client, "BACKOFF_S", pauses_s)
    monkeypatch.setattr(processes, "DEATHS_WITHIN_S", within_s)
    async with engine_process(tone_settings()) as (link, listener):
        for life in range(1, len(pauses_s) + 2):
            await listener.hellos(life)
            assert not link.failed.is_set()
            kill(link)
        async with asyncio.timeout(5):
            await link.failed.wait()
        assert not link.alive
        lives = [entry for entry in listener.seen if isinstance(entry, EngineReady | str)]
        assert [type(entry) for entry in lives] == [EngineReady, str] * (len(pauses_s) + 1)


@pytest.mark.slow
async def test_a_failed_restart_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed restart counts as a death but is reported with the loss before it."""
    async with engine_process(tone_settings()) as (link, listener):
        monkeypatch.setenv("PYTHONPATH", shadow_numpy(tmp_path, "raise ImportError('it was there before')"))
        kill(link)
        async with asyncio.timeout(20):
            await link.failed.wait()
        assert listener.losses == ["it closed its pipe"]
        assert len(listener.all(EngineReady)) == 1


async def test_a_process_that_cannot_be_spawned_is_no_death(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The machine may lack descriptors for longer than five deaths take. Mutation: counted, it ends the node."""
    monkeypatch.setattr(client, "RESPAWN_S", 0.01)
    with logged("ERROR") as lines:
        async with engine_process(tone_settings()) as (link, listener):
            with monkeypatch.context() as without:
                without.setattr(sys, "executable", str(tmp_path / "missing"))
                kill(link)
                async with asyncio.timeout(20):
                    while len(lines) < len(BACKOFF_S) + 3:
                        await asyncio.sleep(0.005)  # a failed spawn has no event
            await listener.hellos(2)
            assert not link.failed.is_set()
    assert all("cannot be spawned: No such file or directory; trying again" in line for line in lines)


async def test_close_during_a_restart_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new engine is still loading."""
    async with engine_process(tone_settings()) as (link, listener):
        monkeypatch.setenv("PYTHONPATH", shadow_numpy(tmp_path, "import time; time.sleep(60)"))
        first = link.pid
        kill(link)
        async with asyncio.timeout(5):
            while link.pid in (None, first):
                await asyncio.sleep(0.005)  # a spawn has no event
    assert len(listener.all(EngineReady)) == 1


async def test_cancelling_close_kills_at_once() -> None:
    """Without the two seconds for a hung engine, and without a process or task left."""
    listener = Listener()
    link = EngineProcess(tone_settings(), listener.on_events, listener.on_lost)
    await link.start()
    speak(link, 1, instructions="fault:hang@1")
    await listener.until(lambda: bool(listener.all(Audio)))
    clock = asyncio.get_running_loop().time
    start = clock()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await link.close()
    assert clock() - start < STOP_S / 2
    assert str(link._child).endswith("(signal 9)")


async def test_no_event_follows_close_which_may_be_repeated_and_come_before_the_start() -> None:
    """Including events already in the pipe. Mutation: without the guard on the pipe its events are emitted."""
    listener = Listener()
    link = EngineProcess(tone_settings(), listener.on_events, listener.on_lost)
    await link.close()
    await link.start()
    speak(link, 1, "long enough to fill the pipe " * 20)
    await listener.until(lambda: bool(listener.all(Audio)))
    time.sleep(0.2)  # noqa: ASYNC251 - the pipe fills while the loop is blocked
    seen = len(listener.seen)
    await link.close()
    assert len(listener.seen) == seen
    await link.close()
    assert not link.alive
