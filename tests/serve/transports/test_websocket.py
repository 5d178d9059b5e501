"""The WebSocket itself: handshake, sizes, closing, pending connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from starlette.routing import WebSocketRoute
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode

from agent_tts.engine_info import FRAME_BYTES
from agent_tts.protocol.adapter import Command, Drop, Event, ProtocolAdapter
from agent_tts.serve.access.fair_queue import Flow
from agent_tts.serve.session import Session
from agent_tts.serve.transports import uvicorn_protocols, websocket
from agent_tts.serve.transports.uvicorn_protocols import WebSocketProtocol
from agent_tts.serve.transports.websocket import Dialect, StreamEndpoint
from agent_tts.serve.transports.writer import WRITE_BYTES
from tests.support import (
    RunningNode,
    app_with,
    in_this_loop,
    recorded,
    running_app,
    running_node,
    settings_of,
    until,
)
from tests.wire import speak, wire

pytestmark = pytest.mark.node


async def test_the_subprotocol_is_accepted_and_deflate_is_off(node: RunningNode) -> None:
    offers = ["agent_tts.v2", "agent_tts.v1", "other"]
    async with wire(node.ws_url, compression="deflate", subprotocols=offers) as peer:
        assert peer.socket.subprotocol == "agent_tts.v1"
        assert peer.socket.protocol.extensions == []
    async with wire(node.ws_url, subprotocols=None) as peer:
        await peer.until("session.created")


@pytest.mark.parametrize("offers", [["agent_tts.v2"], ["agent_tts.v2", "agent_tts.v10"], ["AGENT_TTS.V1"]])
async def test_protocols_that_are_not_spoken_are_refused_with_those_that_are(
    node: RunningNode, offers: list[str]
) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with wire(node.ws_url, subprotocols=offers):
            pass
    response = caught.value.response
    assert (response.status_code, response.headers["Sec-WebSocket-Protocol"]) == (400, "agent_tts.v1")
    error = json.loads(response.body)["error"]
    assert (error["code"], "agent_tts.v1" in error["message"]) == ("unsupported_protocol", True)
    assert not node.node.sessions


async def test_invalid_messages_are_answered_and_the_session_goes_on() -> None:
    async with running_node() as running, wire(running.ws_url) as peer:
        await peer.socket.send(b"\x00binary")
        assert (await peer.until("error"))["code"] == "bad_message"
        await peer.socket.send(["frag", "ments"])
        assert (await peer.until("error"))["code"] == "bad_message"
        await peer.socket.send(json.dumps({"type": "nope"}))
        assert (await peer.until("error"))["code"] == "unknown_type"
        await peer.say("t", "still here")
        assert (await peer.until("context.done"))["reason"] == "end"


async def test_a_client_that_has_left_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """More messages than the connection may send at once lie before its end. Guards `next_message`."""
    received = recorded(monkeypatch, Session, "receive")
    monkeypatch.setattr(websocket, "MESSAGES_BURST", 50)
    async with running_node() as node:
        await left(node.ws_url, {"type": "text.append", "context_id": "t", "text": ""}, 500)
        await until(lambda: not node.node.sessions)
    assert 1 < len(received) < 100


@asynccontextmanager
async def speaking(adapter: ProtocolAdapter) -> AsyncIterator[tuple[RunningNode, str]]:
    """A node, and the address at which it has this adapter."""
    app = app_with(settings_of(), in_this_loop(settings_of()))
    endpoint = StreamEndpoint(app.state.node, Dialect("x", lambda *_: adapter))
    app.router.routes.append(WebSocketRoute("/x", endpoint))
    async with running_app(app) as node:
        yield node, node.ws_url.replace("/v1/tts/stream", "/x")


class Endless(ProtocolAdapter):
    """A message of many commands."""

    def decode(self, data: str | bytes) -> Iterator[Command]:
        yield from (Drop("x") for _ in range(1_000_000))

    def encode(self, event: Event) -> list[str | bytes]:
        return []


@pytest.mark.parametrize("resets", [False, True])
async def test_nothing_is_done_for_a_client_that_has_left(monkeypatch: pytest.MonkeyPatch, resets: bool) -> None:
    """Its end lies behind what it has sent, which is not read while a message is obeyed. Guards `Connection._read`."""
    slices = recorded(monkeypatch, Session, "go_on")
    async with speaking(Endless()) as (node, url):
        await left(url, {}, 3, resets)
        await until(lambda: not node.node.sessions)
    assert len(slices) < 10_000


async def left(url: str, message: dict[str, object], times: int, resets: bool = False) -> None:
    """Send a message so many times, and leave at once, without a close frame."""
    async with wire(url) as peer:
        sock = peer.socket.transport.get_extra_info("socket")
        data = Frame(Opcode.TEXT, json.dumps(message).encode()).serialize(mask=True)
        peer.socket.transport.write(data * times)
        await asyncio.sleep(0)
        if resets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.socket.transport.close()  # it sends all of it


async def test_frames_that_hold_no_message_have_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others do in between. Guards `WebSocketProtocol._parse`."""
    monkeypatch.setattr(uvicorn_protocols, "SLICE_S", 0.0)
    passed = 0
    async with running_node() as node, wire(node.ws_url) as peer:
        at = recorded(monkeypatch, WebSocketsSansIOProtocol, "data_received", lambda *_: passed)
        peer.socket.transport.write(Frame(Opcode.PING, b"x" * 100).serialize(mask=True) * 200)
        while len(at) < 20:
            await asyncio.sleep(0)
            passed += 1
        await peer.say("t", "still here")
        assert (await peer.until("context.done"))["reason"] == "end"
    assert len(set(at)) > 3


