"""The speech response without a socket."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

from agent_tts.engine_info import FRAME_SAMPLES
from agent_tts.serve.access.fair_queue import SLICE_S
from agent_tts.serve.connections import CONNECTION
from agent_tts.serve.session import SLICE_CHARS
from agent_tts.speech.utterance import Utterance
from tests.fault.test_cancellation import TEXT, Link, cancelled_everywhere, local_node
from tests.support import passes, until


class Exchange:
    """One request over ASGI from a client that stays to the end."""

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
            "extensions": {CONNECTION: Link()},
        }

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        if self._body is None:
            await asyncio.get_running_loop().create_future()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: dict[str, Any]) -> None:
        await asyncio.sleep(0)  # awaits, as on a real socket
        self.sent.append(message)


async def test_a_cancel_at_any_await_leaves_no_state() -> None:
    """Guards the `finally` of `_speak`, the one around it, and the release in `Guard.admit`."""
    async with local_node() as (node, app):

        async def run() -> None:
            # Longer than the engine's window: without a cancel it would stay open.
            exchange = Exchange(input=2 * TEXT + "nine ten", stream_format="sse", response_format="wav")
            await app(exchange.scope, exchange.receive, exchange.send)

        async def check() -> None:
            await until(lambda: node.service.speaking == 0)
            assert not node.guard.sessions
            active = node.metrics.registry.get_sample_value("agent_tts_contexts_active", {"carrier": "http"})
            assert active in (0, None)

        assert await cancelled_everywhere(run, check) > 50


class Dam:
    """A `send` that blocks until it is opened, and then takes everything at once."""

    def __init__(self, sent: list[dict[str, Any]]) -> None:
        self._sent = sent
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def send(self, message: dict[str, Any]) -> None:
        self._sent.append(message)
        if message["type"] == "http.response.body":
            self.reached.set()
            await self.open.wait()


async def test_audio_stays_in_the_window_while_the_client_does_not_read() -> None:
    """When it is opened, the event loop still turns at least once for each frame, so that other tasks run."""
    async with local_node() as (node, app):
        exchange = Exchange(input="word " * 100, response_format="pcm")
        dam = Dam(exchange.sent)
        work = asyncio.create_task(app(exchange.scope, exchange.receive, dam.send))
        await dam.reached.wait()
        window = node.settings.limits.window_frames
        (speech,) = node.service.engines[0]._open.values()
        assert isinstance(speech, Utterance)
        await until(lambda: speech.received >= window * FRAME_SAMPLES)
        await passes(100)
        assert speech.received <= (window + 1) * FRAME_SAMPLES
        node.fair_queue.clock = itertools.count(step=SLICE_S).__next__  # each piece of work takes a whole slice
        dam.open.set()
        most, seen = 0, len(exchange.sent)
        while not work.done():
            await asyncio.sleep(0)
            most, seen = max(most, len(exchange.sent) - seen), len(exchange.sent)
        assert seen > window
        assert most <= 2


async def test_a_long_text_is_read_in_slices(slices: list[int]) -> None:
    """Its speech begins before all of it is read. Guards the loop in `SpeechResponse._send`."""
    async with local_node() as (_, app):
        exchange = Exchange(input="word " * 200, response_format="pcm")
        await app(exchange.scope, exchange.receive, exchange.send)
    assert slices[-4:] == [SLICE_CHARS, SLICE_CHARS, SLICE_CHARS, 1_000 - 3 * SLICE_CHARS]
    assert exchange.sent[0]["status"] == 200
    assert exchange.sent[-1] == {"type": "http.response.body"}


async def test_a_text_is_read_on_though_nothing_is_heard_of_its_first_slice() -> None:
    """That a context has started is an event, which `Utterance.next` does not return. Mutation: it is awaited then."""
    word = "é" * 30
    async with local_node() as (_, app):
        exchange = Exchange(input="é" * 2_000, lexicon={word: {"alias": "x", "whole_word": False}})
        await app(exchange.scope, exchange.receive, exchange.send)
    assert exchange.sent[0]["status"] == 200
