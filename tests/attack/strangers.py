"""Strangers and key holders with requests that no client sends: odd HTTP, slow bodies, storms, floods, garbage."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from unittest.mock import patch

import httpx
from websockets.exceptions import WebSocketException

from agent_tts.bench.connection import dial
from agent_tts.bench.node import MeasuredNode
from agent_tts.errors import SpeechError
from tests.attack.harness import Broken, Target, attack, plain_node
from tests.rtc_peer import connected
from tests.serve.processes.test_server import frame
from tests.wire import wire

ROOM = {"limits__connections": 2_000, "limits__sessions_per_key": 1_500}  # for a storm
ANSWER_S = 5.0  # for a request to be answered or cut
WS_HEAD = (
    "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
SOCKETS = (
    "/v1/tts/stream",
    "/tts/websocket",
    "/v1/speak",
    "/v2/speak",
    "/v1/text-to-speech/nova/stream-input",
    "/v1/text-to-speech/nova/multi-stream-input",
    "/v1/audio/speech/stream",
)
BODIES = (
    "/v1/audio/speech",
    "/v1/audio/voices",
    "/v1/rtc/offer",
    "/tts/bytes",
    "/tts/sse",
    "/v1/speak",
    "/v1/text-to-speech/nova",
    "/v1/text-to-speech/nova/stream",
)

# Runs when the node's processes start: the wall clock jumps by an hour each half second, temporary files have no room.
UNLUCKY = """
import tempfile, time

clock, clock_ns, began = time.time, time.time_ns, time.monotonic()
offset = lambda: (0, 3_600, -3_600)[int(2 * (time.monotonic() - began)) % 3]
time.time = lambda: clock() + offset()
time.time_ns = lambda: clock_ns() + offset() * 10**9
tempfile.tempdir = "/dev/full"
"""


@asynccontextmanager
async def unlucky_node(settings: Mapping[str, object]) -> AsyncIterator[MeasuredNode]:
    """A node with `UNLUCKY` in front of its code."""
    with site(UNLUCKY) as path:
        async with AsyncExitStack() as stack:
            with patch.dict(os.environ, PYTHONPATH=path):
                node = await stack.enter_async_context(plain_node(settings))
            yield node


@contextmanager
def site(code: str) -> Iterator[str]:
    """A PYTHONPATH whose processes run this code first."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(code)
        yield os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])


