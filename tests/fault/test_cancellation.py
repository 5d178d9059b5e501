"""F17: a coroutine of the node is cancelled at each of its awaits in turn and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent_tts.config.settings import Settings
from agent_tts.options import SpeechOptions
from agent_tts.serve.connections import CONNECTION
from agent_tts.serve.node import Node
from agent_tts.speech.service import SpeechService
from tests.support import app_with, in_this_loop, until

TEXT = "one two three four five six seven eight "
ENOUGH = 400  # awaits; every run has fewer


class CancelAt:
    """Awaits a coroutine and cancels it at its `at`-th suspension, as `Task.cancel` would."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int) -> None:
        self._coroutine = coroutine
        self._at = at

    def __await__(self) -> Generator[Any, Any, bool]:
        """Whether the coroutine was cancelled before its end."""
        steps = 0
        resume: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731
        cancelled = False
        while True:
            try:
                waits_for = resume()
            except StopIteration:
                return cancelled
            except asyncio.CancelledError:
                return True
            resume = lambda: self._coroutine.send(None)  # noqa: E731
            steps += 1
            if steps == self._at:
                cancelled = True
                if waits_for is not None:
                    waits_for._asyncio_future_blocking = False
                resume = lambda: self._coroutine.throw(asyncio.CancelledError())  # noqa: E731
                continue
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - the event loop's exception goes to the coroutine
                resume = lambda error=error: self._coroutine.throw(error)  # noqa: E731


class Transport:
    """The part of a TCP transport that the endpoint uses."""

    def __init__(self) -> None:
        self.aborted = False

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Transport:
        return self

    def fileno(self) -> int:
        return -1  # as a closed socket

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


class Link:
    """A connection that always has room after a turn of the event loop."""

    is_full = True
    has_left = False

    def __init__(self, on_text: Callable[[str], None] = lambda _: None) -> None:
        self.transport = Transport()
        self._on_text = on_text

    def recognise(self) -> None:
        pass

    def wait_for_player(self) -> None:
        pass

    async def drained(self) -> None:
        self.is_full = False
        await asyncio.sleep(0)

    def write(self, messages: Sequence[str | bytes]) -> None:
        self.is_full = True
        for message in messages:
            if isinstance(message, str):
                self._on_text(message)


class Channel:
    """An ASGI WebSocket in memory with a scripted client, which disconnects when its context is done."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._in: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._in.put_nowait({"type": "websocket.connect"})
        for message in messages:
            self._in.put_nowait({"type": "websocket.receive", "text": json.dumps(message)})
        self.scope = {
            "type": "websocket",
            "path": "/v1/tts/stream",
            "headers": [(b"host", b"localhost")],
            "query_string": b"",
            "subprotocols": [],
            "extensions": {CONNECTION: Link(self._hear)},
        }

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        return await self._in.get()

    async def send(self, message: dict[str, Any]) -> None:
        await asyncio.sleep(0)  # an await, as on a real socket

    def _hear(self, text: str) -> None:
        if '"context.done"' in text:
            self._in.put_nowait({"type": "websocket.disconnect", "code": 1000})


@asynccontextmanager
async def local_node() -> AsyncIterator[tuple[Node, Any]]:
    """A node whose engine runs in this event loop."""
    settings = Settings(engine="tone", lead_ms=60_000)
    app = app_with(settings, in_this_loop(settings))
    async with app.router.lifespan_context(app):
        node: Node = app.state.node
        await until(lambda: node.service.ready)
        yield node, app


async def cancelled_everywhere(
    run: Callable[[], Coroutine[Any, Any, Any]], check: Callable[[], Awaitable[None]]
) -> int:
    """Cancel `run` at its first, second, ... await until a run ends uncancelled. Returns the number of awaits."""
    for at in range(1, ENOUGH):
        before = asyncio.all_tasks()
        was_cancelled = await CancelAt(run(), at)
        await check()
        await until(lambda: asyncio.all_tasks() <= before)  # noqa: B023
        if not was_cancelled:
            return at - 1
    raise AssertionError("the coroutine has too many awaits")


async def test_f17_a_websocket_connection() -> None:
    """Guards the `finally` of `Connection.run` and the release in `Guard.admit`."""
    async with local_node() as (node, app):

        async def run() -> None:
            channel = Channel(
                {"type": "text.append", "context_id": "t", "text": TEXT},
                {"type": "context.flush", "context_id": "t", "flush_id": "f"},
                {"type": "context.end", "context_id": "t"},
            )
            await app(channel.scope, channel.receive, channel.send)

        async def check() -> None:
            await until(lambda: node.service.speaking == 0)
            assert not node.sessions
            assert not node.guard.sessions
            gauge = node.metrics.registry.get_sample_value("agent_tts_contexts_active", {"carrier": "websocket"})
            assert gauge in (0, None)

        assert await cancelled_everywhere(run, check) >= 4


@pytest.mark.parametrize("drain", [False, True])
async def test_f17_speech_and_service(drain: bool) -> None:
    service = SpeechService([in_this_loop(Settings(engine="tone"))])
    await service.start()
    await until(lambda: service.ready)

    async def run() -> None:
        service.draining = False
        speech = service.open(SpeechOptions(lead_ms=None))
        try:
            speech.write(TEXT)
            speech.end()
            if drain:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await service.drain()
            async for _ in speech:
                await asyncio.sleep(0)
        finally:
            await speech.cancel()

    async def check() -> None:
        await until(lambda: service.speaking == 0)

    assert await cancelled_everywhere(run, check) >= 2
    await service.close()


async def test_f17_cancelled_reads_lose_no_audio() -> None:
    """Guards the docstring of `Utterance.next`. Mutation: the `popleft` before an await."""
    service = SpeechService([in_this_loop(Settings(engine="tone"))])
    await service.start()
    whole = service.open(SpeechOptions(lead_ms=None))
    whole.write(TEXT)
    whole.end()
    expected = b"".join([pcm async for pcm in whole])
    speech = service.open(SpeechOptions(lead_ms=None))
    speech.write(TEXT)
    speech.end()
    got = b""
    while speech.done is None or speech.has_events:
        reader = asyncio.ensure_future(speech.next())
        await asyncio.sleep(0)
        reader.cancel()
        (event,) = await asyncio.gather(reader, return_exceptions=True)
        got += getattr(event, "payload", b"")
    assert got == expected
    await service.close()
