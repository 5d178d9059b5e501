"""Wyoming's own client classes, as Home Assistant uses them, with the adapter of a real node."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event, async_read_event
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped, SynthesizeVoice

from agent_tts.client.moving import Target
from agent_tts.errors import BadMessage, SettingsError
from agent_tts.integrations.wyoming import server, wire
from agent_tts.integrations.wyoming.server import WyomingConnection, WyomingServer, parse
from tests.examples import examples
from tests.serve.dialects.hearing import FIRST, LONG, NEXT, SECOND, VOICE, check_spoken
from tests.serve.dialects.pipecat_run import tokens
from tests.support import RunningNode, present, running_node, until

LIMIT_S = 20.0
ASKED = SynthesizeVoice(name=VOICE)


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    async with running_node(engine="espeak") as running:
        yield running


@asynccontextmanager
async def connected(node: RunningNode, key: str | None = None) -> AsyncIterator[AsyncTcpClient]:
    async with WyomingServer(Target(node.url, key)) as adapter:
        host, port = parse(await adapter.listen("tcp://127.0.0.1:0"))
        async with AsyncTcpClient(host, port, connect_timeout=LIMIT_S, read_timeout=LIMIT_S) as client:
            yield client


async def spoken(client: AsyncTcpClient, last: str = "audio-stop") -> bytes:
    """The audio up to an event of this type."""
    pcm = b""
    while (event := await client.read_event()) is not None and event.type != last:
        if AudioChunk.is_type(event.type):
            chunk = AudioChunk.from_event(event)
            assert (chunk.rate, chunk.width, chunk.channels) == (24_000, 2, 1)
            pcm += chunk.audio
        else:
            assert AudioStart.is_type(event.type) or AudioStop.is_type(event.type)
    assert event is not None
    return pcm


async def test_it_describes_its_voices(node: RunningNode) -> None:
    async with connected(node) as client:
        await client.write_event(Describe().event())
        event = present(await client.read_event())
        (program,) = Info.from_event(event).tts
        assert program.supports_synthesize_streaming
        assert "de" in {language for voice in program.voices for language in voice.languages}
        assert program.voices[0].name == node.node.service.routing.info.default_voice


async def test_two_whole_texts_are_spoken_one_after_the_other(node: RunningNode) -> None:
    async with connected(node) as client:
        for sentence in (FIRST, NEXT):
            await client.write_event(Synthesize(sentence, ASKED).event())
            check_spoken(await spoken(client), sentence)


async def test_text_is_spoken_while_it_arrives(node: RunningNode) -> None:
    """Home Assistant sends the whole text after its chunks; it must not be spoken again."""
    text = f"{FIRST} {SECOND}"
    async with connected(node) as client:
        await client.write_event(SynthesizeStart(ASKED).event())
        await client.write_event(SynthesizeChunk(f"{FIRST} ").event())
        assert AudioStart.is_type((await client.read_event() or Event("none")).type)
        first = await client.read_event()  # arrives before the rest of the text is sent
        assert first is not None
        for token in tokens(SECOND):
            await client.write_event(SynthesizeChunk(token).event())
        await client.write_event(Synthesize(text, ASKED).event())
        await client.write_event(SynthesizeStop().event())
        pcm = AudioChunk.from_event(first).audio + await spoken(client, SynthesizeStopped().event().type)
        check_spoken(pcm, FIRST, SECOND)


async def test_a_client_that_leaves_stops_its_speech(node: RunningNode) -> None:
    async with connected(node) as client:
        await client.write_event(SynthesizeStart().event())
        await client.write_event(SynthesizeChunk(LONG).event())
        await client.read_event()
        await client.disconnect()
        await until(lambda: node.node.service.speaking == 0)


async def test_a_ping_is_answered(node: RunningNode) -> None:
    async with connected(node) as client:
        await client.write_event(Ping("hello").event())
        event = present(await client.read_event())
        assert Pong.from_event(event).text == "hello"


async def test_text_that_cannot_be_spoken_is_an_error_and_closes_the_connection(node: RunningNode) -> None:
    for event, code in (
        (Synthesize("Hello.", SynthesizeVoice(name="nobody")).event(), "unknown_voice"),
        (Event("synthesize", {"text": 5}), "bad_message"),
    ):
        async with connected(node) as client:
            await client.write_event(event)
            while not Error.is_type((answer := await client.read_event() or Event("none")).type):
                assert answer.type != "none"
            assert Error.from_event(answer).code == code
            assert await client.read_event() is None


async def test_a_node_with_keys_needs_a_key() -> None:
    async with running_node(auth={"api_keys": ["right"]}) as node:
        async with connected(node, "right") as client:
            await client.write_event(Synthesize("Hello.").event())
            assert await spoken(client)
        async with connected(node, "wrong") as client:
            await client.write_event(Synthesize("Hello.").event())
            assert Error.is_type((await client.read_event() or Event("none")).type)


async def test_of_too_many_clients_the_one_that_does_nothing_gives_way(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: the newcomer is refused; then idle clients lock all others out. And: who speaks may give way."""
    monkeypatch.setattr(server, "MAX_CLIENTS", 2)
    async with WyomingServer(Target(node.url, None)) as adapter, AsyncExitStack() as stack:
        host, port = parse(await adapter.listen("tcp://127.0.0.1:0"))

        async def client() -> AsyncTcpClient:
            return await stack.enter_async_context(AsyncTcpClient(host, port, read_timeout=LIMIT_S))

        speaker, idle = await client(), await client()
        await speaker.write_event(SynthesizeStart().event())
        await speaker.write_event(SynthesizeChunk(FIRST).event())
        await speaker.read_event()
        await idle.write_event(Ping().event())
        assert await idle.read_event() is not None
        for _ in range(3):
            newcomer = await client()
            await newcomer.write_event(Ping().event())
            assert await newcomer.read_event() is not None
        with suppress(ConnectionError):
            assert await idle.read_event() is None
        await speaker.write_event(SynthesizeStop().event())
        assert await spoken(speaker, SynthesizeStopped().event().type)


