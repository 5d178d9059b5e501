"""The engine loop inside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agent_tts.engine.factory import create_loop
from agent_tts.messages import (
    Append,
    Audio,
    End,
    EnginePing,
    EnginePong,
    EngineReady,
    Finished,
    Open,
)
from agent_tts.options import EngineOptions
from tests.in_process import InProcessEngine
from tests.ipc.listener import Listener, tone_settings


@asynccontextmanager
async def local_engine() -> AsyncIterator[tuple[InProcessEngine, Listener]]:
    """A tone engine in this event loop."""
    listener = Listener()
    loop = create_loop(tone_settings(), asyncio.get_running_loop().time)
    link = InProcessEngine(loop, listener.on_events, listener.on_lost)
    await link.start()
    try:
        yield link, listener
    finally:
        await link.close()


async def spoken(**options: Any) -> Listener:
    """All events of one request."""
    async with local_engine() as (link, listener):
        link.send(Open(1, EngineOptions(**options)))
        link.send(Append(1, "some words"))
        link.send(End(1))
        await listener.until(lambda: listener.finished(1) is not None)
    return listener


async def test_it_starts_and_speaks() -> None:
    """The same promises as of an engine process."""
    listener = await spoken(lead_ms=None)
    assert isinstance(listener.seen[0], EngineReady)
    assert isinstance(listener.seen[-1], Finished)
    assert listener.seen[-1].reason == "end"
    assert listener.losses == []


async def test_it_is_deterministic() -> None:
    """The same commands give the same events."""
    one, other = [await spoken(lead_ms=None, seed=3) for _ in range(2)]
    assert one.all(Audio) == other.all(Audio) != []


async def test_a_paced_request_runs_when_it_is_due() -> None:
    """Nothing runs between two frames, and no command is needed to continue."""
    clock = asyncio.get_running_loop().time
    start = clock()
    listener = await spoken(lead_ms=80)
    frames = len(listener.all(Audio))
    assert frames > 3
    assert clock() - start > (frames - 3) * 0.080


async def test_it_answers_pings_and_drops_commands_while_not_alive() -> None:
    """Nothing happens before the start and after the close, as with a process."""
    async with local_engine() as (link, listener):
        assert link.alive
        link.send(EnginePing(4))
        await listener.until(lambda: bool(listener.all(EnginePong)))
    link.send(EnginePing(5))
    await asyncio.sleep(0)
    assert [pong.nonce for pong in listener.all(EnginePong)] == [4]
    assert not link.alive


async def test_no_turn_follows_the_close() -> None:
    """Mutation: without cancelling the turn, the closed engine is stepped."""
    async with local_engine() as (link, listener):
        link.send(EnginePing(4))
        await link.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert listener.all(EnginePong) == []


async def test_an_exception_is_a_loss() -> None:
    """It is reported once, and the exception goes to the event loop's handler."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with local_engine() as (link, listener):
        link.send(Open(1, EngineOptions(instructions="fault:crash@0")))
        link.send(Append(1, "word "))
        link.send(End(1))
        await listener.until(lambda: bool(listener.losses))
        assert listener.losses == ["RuntimeError"]
        assert not link.alive
        assert link.failed.is_set()
    assert [type(error["exception"]) for error in errors] == [RuntimeError]
