"""Attacks on the connection itself: each is cut in time, and other clients are not affected.

Every test names the code that it guards.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import itertools
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import WebSocketException

from agent_tts.serve.access.fair_queue import SLICE_S
from agent_tts.serve.session import Session
from agent_tts.serve.transports.uvicorn_protocols import (
    CLOSE_S,
    MAX_FRAGMENTS,
    MAX_HEADER_BYTES,
    MAX_URL_BYTES,
    HttpProtocol,
    WebSocketProtocol,
)
from agent_tts.serve.transports.websocket import Connection
from agent_tts.speech.utterance import Utterance
from tests.support import RunningNode, ended, recorded, running_node, until
from tests.wire import speak, wire

pytestmark = pytest.mark.node

TEXT = "Meanwhile somebody else speaks."
HANDSHAKE_S = 0.5
WRITE_S = 0.5
FAST = {"handshake_s": HANDSHAKE_S, "write_s": WRITE_S, "tcp_user_s": 1.0}
LATE_S = 0.5  # s by which a frame may be late
CLIENTS = 60
GROWTH = 48 << 20  # bytes of this process, including the client
HEAD = b"Host: localhost\r\n"
UPGRADE = HEAD + (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
    + base64.b64encode(bytes(16))
    + b"\r\n"
)
HELLO = b"GET /v1/tts/stream HTTP/1.1\r\n" + UPGRADE + b"\r\n"


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0) -> bytes:
    """A client's frame of at most 64 KiB, masked."""
    size, mask = len(payload), b"\x01\x02\x03\x04"
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2)
    masked = (int.from_bytes(payload) ^ int.from_bytes((mask * (size // 4 + 1))[:size])).to_bytes(size)
    return bytes([0x80 * fin | rsv | opcode]) + length + mask + masked


TEXT_FRAME, CONTINUATION, PING, PONG = 1, 0, 9, 10


@asynccontextmanager
async def raw(node: RunningNode, sent: bytes = b"", rcvbuf: int = 4_096) -> AsyncIterator[socket.socket]:
    """A TCP connection that has sent these bytes, and nothing follows by itself."""
    host, port = node.url.partition("://")[2].split(":")
    with closing(socket.socket()) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        await asyncio.get_running_loop().sock_sendall(sock, sent)
        yield sock


@asynccontextmanager
async def upgraded(node: RunningNode, rcvbuf: int = 4_096) -> AsyncIterator[socket.socket]:
    """The same, after a WebSocket's handshake."""
    async with raw(node, HELLO, rcvbuf) as sock:
        assert b" 101 " in await read_until(sock)
        yield sock


async def read_until(sock: socket.socket, end: bytes = b"\r\n\r\n") -> bytes:
    """Received bytes up to `end` or the end of the connection."""
    answer = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(10):
            while end not in answer and (piece := await asyncio.get_running_loop().sock_recv(sock, 65_536)):
                answer += piece
    return answer


async def read_all(sock: socket.socket) -> bytes:
    return await read_until(sock, b"no such end")


async def flood(sock: socket.socket, again: bytes, every_s: float = 0.0) -> None:
    """Send the same bytes in a loop without reading. Returns when the connection is cut."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            await loop.sock_sendall(sock, again)
            await asyncio.sleep(every_s)
    except OSError:
        return


def resident_bytes() -> int:
    """Resident memory of this process, bytes; 0 where the system does not show it."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def harmless(node: RunningNode, within_s: float) -> AsyncIterator[None]:
    """The body ends in time and takes little memory; a paced context beside it is bit-equal and never late."""
    expected = await speak(node.ws_url, TEXT, seed=1, lead_ms=None)
    loop = asyncio.get_running_loop()
    async with wire(node.ws_url) as peer:
        await peer.say("witness", TEXT, seed=1, lead_ms=200)
        await peer.until_audio("witness")
        begun, most, size = loop.time(), -1.0, resident_bytes()

        async def listen() -> None:
            nonlocal most
            while (message := await peer.receive()) is None or message["type"] != "context.done":
                if message is None:
                    first_sample, _, _ = peer.frames[peer.numbers["witness"]][-1]
                    most = max(most, loop.time() - begun - first_sample / 24_000)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(listen())
            async with asyncio.timeout(within_s):
                yield
            grown = resident_bytes() - size
        assert peer.pcm("witness") == expected
        assert most < LATE_S
        assert grown < GROWTH
        await until(lambda: len(node.server.server_state.connections) == 1)


HEALTH = b"GET /health HTTP/1.1\r\n" + HEAD
CHUNKED = b"POST /v1/audio/speech HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + HEAD + b"\r\n"
HTTP_FLOODS = {
    "endless URL": (b"GET /", b"a" * 65_536),
    "endless header": (HEALTH + b"X: ", b"a" * 65_536),
    "endless header of the second request": (HEALTH + b"\r\n" + HEALTH + b"X: ", b"a" * 65_536),
    "endless trailer": (CHUNKED + b"0\r\nX: ", b"a" * 65_536),
    "endless chunk extension": (CHUNKED + b"1;", b"a" * 65_536),
    "pipelined requests": (b"", (HEALTH + b"\r\n") * 1_000),
    "pipelined large answers": (b"", (b"GET /openapi.json HTTP/1.1\r\n" + HEAD + b"\r\n") * 1_000),
    "frames before the WebSocket": (HELLO, frame(PING) * 4_000),
}


@pytest.mark.parametrize("attack", HTTP_FLOODS)
async def test_a_flood_over_http_is_cut(node: RunningNode, attack: str) -> None:
    """Guards `HttpProtocol.data_received` and MAX_PIPELINED; no deadline applies here."""
    opening, again = HTTP_FLOODS[attack]
    async with harmless(node, within_s=2.0), raw(node, opening) as sock:
        await flood(sock, again)


DRIBBLES = {
    "first head": HEALTH + b"X: ",
    "second head": HEALTH + b"\r\n" + HEALTH + b"X: ",
    "empty lines": HEALTH + b"\r\n",
    "a body after its answer": HEALTH + b"Content-Length: 9999\r\n\r\n",
    "a body": b"POST /v1/audio/speech HTTP/1.1\r\nContent-Length: 9999\r\n" + HEAD + b"\r\n",
}


@pytest.mark.parametrize("what", DRIBBLES)
async def test_a_slow_sender_does_not_hold_a_connection(what: str) -> None:
    """Guards all uses of `HttpProtocol._set_deadline`."""
    async with running_node(timeouts=FAST) as node, asyncio.timeout(4 * HANDSHAKE_S + 1):
        async with raw(node, DRIBBLES[what]) as sock:
            await flood(sock, b"\r\n" if what == "empty lines" else b"x", every_s=0.05)
        await until(lambda: not node.server.server_state.connections)


async def test_an_invalid_upgrade_is_answered(node: RunningNode) -> None:
    """Guards the end of `WebSocketProtocol.data_received`."""
    for head, status in [
        (b"GET /v1/tts/stream?" + b"a" * MAX_URL_BYTES + b" HTTP/1.1\r\n" + UPGRADE, b"400"),
        (b"GET /v1/tts/stream?" + b"%41&" * 1_000 + b" HTTP/1.1\r\n" + UPGRADE, b"400"),  # 4 ms before any key
        (b"GET /v1/tts/stream HTTP/1.1\r\nX: " + b"a" * 9_000 + b"\r\n" + UPGRADE, b"431"),
    ]:
        async with raw(node, head + b"\r\n") as sock:
            assert (await read_all(sock)).split()[1] == status
    await until(lambda: not node.server.server_state.connections)


@pytest.mark.parametrize(
    ("name", "start"), [(b"Connection", b"Upgrade, "), (b"Sec-WebSocket-Protocol", b"agent_tts.v1, ")]
)
async def test_long_lists_of_an_upgrade_are_refused_before_they_are_parsed(
    node: RunningNode, name: bytes, start: bytes
) -> None:
    """Guards MAX_LIST_BYTES. The token of a browser in `Sec-WebSocket-Protocol` is shorter."""
    lines = [line for line in HELLO.split(b"\r\n") if line and not line.startswith(name)]
    for length, status in [(2_000, b"101"), (5_000, b"400")]:
        head = b"\r\n".join([*lines, name + b": " + start + b"a" * length]) + b"\r\n\r\n"
        async with raw(node, head) as sock:
            assert (await read_until(sock)).split()[1] == status


@pytest.mark.parametrize(("upgrade", "good"), [(b"", b"200"), (UPGRADE.replace(HEAD, b""), b"101")])
async def test_a_request_has_exactly_one_host(upgrade: bytes, good: bytes) -> None:
    """A proxy may take the other of two. HTTP/1.0 needs none."""
    path = b"/v1/tts/stream" if upgrade else b"/v1/models"
    async with running_node(auth={"api_keys": ["k"]}) as node:
        for version, hosts, status in [
            (b"1.1", b"Host: localhost\r\n", good),
            (b"1.1", b"", b"400"),
            (b"1.1", b"Host: localhost\r\nhost: elsewhere\r\n", b"400"),
            (b"1.0", b"", good),
            (b"1.0", b"Host: a\r\nHost: a\r\n", b"400"),
        ]:
            head = b"GET %b HTTP/%b\r\n%bX-API-Key: k\r\n%b\r\n" % (path, version, hosts, upgrade)
            async with raw(node, head) as sock:
                assert (await read_until(sock)).split()[1] == status, (version, hosts)


async def test_an_upgrade_behind_an_unanswered_request_is_cut(node: RunningNode) -> None:
    """Guards `HttpProtocol.handle_websocket_upgrade`."""
    async with raw(node, HEALTH + b"\r\n" + HELLO) as sock:
        with contextlib.suppress(ConnectionResetError):
            assert await read_all(sock) == b""
    await until(lambda: not node.server.server_state.connections)


WEBSOCKET_FLOODS = {
    "pings": (b"", frame(PING, b"p" * 125) * 500),
    "pongs": (b"", frame(PONG) * 5_000),
    "empty continuations": (frame(TEXT_FRAME, fin=False), frame(CONTINUATION, fin=False) * 5_000),
    "messages after the close": (frame(TEXT_FRAME, b'{"type":"session.close"}'), frame(TEXT_FRAME, b"x") * 10_000),
}


@pytest.mark.parametrize("refused", [False, True], ids=["session", "refused"])
@pytest.mark.parametrize("attack", WEBSOCKET_FLOODS)
async def test_a_flood_of_frames_without_a_message_is_cut(attack: str, refused: bool) -> None:
    """Guards `WebSocketProtocol._may_send_idle_frame`."""
    opening, again = WEBSOCKET_FLOODS[attack]
    limits = {"connections": 1} if refused else {}
    async with running_node(timeouts=FAST | {"write_s": 5.0}, limits=limits) as node, harmless(node, 2.0):
        async with upgraded(node) as sock:
            await asyncio.get_running_loop().sock_sendall(sock, opening)
            await flood(sock, again)


async def test_slow_fragments_do_not_pile_up() -> None:
    """Guards MAX_FRAGMENTS, with the rate limit off."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agent_tts.serve.transports.uvicorn_protocols.IDLE_FRAMES_BURST", 1_000_000)
        async with running_node() as node, upgraded(node) as sock:
            await asyncio.get_running_loop().sock_sendall(sock, frame(TEXT_FRAME, fin=False))
            async with asyncio.timeout(2):
                await flood(sock, frame(CONTINUATION, fin=False) * MAX_FRAGMENTS)


async def test_a_refused_client_that_stays_connected_is_cut() -> None:
    """Guards the deadline in `StreamEndpoint._refuse`; uvicorn's own is 10 s."""
    keys = ["k" * 32]
    async with running_node(timeouts=FAST, auth={"api_keys": keys}) as node, asyncio.timeout(WRITE_S * 4):
        async with upgraded(node) as sock:
            await flood(sock, frame(PONG), every_s=0.05)
        await until(lambda: not node.server.server_state.connections)


async def test_a_flood_of_tiny_messages_is_delayed_and_complete(node: RunningNode) -> None:
    """Guards `WebSocketProtocol._parse` and the bucket in `Connection._read`: messages neither pile up nor get lost."""
    message = frame(TEXT_FRAME, b'{"type":"context.cancel","context_id":"*"}')
    async with harmless(node, 10.0), upgraded(node, 1 << 20) as sock:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        connections = node.server.server_state.connections
        (queue,) = [
            connection.queue
            for connection in connections
            if isinstance(connection, WebSocketProtocol) and connection.client == sock.getsockname()
        ]
        longest = 0

        async def watch() -> None:
            nonlocal longest
            while True:
                longest = max(longest, queue.qsize())
                await asyncio.sleep(0.005)

        watching = asyncio.create_task(watch())
        await loop.sock_sendall(sock, message * 4_000 + frame(TEXT_FRAME, b'{"type":"session.close"}'))
        await read_until(sock, b"closed by the client")
        await ended(watching)
        assert 1.5 < loop.time() - begun < 8
        assert longest < 200


# ---------------------------------------------------------------- legal traffic


async def test_ordinary_http_works() -> None:
    async with running_node(timeouts=FAST) as node, node.http() as http:
        body = b'{"model":"tts-1","input":"a","response_format":"pcm"}' + b" " * 60_000
        for _ in range(3):
            assert (await http.get("/health")).status_code == 200
            assert (await http.post("/v1/audio/speech", content=body)).status_code == 200
            await asyncio.sleep(HANDSHAKE_S * 1.2)  # no deadline runs between requests
        assert len(node.server.server_state.connections) == 1


async def test_two_pipelined_requests_are_both_answered(node: RunningNode) -> None:
    async with raw(node, HEALTH + b"\r\n" + HEALTH + b"Connection: close\r\n\r\n") as sock:
        assert (await read_all(sock)).count(b"HTTP/1.1 200 ") == 2


BODY = b'{"model":"tts-1","input":"%b","response_format":"pcm"}' % (b"so it goes on and on " * 900)
# Speech that takes long, and what waits for its end.
PIPELINED = b"POST /v1/audio/speech HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (HEAD, len(BODY), BODY)
PIPELINED += 2 * (HEALTH + b"\r\n")


async def test_all_requests_of_a_connection_are_told_that_it_is_lost(node: RunningNode) -> None:
    """Guards `HttpProtocol.connection_lost`: uvicorn tells the last one, and the speech of others would go on."""
    async with raw(node, PIPELINED) as sock:
        assert b" 200 " in await read_until(sock)
        assert node.node.service.used > 0
    async with asyncio.timeout(1):
        await until(lambda: node.node.service.used == 0)


H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.real_time
@pytest.mark.parametrize("size", [1 << 16, 50, 1])
async def test_an_offer_of_http_2_is_ignored(node: RunningNode, size: int) -> None:
    """As Java's HttpClient sends it, with its bodies. Guards `HttpProtocol._unsupported_upgrade_warning`."""
    body = b'{"model":"tts-1","input":"one","response_format":"pcm"}'
    speech = b"POST /v1/audio/speech HTTP/1.1\r\n" + HEAD + H2C
    requests = (
        HEALTH + H2C + b"\r\n",
        speech + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        speech + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n",
        HEALTH + b"Connection: close\r\n\r\n",
    )
    whole = b"".join(requests)
    async with raw(node) as sock:
        for at in range(0, len(whole), size):
            await asyncio.get_running_loop().sock_sendall(sock, whole[at : at + size])
            await asyncio.sleep(0)
        assert (await read_all(sock)).count(b"HTTP/1.1 200 ") == 4


async def test_the_node_is_no_proxy(node: RunningNode) -> None:
    async with raw(node, b"CONNECT a:1 HTTP/1.1\r\n" + HEAD + b"\r\n") as sock:
        assert (await read_all(sock)).startswith(b"HTTP/1.1 400 ")


async def test_a_chunked_body_in_small_pieces_is_read(node: RunningNode) -> None:
    body = b'{"model":"tts-1","input":"one","response_format":"pcm"}' + b" " * 60_000
    extension = b";x=" + b"y" * 150  # of a chunk, which is no header
    chunks = b"".join(b"40%s\r\n%s\r\n" % (extension, body[at : at + 64]) for at in range(0, len(body) - 63, 64))
    head = b"POST /v1/audio/speech HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n" + HEAD
    assert len(chunks) > 2 * MAX_HEADER_BYTES
    async with raw(node, head + b"\r\n" + chunks + b"0\r\nTrailer: yes\r\n\r\n", rcvbuf=1 << 16) as sock:
        assert (await read_all(sock)).startswith(b"HTTP/1.1 200 ")


async def test_fragments_pings_and_many_tokens_at_once_are_legal(node: RunningNode) -> None:
    async with wire(node.ws_url) as peer:
        expected = await speak(node.ws_url, "word " * 20, lead_ms=None)
        message = '{"type":"context.open","context_id":"t","lead_ms":null}'
        await peer.socket.send([*message, *(" " * 800)])
        for _ in range(50):
            await (await peer.socket.ping(b"p" * 125))
        for character in "word " * 20:
            await peer.send("text.append", context_id="t", text=character)
        await peer.send("context.end", context_id="t")
        assert (await peer.until("context.done"))["reason"] == "end"
        assert peer.pcm("t") == expected


# ---------------------------------------------------------------- after clients


async def test_clients_leave_nothing_to_the_garbage_collector() -> None:
    """Guards `GC_THRESHOLDS` and the weak references to protocols: a full collection takes 0.1 ms a connection."""
    paths = ["/v1/tts/stream", "/tts/websocket", "/v1/speak", "/v1/text-to-speech/x/stream-input", "/nowhere"]
    async with running_node() as running:
        gc.collect()
        gc.disable()
        try:
            for path in paths:
                with contextlib.suppress(WebSocketException, TimeoutError):
                    async with wire(f"{running.ws_url.removesuffix(paths[0])}{path}", subprotocols=None) as peer:
                        await peer.socket.send("{}")
                        async with asyncio.timeout(0.1):
                            while True:
                                await peer.socket.recv()
            await speak(running.ws_url, "word " * 5, lead_ms=None)
            async with running.http() as http:
                for body in ({"input": "one", "response_format": "pcm"}, {"input": "one", "voice": "nobody"}):
                    await http.post("/v1/audio/speech", json=body)
            async with raw(running, PIPELINED) as sock:
                assert b" 200 " in await read_until(sock)
            await until(lambda: not running.server.server_state.connections and not running.node.sessions)
            await asyncio.sleep(0.1)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = {type(each) for each in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    kinds = {HttpProtocol, WebSocketProtocol, Connection, Session, Utterance}
    assert not left & kinds


@asynccontextmanager
async def in_one_pass(calls: list[Any]) -> AsyncIterator[list[int]]:
    """The most of the calls of all clients that a pass of the event loop makes, once all are made."""
    loop, done, most = asyncio.get_running_loop(), [0], list[int]()

    def tick() -> None:
        done.append(len(calls))
        if done[-1] < CLIENTS:
            loop.call_soon(tick)

    loop.call_soon(tick)
    yield most
    await until(lambda: done[-1] == CLIENTS)
    most.append(max(after - before for before, after in itertools.pairwise(done)))


async def test_many_that_come_at_once_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Flow.call`, where a WebSocket begins: each pass of the event loop does about a slice of them."""
    begun = recorded(monkeypatch, WebSocketProtocol, "connection_made")
    async with running_node(auth={"api_keys": ["k"]}) as node, contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(raw(node)) for _ in range(CLIENTS)]
        await until(lambda: len(node.server.config.table) == CLIENTS)
        async with in_one_pass(begun) as most:
            for client in clients:
                client.send(HELLO)
    assert most[0] <= CLIENTS // 3


@pytest.mark.parametrize("upgrades", [False, True])
async def test_many_that_leave_at_once_are_shared_out(upgrades: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`PlayerConnection.eof_received`: 1 000 connections that end at once would keep everybody waiting for 40 ms."""
    ended = recorded(monkeypatch, WebSocketProtocol if upgrades else HttpProtocol, "connection_lost")
    async with running_node() as node, contextlib.AsyncExitStack() as stack:
        for _ in range(CLIENTS):
            client = await stack.enter_async_context(raw(node, HELLO if upgrades else b""))
            if upgrades:  # what is unread at the end would make it a reset
                assert b" 101 " in await read_until(client, b"session.created")
        await until(lambda: len(node.server.config.table) == CLIENTS)
        async with in_one_pass(ended) as most:
            await stack.aclose()
        assert not node.server.config.table
    assert most[0] <= SLICE_S / CLOSE_S + 1