async def test_session_close_closes_with_1000(node: RunningNode) -> None:
    async with wire(node.ws_url) as peer:
        await peer.send("session.close")
        assert await peer.close_code() == 1000


async def test_an_idle_session_is_closed_with_1000() -> None:
    """Guards `Connection._check_idle`."""
    async with running_node(limits={"session_idle_s": 0.2}) as node, wire(node.ws_url) as peer:
        await peer.say("t", "word " * 20, lead_ms=200)  # speech counts as use
        assert (await peer.until("context.done"))["reason"] == "end"
        assert await peer.close_code() == 1000


async def test_a_connection_beyond_the_limit_is_closed_with_1013() -> None:
    async with running_node(limits={"connections": 1}) as node, wire(node.ws_url) as first:
        await first.until("session.created")
        async with wire(node.ws_url) as second:
            error = await second.until("error")
            assert (error["code"], error["fatal"]) == ("at_capacity", True)
            assert error["retry_after_ms"] > 0
            assert await second.close_code() == 1013


async def test_a_full_node_refuses_within_the_promised_time() -> None:
    """The limit is 50 ms; the test allows three times that. Without a queue there is nothing to wait for."""
    async with running_node(slots=1, queue=0) as node, wire(node.ws_url) as peer:
        await peer.send("text.append", context_id="t", text="word ")
        await peer.until("context.started")
        begun = asyncio.get_running_loop().time()
        await peer.send("text.append", context_id="t2", text="word ")
        assert (await peer.until("error", "t2"))["code"] == "at_capacity"
        assert asyncio.get_running_loop().time() - begun < 0.15


async def test_a_flood_of_messages_ends_its_session(node: RunningNode) -> None:
    """Guards MAX_REPLIES: unread answers must not pile up."""
    async with wire(node.ws_url, rcvbuf=4_096) as peer:
        await peer.until("session.created")
        peer.socket.transport.pause_reading()

        with contextlib.suppress(ConnectionClosed):
            for _ in range(30_000):
                await peer.socket.send(b"x")
                await asyncio.sleep(0)
                if not node.node.sessions:
                    break
        assert not node.node.sessions
        await until(lambda: not node.server.server_state.connections)


class Counting(ProtocolAdapter):
    """An adapter whose answer is three messages; the last is the number of received messages."""

    def __init__(self) -> None:
        self.heard = 0

    def decode(self, data: str | bytes) -> Iterator[Command]:
        self.heard += 1
        yield from ()

    def encode(self, event: Event) -> Iterator[str]:
        yield "x" * 6_000_000  # more than all buffers to a client that does not read
        yield "waits"
        yield str(self.heard)


async def test_messages_of_one_item_are_encoded_together() -> None:
    """Fails if each message is encoded only when there is room for it."""
    adapter = Counting()
    async with speaking(adapter) as (_, url), wire(url, rcvbuf=4_096, max_size=None) as peer:
        peer.socket.transport.pause_reading()
        await peer.socket.send("meanwhile")
        await until(lambda: adapter.heard == 1)
        peer.socket.transport.resume_reading()
        async with asyncio.timeout(10):
            told = [await peer.socket.recv() for _ in range(3)]
    assert told[1:] == ["waits", "0"]


