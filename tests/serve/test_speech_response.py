"""The response that speaks, without a socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agent_tts.serve.writer import TRANSPORT
from tests.fault.test_cancellation import TEXT, Transport, cancelled_everywhere, local_node
from tests.support import until


class Exchange:
    """One request over ASGI, from a client that stays until it has its answer."""

    def __init__(self, **fields: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        self._body: bytes | None = json.dumps({"input": TEXT, **fields}).encode()
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "method": "POST",
            "path": "/v1/audio/speech",
            "headers": [(b"host", b"localhost")],
            "query_string": b"",
            "extensions": {TRANSPORT: Transport()},
        }

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        if self._body is None:
            await asyncio.get_running_loop().create_future()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: dict[str, Any]) -> None:
        await asyncio.sleep(0)  # an await, as on a real socket
        self.sent.append(message)


async def test_cancelled_at_every_await_it_leaves_nothing() -> None:
    """Guards the `finally` of `_speak`, the one around it, and the release in `Guard.admit`."""
    async with local_node() as (node, app):

        async def run() -> None:
            # Longer than the engine's window: left alone, it would stay open.
            exchange = Exchange(input=3 * TEXT, stream_format="sse", response_format="opus")
            await app(exchange.scope, exchange.receive, exchange.send)

        async def check() -> None:
            await until(lambda: node.service.speaking == 0)
            assert not node.guard._admitted
            active = node.metrics.registry.get_sample_value("agent_tts_contexts_active", {"carrier": "http"})
            assert active in (0, None)

        assert await cancelled_everywhere(run, check) > 50


async def test_others_get_their_turn_between_frames() -> None:
    """Frames that wait already are not encoded in one go: the event loop turns at least once for each."""
    async with local_node() as (_, app):
        exchange = Exchange(response_format="wav")

        async def send(message: dict[str, Any]) -> None:
            exchange.sent.append(message)  # as a socket with room: at once

        work = asyncio.create_task(app(exchange.scope, exchange.receive, send))
        most = seen = 0
        while not work.done():
            await asyncio.sleep(0)
            most, seen = max(most, len(exchange.sent) - seen), len(exchange.sent)
        assert seen > 20
        assert most <= 2


async def test_a_frame_is_sent_before_the_next_is_taken() -> None:
    """A client that takes nothing leaves the audio in the engine's window, not in this process."""
    async with local_node() as (node, app):
        exchange = Exchange(response_format="pcm", input="word " * 1_000)
        first = asyncio.Event()
        room = asyncio.Event()

        async def send(message: dict[str, Any]) -> None:
            exchange.sent.append(message)
            if message["type"] == "http.response.body":
                first.set()
                await room.wait()

        work = asyncio.create_task(app(exchange.scope, exchange.receive, send))
        await first.wait()
        window = node.settings.limits.window_frames
        (speech,) = node.service._open.values()
        await until(lambda: speech.samples >= window * 1_920)
        for _ in range(100):
            await asyncio.sleep(0)
        assert speech.samples <= (window + 1) * 1_920
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
