"""The client with a real node, and with servers that misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from agent_tts.client import connection as client
from agent_tts.client.connection import ConnectionLost, NodeConnection, http_url, stream_url
from agent_tts.client.moving import connect
from agent_tts.client.utterance import RemoteUtterance
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import (
    AtCapacity,
    BadMessage,
    ContextExists,
    SettingsError,
    SlowConsumer,
    SpeechError,
    TextTooLong,
    Unauthorized,
    UnknownVoice,
    UnsupportedFormat,
)
from agent_tts.messages import Audio, Cancelled, Finished, Flushed, Mark, Words
from agent_tts.protocol.v1 import header
from tests.support import RunningNode, dominant_hz, ended, logged, present, running_node, until

TEXT = "One two three four five six seven."


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    async with running_node() as running:
        yield running


@pytest.fixture
async def connection(node: RunningNode) -> AsyncIterator[NodeConnection]:
    async with connect(node.url) as made:
        yield made


async def spoken(speech: RemoteUtterance) -> bytes:
    return b"".join([pcm async for pcm in speech])


def write(speech: RemoteUtterance, text: str) -> None:
    """All text of a context."""
    speech.write(text)
    speech.end()


async def say(node: NodeConnection, text: str, **session: Any) -> bytes:
    speech = await node.open(lead_ms=None, **session)
    write(speech, text)
    return await spoken(speech)


# ---------------------------------------------------------------- with a real node


async def test_text_in_pieces_comes_back_as_speech(connection: NodeConnection) -> None:
    speech = await connection.open(voice="tone-660")
    for word in TEXT.split():
        speech.write(word + " ")
    speech.end()
    pcm = await spoken(speech)
    assert dominant_hz(pcm) == pytest.approx(660, abs=5)
    done = present(speech.done)
    assert (done.reason, done.audio_ms) == ("end", len(pcm) // 48)
    assert done.ttfa_ms is not None


async def test_text_can_be_sent_before_the_context_has_a_slot(connection: NodeConnection) -> None:
    speech = connection.begin(voice="tone-660", lead_ms=None)
    write(speech, TEXT)
    assert not speech.started.done()
    assert dominant_hz(await spoken(speech)) == pytest.approx(660, abs=5)


async def test_a_context_refused_after_its_opening_fails_in_its_events(connection: NodeConnection) -> None:
    speech = connection.begin(voice="nobody")
    speech.write(TEXT)
    with pytest.raises(UnknownVoice):
        await spoken(speech)
    assert await say(connection, TEXT)


async def test_a_context_starts_with_the_options_of_the_connection(node: RunningNode) -> None:
    async with connect(node.url, voice="tone-880", lead_ms=None) as connection:
        assert dominant_hz(await say(connection, TEXT)) == pytest.approx(880, abs=5)
        await connection.update(voice="tone-220")
        assert dominant_hz(await say(connection, TEXT)) == pytest.approx(220, abs=5)


async def test_many_contexts_speak_on_one_connection(connection: NodeConnection) -> None:
    tones = (220, 440, 660, 880)
    heard = await asyncio.gather(*(say(connection, TEXT, voice=f"tone-{hz}") for hz in tones))
    assert [dominant_hz(pcm) for pcm in heard] == pytest.approx(tones, abs=5)


async def test_text_longer_than_a_message_is_split(node: RunningNode) -> None:
    text = "word " * 900
    async with connect(node.url) as connection:
        speech = await connection.open(lead_ms=None)
        assert len(text) > connection.info.limits["text_message_chars"]
        speech.write(text)
        speech.flush()
        await speech.next()
        assert (await speech.cancel()).unheard_text.endswith("word word ")
    assert speech.error is None


async def test_events_report_words_audio_and_flush_points_in_order(connection: NodeConnection) -> None:
    speech = await connection.open(lead_ms=None)
    speech.write("one two")
    speech.flush("f1")
    events = []
    async for event in speech.events():
        events.append(event)
        if isinstance(event, Flushed):
            write(speech, " three")
    audio = [event for event in events if isinstance(event, Audio)]
    flushed = next(event for event in events if isinstance(event, Flushed))
    assert flushed.flush_id == "f1"
    assert (
        flushed.audio_ms == sum(len(e.payload) for e in events[: events.index(flushed)] if isinstance(e, Audio)) // 48
    )
    assert [event.first_sample for event in audio[:3]] == [0, 1_920, 3_840]
    assert [event.last for event in audio] == [False] * (len(audio) - 1) + [True]
    assert sum(event.flush for event in audio) == 1
    assert isinstance(events[-1], Finished)
    assert [word.word for word in speech.words] == ["one", "two", "three"]
    assert any(isinstance(event, Words) for event in events)


@pytest.mark.parametrize("framing", ["binary", "base64"])
async def test_audio_is_the_same_in_either_framing(node: RunningNode, framing: str) -> None:
    async with connect(node.url, seed=1) as connection:
        plain = await say(connection, TEXT)
        assert await say(connection, TEXT, output={"framing": framing}) == plain


async def test_audio_arrives_in_the_requested_encoding(connection: NodeConnection) -> None:
    speech = await connection.open(lead_ms=None, output={"encoding": "mulaw", "sample_rate": 8_000})
    write(speech, TEXT)
    heard = await spoken(speech)
    assert len(heard) == pytest.approx(present(speech.done).audio_ms * 8, abs=16)


async def test_cancel_stops_the_audio_and_reports_the_heard_text(connection: NodeConnection, node: RunningNode) -> None:
    speech = await connection.open()
    write(speech, TEXT)
    pcm = aiter(speech)
    heard = 0
    while heard < 360 * SAMPLE_RATE // 1_000 * 2:  # bytes
        heard += len(await anext(pcm))
    cut = await speech.cancel(played_ms=360)
    assert await speech.cancel() is cut
    assert cut.heard_text + cut.unheard_text == TEXT
    assert cut.heard_text.startswith("One")
    assert [type(event) async for event in speech.events() if isinstance(event, Audio)] == []
    assert present(speech.done).reason == "cancelled"
    assert node.node.service.speaking == 0


async def test_tags_are_in_no_heard_text_and_marks_are_events(connection: NodeConnection) -> None:
    speech = await connection.open(lead_ms=None)
    write(speech, '[sad] One <mark name="two"/>two, <emphasis>three</emphasis>.<break time="80ms"/> Four.')
    marks = [event async for event in speech.events() if isinstance(event, Mark)]
    times = {word.word: word for word in speech.words}
    assert marks == [Mark(speech.context_id, "two", times["two,"].start_ms, 10)]
    cut = await speech.cancel(played_ms=times["two,"].end_ms)
    assert (cut.heard_text, cut.unheard_text) == ("One two,", " three. Four.")


async def test_an_acknowledgement_decides_the_heard_text_of_a_cancel(connection: NodeConnection) -> None:
    speech = await connection.open(lead_ms=5_000)
    speech.write(TEXT)
    speech.flush("all")
    while not isinstance(event := await speech.next(), Flushed):
        pass
    speech.ack(event.audio_ms)
    cut = await speech.cancel()
    assert cut.played_ms == cut.generated_ms == event.audio_ms  # in real time almost nothing has been played
    assert cut.heard_text.startswith("One two")


async def test_a_cancel_after_the_last_audio_still_reports_the_heard_text(connection: NodeConnection) -> None:
    """A short answer is sent entirely ahead of its playback, and the listener may still interrupt it."""
    speech = await connection.open(lead_ms=None)
    write(speech, TEXT)
    await until(lambda: speech.done is not None)
    cut = await speech.cancel(played_ms=900)
    assert cut == Cancelled(speech.context_id, 900, cut.generated_ms, cut.heard_text, cut.unheard_text)
    assert cut.heard_text
    assert cut.unheard_text
    assert cut.heard_text + cut.unheard_text == TEXT
    assert await spoken(speech) == b""


async def test_cancel_all_stops_all_speech(connection: NodeConnection, node: RunningNode) -> None:
    for _ in range(3):
        (await connection.open()).write(TEXT)
    await connection.cancel_all()
    assert node.node.service.speaking == 0


async def test_leaving_the_block_stops_the_speech_of_the_connection(node: RunningNode) -> None:
    async with connect(node.url) as connection:
        (await connection.open()).write(TEXT)
        assert node.node.service.speaking == 1
    await until(lambda: node.node.service.speaking == 0)


async def test_leaving_a_contexts_block_stops_only_that_context(connection: NodeConnection, node: RunningNode) -> None:
    other = await connection.open()
    async with await connection.open() as speech:
        speech.write(TEXT)
    await until(lambda: speech.done is not None)
    assert node.node.service.speaking == 1
    assert other.done is None


@pytest.mark.parametrize(
    ("session", "error"),
    [
        ({"voice": "nobody"}, UnknownVoice),
        ({"output": {"encoding": "flac"}}, UnsupportedFormat),
        ({"sped": 2}, BadMessage),
    ],
)
async def test_a_refused_context_raises_from_open_and_leaves_the_connection_usable(
    connection: NodeConnection, session: dict[str, Any], error: type[SpeechError]
) -> None:
    with pytest.raises(error):
        await connection.open(**session)
    with pytest.raises(error):
        await connection.update(**session)
    assert await say(connection, TEXT)


async def test_a_misspelt_option_of_an_option_is_refused(connection: NodeConnection) -> None:
    assert "output.bit_rate" in connection.info.features
    with pytest.raises(BadMessage, match=r"output\.bitrate"):
        await connection.open(output={"encoding": "mp3", "bitrate": 64_000})


async def test_a_refused_session_raises_from_connect(node: RunningNode) -> None:
    with pytest.raises(UnknownVoice, match="no such voice"):
        async with connect(node.url, voice="nobody"):
            pass


async def test_the_client_refuses_an_id_that_is_open(connection: NodeConnection) -> None:
    await connection.open(context_id="t1")
    with pytest.raises(ContextExists):
        await connection.open(context_id="t1")


async def test_at_capacity_carries_a_retry_time() -> None:
    async with running_node(slots=1, queue=0) as node, connect(node.url) as connection:
        first = await connection.open()
        with pytest.raises(AtCapacity) as caught:
            await connection.open()
        assert caught.value.retry_after_ms
        await first.cancel()
        assert await say(connection, TEXT)


async def test_a_wrong_key_is_unauthorized_and_a_right_one_works() -> None:
    async with running_node(auth={"api_keys": ["sesame"]}) as node:
        with pytest.raises(Unauthorized):
            async with connect(node.url, api_key="wrong"):
                pass
        async with connect(node.url, api_key="sesame") as connection:
            assert await say(connection, TEXT)


async def test_refused_text_fails_the_context_after_the_accepted_text() -> None:
    """A context that lost part of its text must not end as complete."""
    async with running_node(limits={"text_context_chars": 50}) as node, connect(node.url) as connection:
        speech = await connection.open(lead_ms=None)
        speech.write("a short one ")
        speech.flush("f")
        events = [await speech.next()]
        while not isinstance(events[-1], Flushed):
            events.append(await speech.next())
        speech.write("x" * 60)
        with pytest.raises(TextTooLong):
            await spoken(speech)
        assert speech.done is not None
        await until(lambda: node.node.service.speaking == 0)


async def test_a_lost_engine_fails_the_context_with_its_code() -> None:
    async with running_node(tone={"scripted_faults": True}) as node, connect(node.url) as connection:
        speech = await connection.open(instructions="fault:raise@2")
        speech.write(TEXT)
        with pytest.raises(SpeechError) as caught:
            await spoken(speech)
        assert caught.value.code in ("engine_lost", "internal")


async def test_a_draining_node_is_reported_before_the_connection_fails(
    connection: NodeConnection, node: RunningNode
) -> None:
    for session in list(node.node.sessions):
        session.drain()
    await until(lambda: connection.lost is not None)
    assert connection.draining
    with pytest.raises(ConnectionLost):
        await connection.open()


# ---------------------------------------------------------------- back-pressure


async def test_an_unread_context_is_dropped_alone(node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PATIENCE_S", 0.2)
    async with connect(node.url, buffer_bytes=8_000, lead_ms=None) as connection:
        unread = await connection.open()
        unread.write(TEXT * 10)
        unread.end()
        assert await say(connection, TEXT)
        with pytest.raises(SlowConsumer):
            await spoken(unread)
        await until(lambda: node.node.service.speaking == 0)


async def test_a_slow_reader_slows_the_node_and_loses_nothing(node: RunningNode) -> None:
    async with connect(node.url, lead_ms=None, seed=1) as connection:
        whole = await say(connection, TEXT * 4)
    async with connect(node.url, buffer_bytes=8_000, lead_ms=None, seed=1) as connection:
        speech = await connection.open()
        write(speech, TEXT * 4)
        heard, most = b"", 0
        async for pcm in speech:
            heard += pcm
            most = max(most, speech._buffered)
            await asyncio.sleep(0.002)
    assert heard == whole
    assert most <= 8_000 + 3_840


async def test_a_second_reader_is_refused(connection: NodeConnection) -> None:
    speech = await connection.open()
    first = asyncio.create_task(speech.next())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="one reader"):
        await speech.next()
    await ended(first)


async def test_a_cancelled_read_loses_nothing(node: RunningNode) -> None:
    async with connect(node.url, lead_ms=None, seed=1) as connection:
        whole = await say(connection, TEXT)
        speech = await connection.open()
        waiting = asyncio.create_task(speech.next())
        await asyncio.sleep(0)
        await ended(waiting)
        write(speech, TEXT)
        assert await spoken(speech) == whole


# ---------------------------------------------------------------- servers that misbehave

GREETING = {
    "type": "session.created",
    "session_id": "s",
    "protocol": "agent_tts.v1",
    "engine": "tone",
    "model": "tone",
    "sample_rate": 24_000,
    "frame_ms": 80,
    "limits": {"text_message_chars": 4_000},
}


@asynccontextmanager
async def serving(handler: Callable[[ServerConnection], Awaitable[None]], **options: Any) -> AsyncIterator[str]:
    """A server with this handler; yields its address."""
    options = {"subprotocols": [Subprotocol("agent_tts.v1")], "compression": None, **options}
    async with serve(handler, "127.0.0.1", 0, **options) as server:
        yield f"127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


async def start_context(connection: ServerConnection) -> None:
    await connection.send(json.dumps(GREETING))
    opened = json.loads(await connection.recv())
    started = {"type": "context.started", "context_id": opened["context_id"], "context_no": 7, "queue_ms": 0}
    await connection.send(json.dumps(started))


async def test_a_cut_connection_fails_every_context_and_the_connection() -> None:
    async def cut(connection: ServerConnection) -> None:
        await start_context(connection)
        await connection.send(header(7, 0, 0) + bytes(4))
        connection.transport.abort()

    async with serving(cut) as address, connect(address) as node:
        speech = await node.open()
        heard = aiter(speech)
        assert await anext(heard) == bytes(4)
        with pytest.raises(ConnectionLost):
            await anext(heard)
        with pytest.raises(ConnectionLost):
            await node.open()
        with pytest.raises(ConnectionLost):
            await node.update(voice="x")
        speech.write("ignored")
        assert (await speech.cancel()).unheard_text == ""


async def test_a_fatal_error_of_the_node_is_raised() -> None:
    async def refuse_slowly(connection: ServerConnection) -> None:
        await start_context(connection)
        error = {"type": "error", "code": "slow_consumer", "message": "too slow", "context_id": None, "fatal": True}
        await connection.send(json.dumps(error))
        await connection.close(1011)

    async with serving(refuse_slowly) as address, connect(address) as node:
        with pytest.raises(SlowConsumer, match="too slow"):
            await spoken(await node.open())


@pytest.mark.parametrize(
    "junk", ["{", "[]", '{"type":"words","context_id":"c1"}', b"short", header(7, 0, 0).replace(b"\1", b"\2", 1)]
)
async def test_a_server_with_another_protocol_is_disconnected(junk: str | bytes) -> None:
    async def talk(connection: ServerConnection) -> None:
        await start_context(connection)
        await connection.send(junk)
        await connection.wait_closed()

    async with serving(talk) as address, connect(address) as node:
        with pytest.raises(ConnectionLost, match=r"does not speak agent_tts\.v1"):
            await spoken(await node.open())


async def test_fields_of_newer_nodes_are_sent_and_their_warnings_logged() -> None:
    told: list[dict[str, Any]] = []

    async def talk(connection: ServerConnection) -> None:
        await connection.send(json.dumps(GREETING | {"features": ["mood"]}))
        told.append(json.loads(await connection.recv()))
        warning = {"type": "warning", "code": "unknown_field", "message": "ignored", "fields": ["pitch"]}
        await connection.send(json.dumps(warning | {"context_id": told[0]["context_id"]}))
        started = {"type": "context.started", "context_id": told[0]["context_id"], "context_no": 7, "queue_ms": 0}
        await connection.send(json.dumps(started))
        await connection.wait_closed()

    with logged() as lines:
        async with serving(talk) as address, connect(address) as node:
            await node.open(mood="good", pitch=1.5)
            with pytest.raises(BadMessage, match="moods"):
                await node.open(moods="good")
    assert (told[0]["mood"], told[0]["pitch"]) == ("good", 1.5)
    assert [line for line in lines if "pitch" in line]


async def test_a_node_of_another_version_says_which() -> None:
    def refuse(connection: ServerConnection, request: Request) -> Response:
        response = connection.respond(400, "")
        response.headers["Sec-WebSocket-Protocol"] = "agent_tts.v2"
        return response

    async with serving(start_context, process_request=refuse) as address:
        with pytest.raises(ConnectionLost, match=r"speaks agent_tts\.v2, this client agent_tts\.v1"):
            async with connect(address):
                pass


async def test_messages_of_newer_nodes_are_ignored() -> None:
    async def talk(connection: ServerConnection) -> None:
        await start_context(connection)
        await connection.send(json.dumps({"type": "context.mood", "context_id": "c1", "mood": "good"}))
        await connection.send(header(8, 0, 0) + b"another context's")
        done = {"context_no": 7, "reason": "end", "audio_ms": 0, "ttfa_ms": None, "rtf": None}
        await connection.send(json.dumps({"type": "context.done", "context_id": "c1", **done}))
        await connection.wait_closed()

    async with serving(talk) as address, connect(address) as node:
        assert await spoken(await node.open()) == b""


@pytest.mark.parametrize("greeting", ['"hello"', "{}", json.dumps({**GREETING, "protocol": "v0"}), None])
async def test_a_server_that_is_not_a_node_is_a_lost_connection(greeting: str | None) -> None:
    async def greet(connection: ServerConnection) -> None:
        if greeting is not None:
            await connection.send(greeting)

    async with serving(greet) as address:
        with pytest.raises(ConnectionLost, match="does not speak"):
            async with connect(address):
                pass


async def test_a_node_that_never_answers_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "OPEN_S", 0.1)

    async def greet_only(connection: ServerConnection) -> None:
        await connection.send(json.dumps(GREETING))
        await connection.wait_closed()

    async with serving(greet_only) as address, connect(address) as node:
        with pytest.raises(TimeoutError):
            await node.open()
        with pytest.raises(TimeoutError):
            await node.update(voice="x")


@pytest.mark.parametrize("answers", [True, False])
async def test_a_silent_node_is_lost_where_it_answers_no_ping(monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    """A half-open connection takes what is sent, and nothing comes; the node of a slow engine answers."""
    monkeypatch.setattr(client, "QUIET_S", 0.1)
    monkeypatch.setattr(client, "ANSWER_S", 0.1)

    async def fall_silent(connection: ServerConnection) -> None:
        await start_context(connection)
        if not answers:
            connection.transport.pause_reading()
        await asyncio.sleep(1.0)
        connection.transport.resume_reading()
        await connection.send(header(7, 0, 0) + bytes(4))
        connection.transport.abort()

    async with serving(fall_silent) as address, connect(address) as node:
        speech = await node.open()
        with pytest.raises(ConnectionLost, match="has ended" if answers else "does not answer"):
            await spoken(speech)
        assert speech._heard_from is not None or not answers


async def test_a_node_that_never_reads_is_disconnected_before_memory_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_UNSENT_CHARS", 50_000)

    over = asyncio.Event()

    async def sit(connection: ServerConnection) -> None:
        await start_context(connection)
        connection.transport.pause_reading()
        await over.wait()
        connection.transport.abort()

    async with serving(sit) as address, connect(address) as node:
        speech = await node.open()
        for _ in range(100):
            speech.write("x" * 4_000)
        with pytest.raises(ConnectionLost, match="does not read"):
            await spoken(speech)
        over.set()


async def test_a_closed_port_is_a_lost_connection() -> None:
    async with serving(lambda connection: connection.wait_closed()) as address:
        pass
    with pytest.raises(ConnectionLost, match=r"no node answers at 127\.0\.0\.1"):
        async with connect(address):
            pass


async def test_another_http_server_is_reported_as_such(node: RunningNode) -> None:
    with pytest.raises(ConnectionLost, match="is it a node"):
        async with connect(node.url + "/elsewhere"):
            pass


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("localhost:8100", "ws://localhost:8100/v1/tts/stream"),
        ("http://h:1", "ws://h:1/v1/tts/stream"),
        ("https://h/", "wss://h/v1/tts/stream"),
        ("wss://h/node/", "wss://h/node/v1/tts/stream"),
        ("ws://h:1/v1/tts/stream?token=t", "ws://h:1/v1/tts/stream?token=t"),
    ],
)
def test_a_node_can_be_addressed_in_several_forms(url: str, expected: str) -> None:
    assert stream_url(url) == expected


@pytest.mark.parametrize(
    "url", ["ftp://h", "http://", "", "http://[", "http://h:99999", "http://h:abc", "h:0", "http://:8100"]
)
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="host:port"):
        stream_url(url)


def test_the_http_address_keeps_the_path_without_the_protocols_route() -> None:
    assert http_url("localhost:8100") == "http://localhost:8100"
    assert http_url("wss://h/node/v1/tts/stream") == "https://h/node"


@pytest.mark.parametrize("context_id", ["", "*", "c" * 129])
async def test_an_invalid_context_id_is_refused_at_once(connection: NodeConnection, context_id: str) -> None:
    """The node could not name the context in its refusal, so the call would never be answered."""
    with pytest.raises(BadMessage, match="1 to 128 characters"):
        await connection.open(context_id=context_id)
    await connection.open(context_id="c" * 128)