async def exchange(target: Target, *pieces: bytes, pause_s: float = 0.0, answer_s: float = ANSWER_S) -> bytes:
    """Send the pieces; returns what comes until the node closes, resets or says no more for `answer_s`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    answer = b""
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)
        async with asyncio.timeout(answer_s):
            while len(answer) < 1 << 20 and (piece := await reader.read(65_536)):
                answer += piece
    except (TimeoutError, OSError):
        pass
    finally:
        writer.transport.abort()
    return answer


def status(answer: bytes) -> int:
    """The status of an HTTP answer; 0 without one."""
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


@attack("a clock that jumps, and no room for files", settings=ROOM, node=unlucky_node)
async def unlucky(target: Target) -> str:
    """Tokens, speech over WebRTC and HTTP, and pacing go by a clock that does not jump, and no file is written."""
    formats = ("wav", "mp3", "opus", "flac", "aac", "pcm")
    rounds, hours = int(target.scaled(5, 1)), set()
    async with httpx.AsyncClient(base_url=target.url, headers=target.headers, timeout=20) as http:
        for _ in range(rounds):
            token = (await http.post("/v1/tokens")).json()["token"]
            async with connected(target.url, target.headers) as caller:
                caller.say("t1", "The clock on the wall jumps, and nobody hears it. " * 2)
                await asyncio.sleep(1.1)  # over two jumps
                async with wire(f"{target.ws_url}?token={token}") as peer:
                    await peer.say("t1", "Nor here.")
                    if (await peer.until("context.done"))["reason"] != "end":
                        raise Broken("a paced context did not end by itself")
                for format_ in formats:
                    body = {"input": "Nor in a file.", "response_format": format_}
                    answer = (await http.post("/v1/audio/speech", json=body)).raise_for_status()
                    hours.add(answer.headers["date"].split(":")[0])
                done = await caller.message("context.done")
                if done["reason"] != "end" or not caller.loud():
                    raise Broken(f"a caller heard nothing, or not all: {done['reason']}")
                await asyncio.sleep(0.6)  # uvicorn sets the date once a second
    if rounds > 1 and len(hours) < 2:
        raise AssertionError("the clock of the node did not jump")
    return f"{rounds} rounds over jumps of an hour"


@attack("long lists in the headers of a WebSocket", settings=ROOM, node=unlucky_node)
async def long_lists(target: Target) -> str:
    """Each name in `Connection`, `Upgrade` and `Sec-WebSocket-*` is parsed before any key is seen."""
    connection = b"Connection: Upgrade" + b",a" * 3_990 + b"\r\n"
    head = WS_HEAD.format(path="/v1/tts/stream").encode()
    count = int(target.scaled(1_000, 20))
    answers = Counter[int]()
    for _ in range(count // 20):
        requests = (exchange(target, head + connection * 7 + b"\r\n", answer_s=1) for _ in range(20))
        answers.update(map(status, await asyncio.gather(*requests)))
    return f"{count} handshakes of 56 kB: {dict(answers)}"


def odd_requests(key: str) -> Iterable[bytes]:
    """Requests at the edges of HTTP/1.1, each with the end of its connection."""
    known = f"Host: localhost\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n".encode()
    for line in (
        b"GET http://elsewhere.example/v1/models HTTP/1.1",
        b"GET ftp://x:99999/v1/models HTTP/1.1",
        b"CONNECT elsewhere.example:443 HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"TRACE /v1/models HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"GET /v1/models HTTP/3.7",
        b"GET /v1/models/a%00b HTTP/1.1",
        b"GET /v1/models/%2e%2e/%2e%2e/etc/passwd HTTP/1.1",
        b"GET /v1/models/%ff%zz% HTTP/1.1",
        b"GET /v1/models/" + b"a" * 7_900 + b" HTTP/1.1",
        b"GET /web/a%00b HTTP/1.1",
        b"GET /web/..%2f..%2f..%2fetc/passwd HTTP/1.1",
        b"GET /web//etc/passwd HTTP/1.1",
        b"GET /web/%ed%a0%80 HTTP/1.1",
        b"GET /web/" + b"a" * 5_000 + b" HTTP/1.1",
        b"GET /web/" + b"a/" * 3_900 + b" HTTP/1.1",
    ):
        yield line + b"\r\n" + known + b"\r\n"
    many = b",".join(b"%d-%d" % (2 * at, 2 * at) for at in range(6_000))
    for header in (
        b"Range: bytes=" + many,
        b"Range: bytes=" + b"9" * 5_000 + b"-",
        b"Range: b\xe4=1-2",
        b"If-Modified-Since: " + b"(" * 60_000,
        b"If-None-Match: " + b'"a",' * 14_000,
        b"X: \0",
        b": x",
        b"\r\n".join(b"X%d: y" % number for number in range(150)),
        b"Content-Type: multipart/form-data" + b";" * 60_000,
    ):
        yield b"GET /web/app.js HTTP/1.1\r\n" + known + header + b"\r\n\r\n"
    junk = b"1;" + b"a" * 60_000 + b"\r\nx\r\n"
    for header, body in (
        (b"Transfer-Encoding: chunked", junk * 20 + b"0\r\n\r\n"),
        (b"Transfer-Encoding: gzip, chunked", b"1\r\nx\r\n0\r\n\r\n"),
        (b"Content-Length: 3\r\nTransfer-Encoding: chunked", b"1\r\nx\r\n0\r\n\r\n"),
        (b"Content-Length: -3", b""),
        (b"Content-Length: 99999999999999999999999999", b""),
        (b"Content-Length: 3\r\nContent-Length: 4", b"abc"),
        (b"Content-Length: 3\r\nExpect: 100-continue", b"abc"),
    ):
        yield b"POST /v1/audio/speech HTTP/1.1\r\n" + known + header + b"\r\n\r\n" + body


@attack("odd HTTP", settings=ROOM, node=unlucky_node)
async def odd_http(target: Target) -> str:
    answers = Counter[int]()
    until, rounds = time.monotonic() + target.scaled(20, 0), 0
    while time.monotonic() < until or not rounds:
        rounds += 1
        for request in odd_requests(target.key if rounds % 2 else "nobody"):
            answer = await exchange(target, request)
            answers[status(answer)] += 1
            if status(answer) >= 500 or b"root:" in answer:
                raise Broken(f"{request[:60]!r} is answered with {answer[:60]!r}")
    return f"{rounds} rounds: {dict(answers)}"


@attack("slow bodies", settings=ROOM, node=unlucky_node)
async def slow_bodies(target: Target) -> str:
    """One byte a second on every route that reads a body: each is cut in time."""
    length = 60_000

    async def send(path: str, chunked: bool) -> float:
        began = time.monotonic()
        how = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {length}"
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {target.key}\r\n{how}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        with contextlib.suppress(OSError):
            writer.write(head.encode())
            while not reader.at_eof() and time.monotonic() - began < 30:
                writer.write(b"1\r\n \r\n" if chunked else b" ")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await reader.read(4_096)
        writer.transport.abort()
        return time.monotonic() - began

    each = int(target.scaled(8, 1))
    jobs = (send(path, bool(number % 2)) for path in BODIES for number in range(each))
    took = max(await asyncio.gather(*jobs))
    if took > 15:
        raise Broken(f"a body of one byte a second was read for {took:.0f} s")
    return f"{each * len(BODIES)} bodies, the last cut after {took:.1f} s"


@attack("a storm of new connections", settings=ROOM, node=unlucky_node)
async def storm(target: Target) -> str:
    """Everybody comes back within 2 s, as after a fault of the network, and again."""
    count, rounds = int(target.scaled(1_000, 50)), int(target.scaled(3, 1))
    hold_s, failed = target.scaled(2.5, 0.5), Counter[str]()

    async def come(delay_s: float, seconds: float) -> None:
        await asyncio.sleep(delay_s)
        try:
            connection = await dial(target.ws_url, target.key)
        except (SpeechError, TimeoutError) as error:
            failed[str(error)[:60]] += 1
            return
        connection.send("ping", t=1)
        await asyncio.sleep(seconds)
        await connection.close(reset=True)

    for _ in range(rounds):
        await asyncio.gather(*(come(target.scaled(2, 0.5) * number / count, hold_s) for number in range(count)))
    if failed:
        raise Broken(f"{sum(failed.values())} of {count * rounds} were turned away: {failed.most_common(2)}")
    return f"{count} connections in 2 s, {rounds} times"


@attack("frames without messages", settings=ROOM, node=unlucky_node)
async def frames(target: Target) -> str:
    """Floods of pings, empty fragments, closes and what follows them, on each dialect's socket."""
    floods = {
        "pings": frame(9, b"x" * 125) * 50_000,
        "pongs": frame(10, b"") * 100_000,
        "empty fragments": frame(1, b"", fin=False) + frame(0, b"", fin=False) * 100_000,
        "a close, then messages": frame(8, b"\x03\xe8") + frame(1, b'{"type":"ping"}') * 50_000,
        "closes": frame(8, b"\x03\xe8") * 100_000,
        "reserved bits": b"\xf1\x80" + bytes(4),
        "a reserved opcode": frame(3, b"x"),
        "a close of one byte": frame(8, b"x"),
        "a huge length": b"\x81\xff" + b"\xff" * 8 + bytes(4),
        "no mask": b"\x81\x02{}",
        "broken UTF-8": frame(1, b"\xff\xfe"),
    }
    sent = 0
    for _ in range(int(target.scaled(3, 1))):
        for path in SOCKETS[: int(target.scaled(len(SOCKETS), 1))]:
            head = WS_HEAD.format(path=path) + f"Connection: Upgrade\r\nAuthorization: Bearer {target.key}\r\n\r\n"
            for flood in floods.values():
                await exchange(target, head.encode(), flood, answer_s=target.scaled(1.5, 0.1))
                sent += len(flood)
    return f"{sent >> 20} MiB in {len(floods)} kinds of frames"