async def test_events_of_one_client_are_taken_at_a_bounded_rate(node: RunningNode) -> None:
    """And the node is asked for its voices once, however often clients ask. Mutation: nothing waits for the bucket."""
    count, began = 100, asyncio.get_running_loop().time()
    async with connected(node) as client:
        for _ in range(count):
            await client.write_event(Describe().event())
            assert Info.is_type((await client.read_event() or Event("none")).type)
    took_s = asyncio.get_running_loop().time() - began
    assert took_s > (20 * count - server.EVENTS_BURST) / server.EVENTS_PER_S - 0.5


async def test_a_client_that_has_left_is_not_read_to_its_end(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More events than it may send at once lie before its end. Guards `WyomingConnection.run`."""
    count = 0
    dispatch = WyomingConnection._dispatch

    async def counted(client: WyomingConnection, event: wire.WyomingEvent) -> None:
        nonlocal count
        count += 1
        await dispatch(client, event)

    monkeypatch.setattr(WyomingConnection, "_dispatch", counted)
    monkeypatch.setattr(server, "EVENTS_BURST", 20)
    async with WyomingServer(Target(node.url, None)) as adapter:
        host, port = parse(await adapter.listen("tcp://127.0.0.1:0"))
        _, writer = await asyncio.open_connection(host, port)
        writer.write(wire.write(wire.WyomingEvent("synthesize-chunk", {"text": "x"})) * 500)
        await writer.drain()
        writer.close()
        await until(lambda: count > 0 and not adapter._clients)
    assert 1 < count < 100


def test_the_command_prints_its_address_and_exits_on_sigterm() -> None:
    async def run() -> int | None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agent_tts", "wyoming", "--uri", "tcp://127.0.0.1:0", "--url", "127.0.0.1:9"),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "COLUMNS": "200"},
        )
        async with asyncio.timeout(LIMIT_S):
            line = (await present(process.stdout).readline()).decode()
            host, port = parse(line.split()[0])
            async with AsyncTcpClient(host, port, read_timeout=LIMIT_S) as client:
                await client.write_event(Describe().event())
                assert Error.is_type((await client.read_event() or Event("none")).type)
            process.send_signal(signal.SIGTERM)
            return await process.wait()

    assert asyncio.run(run()) == 0


@pytest.mark.parametrize("uri", ["10200", "tcp://", "tcp://host", "udp://host:1", "tcp://host:x", "tcp://[::1"])
def test_an_invalid_address_is_refused(uri: str) -> None:
    with pytest.raises(SettingsError, match="tcp://"):
        parse(uri)


# ---------------------------------------------------------------- events


def fed(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=wire.MAX_LINE)
    reader.feed_data(data)
    reader.feed_eof()
    return reader


@examples(50)
@given(data=st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3), payload=st.binary(max_size=50))
def test_events_equal_those_of_the_package(data: dict[str, str], payload: bytes) -> None:
    async def both() -> None:
        ours = wire.write(wire.WyomingEvent("some", data, payload))
        theirs = present(await async_read_event(fed(ours)))
        assert (theirs.type, theirs.data, theirs.payload or b"") == ("some", data, payload)
        assert await wire.read(fed(ours)) == wire.WyomingEvent("some", data, payload)

    asyncio.run(both())


@examples(200)
@given(data=st.binary(max_size=80) | st.text(max_size=40).map(lambda text: json.dumps(text).encode() + b"\n"))
def test_junk_is_not_an_event(data: bytes) -> None:
    async def read() -> None:
        with suppress(BadMessage):
            assert await wire.read(fed(data)) is None

    asyncio.run(read())


@pytest.mark.parametrize("name", ["data_length", "payload_length"])
@pytest.mark.parametrize("length", [65_537, 10**12, -1, "5"])
async def test_lengths_have_a_limit(name: str, length: object) -> None:
    """Otherwise one line of text could make the adapter wait for a terabyte."""
    with pytest.raises(BadMessage):
        await wire.read(fed(json.dumps({"type": "x", name: length}).encode() + b"\n"))