class Reading(ProtocolAdapter):
    """An adapter that tells where its messages are read; `is_served` is whether that is in a slice."""

    def __init__(self) -> None:
        self.is_served = False
        self.seen: list[bool] = []

    def prepare(self, data: str | bytes) -> None:
        self.seen.append(self.is_served)

    def decode(self, data: str | bytes) -> Iterator[Command]:
        self.seen.append(self.is_served)
        yield from ()

    def encode(self, event: Event) -> Iterator[str]:
        yield from ()


async def test_messages_are_read_in_fair_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is read of them before dictionaries are: 64 kB of JSON take a millisecond."""
    adapter, enter, leave = Reading(), Flow.__aenter__, Flow.__aexit__

    async def entered(flow: Flow) -> None:
        await enter(flow)
        adapter.is_served = True

    async def left(flow: Flow, *error: object) -> None:
        adapter.is_served = False
        await leave(flow, *error)

    monkeypatch.setattr(Flow, "__aenter__", entered)
    monkeypatch.setattr(Flow, "__aexit__", left)
    async with speaking(adapter) as (_, url), wire(url) as peer:
        await peer.socket.send("a message")
        await until(lambda: len(adapter.seen) == 2)
    assert adapter.seen == [True, True]


class Sizes(ProtocolAdapter):
    """An adapter that answers the first item with messages of all sizes, and the others with none."""

    def __init__(self) -> None:
        # Around the limits of the length encodings of WebSocket frames.
        self.sizes = [0, 1, 125, 126, 127, 65_535, 65_536]

    def decode(self, data: str | bytes) -> Iterator[Command]:
        yield from ()

    def encode(self, event: Event) -> Iterator[str | bytes]:
        while self.sizes:
            size = self.sizes.pop(0)
            yield bytes([size % 256]) * size
            yield "ü" * (size // 2) + "u" * (size % 2)


async def test_messages_of_every_size_are_complete_and_in_order() -> None:
    """Guards `WebSocketProtocol.write`."""
    sizes = Sizes().sizes
    async with speaking(Sizes()) as (_, url), wire(url, max_size=None) as peer:
        async with asyncio.timeout(10):
            told = [await peer.socket.recv() for _ in range(2 * len(sizes))]
    assert told[::2] == [bytes([size % 256]) * size for size in sizes]
    assert [len(text.encode()) for text in told[1::2] if isinstance(text, str)] == sizes


async def test_at_most_a_third_of_a_second_is_buffered_for_a_client_that_does_not_read(node: RunningNode) -> None:
    """Guards the marks of the buffer in `Writer` and the bound in `Connection._send_all`."""
    async with wire(node.ws_url, rcvbuf=4_096) as peer:
        await peer.until("session.created")
        peer.socket.transport.pause_reading()
        await peer.send("context.open", context_id="t", lead_ms=None, timestamps="none")
        await peer.send("text.append", context_id="t", text="word " * 700)
        (connection,) = node.server.server_state.connections
        assert isinstance(connection, WebSocketProtocol)
        await until(lambda: connection.is_full)
        await asyncio.sleep(0.2)
        assert 0 < connection.transport.get_write_buffer_size() <= WRITE_BYTES + FRAME_BYTES + 100


async def test_pending_connections_are_closed_in_time_and_disturb_no_session() -> None:
    """Guards `_set_deadline` in `HttpProtocol.connection_made`."""
    async with running_node(timeouts={"handshake_s": 0.5}) as node:
        host, port = node.url.removeprefix("http://").split(":")
        writers = [(await asyncio.open_connection(host, int(port)))[1] for _ in range(200)]
        writers[0].write(b"GET /health HTTP/1.1\r\nHost: slow")
        try:
            assert await speak(node.ws_url, "Hello", lead_ms=None) != b""
            await until(lambda: not node.server.server_state.connections, 3.0)
        finally:
            for writer in writers:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


async def test_invalid_utf8_is_closed_with_1007_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Guards `WebSocketProtocol.send_receive_event_to_app`: otherwise clients could fill the log with tracebacks."""
    async with running_node() as node, wire(node.ws_url) as peer:
        await peer.until("session.created")
        await peer.socket.send(b"\xff\xfe", text=True)
        assert await peer.close_code() == 1007
    assert not caplog.records