@attack("garbage on every socket", settings=ROOM, node=unlucky_node)
async def garbage(target: Target) -> str:
    """JSON of every shape, and none, in each dialect; the next client of the dialect is served."""
    chance = random.Random(0)
    seconds, sent = target.scaled(4, 0.1), 0
    words = ["type", "text", "context_id", "voice", "model_id", "transcript", "Speak", "ping", "*", "\ud800", "a" * 300]

    def value(depth: int = 0) -> object:
        kind = chance.randrange(9 if depth < 4 else 6)
        match kind:
            case 0 | 1 | 2:
                return chance.choice(words)
            case 3:
                return chance.choice([None, True, 1e308, -1, 2**70, 0.1])
            case 4 | 5:
                return chance.randrange(1_000)
            case 6:
                return [value(depth + 1) for _ in range(chance.randrange(4))]
            case _:
                return {chance.choice(words): value(depth + 1) for _ in range(chance.randrange(5))}

    for path in SOCKETS:
        url = target.ws_url.replace("/v1/tts/stream", path)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(WebSocketException, OSError, TimeoutError):
                async with wire(url, subprotocols=None, additional_headers=target.headers) as peer:
                    for _ in range(200):
                        sent += 1
                        await peer.socket.send(
                            os.urandom(20) if chance.random() < 0.1 else json.dumps(value(), allow_nan=True)
                        )
                    async with asyncio.timeout(0.2):
                        while True:
                            await peer.socket.recv()
    return f"{sent} messages on {len(SOCKETS)} sockets"
