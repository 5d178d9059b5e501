"""Legal traffic that takes the front's time: audio to encode, messages to check, pages to make."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from agent_tts.bench.statistics import background
from agent_tts.protocol.v1 import SUBPROTOCOL
from tests.attack.harness import Broken, Target, attack

SLOTS = {"slots": 96}
NATIVE_PATH = "/v1/tts/stream"
ENCODERS_MIB = 160.0  # of 64 contexts; the allocator keeps what they have freed
SESSIONS = 4  # of one key
CONTEXTS = 16  # of one session
TEXT = "so it goes on and on " * 180
MESSAGE_BYTES = 65_000

UNKNOWN_FIELDS = json.dumps({f"f{number}": 0 for number in range(5_000)})[1:-1]
BAD_EMBEDDING = json.dumps(["x"] * 13_000)


class Socket:
    """A WebSocket of an attacker, who reads what and when it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protocol: ClientProtocol) -> None:
        self.reader = reader
        self.writer = writer
        self._protocol = protocol

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def read(self) -> int:
        """Read what has come, and answer pings; returns the number of bytes. Raises `Broken` when the node closes."""
        data = await self.reader.read(1 << 20)
        if not data:
            raise Broken("the node closed the connection of a client that reads")
        self._protocol.receive_data(data)
        self._protocol.events_received()
        self.send(*self._protocol.data_to_send())
        return len(data)

    async def swallow(self) -> None:
        """Read for ever."""
        while True:
            await self.read()


def frame(**message: object) -> bytes:
    return text_frame(json.dumps(message))


def text_frame(text: str) -> bytes:
    return Frame(Opcode.TEXT, text.encode()).serialize(mask=True)


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A TCP connection to the node."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@asynccontextmanager
async def opened(target: Target, path: str = NATIVE_PATH, key: str | None = None) -> AsyncIterator[Socket]:
    """A WebSocket with the attacker's key, greeted."""
    async with connected(target) as (reader, writer), asyncio.timeout(target.scaled(300, 60)):
        uri = parse_uri(f"ws://127.0.0.1:{target.port}{path}")
        offered = [Subprotocol(SUBPROTOCOL)] if path == NATIVE_PATH else None  # others speak none of this name
        protocol = ClientProtocol(uri, subprotocols=offered, max_size=None)
        hello = protocol.connect()
        hello.headers["Authorization"] = f"Bearer {key or target.key}"
        protocol.send_request(hello)
        socket = Socket(reader, writer, protocol)
        socket.send(*protocol.data_to_send())
        while protocol.state is State.CONNECTING and protocol.handshake_exc is None:
            await socket.read()
        if protocol.handshake_exc is not None:
            raise Broken(f"the node refuses a legal connection: {protocol.handshake_exc}")
        yield socket


def request(target: Target, method: str, path: str, body: str = "", key: str | None = None) -> bytes:
    """An HTTP request."""
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\n{authorization}"
    data = body.encode()
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    return f"{head}\r\n".encode() + data


async def opus_in_bursts(target: Target, sessions: int, duration_s: float, encoding: str = "opus") -> int:
    """Sessions full of unpaced contexts, whose audio is read in bursts; returns the bytes read.

    One that the node refuses, because the key has made too many requests, is opened again.
    """
    size = 0

    async def one() -> None:
        nonlocal size
        rate = 48_000 if encoding == "ogg_opus" else 24_000
        async with opened(target) as socket:
            output = {"encoding": encoding, "sample_rate": rate}
            socket.send(frame(type="session.update", session={"lead_ms": None, "timestamps": "none", "output": output}))
            turn = 0
            while True:
                now = asyncio.get_running_loop().time()
                if turn % 20 == 0:  # again and again
                    socket.send(frame(type="context.cancel", context_id="*"))
                    for number in range(CONTEXTS):
                        name = f"{turn}-{number}"
                        socket.send(frame(type="text.append", context_id=name, text=TEXT) * 4)
                        socket.send(frame(type="context.end", context_id=name))
                turn += 1
                await asyncio.sleep(0.4)
                with contextlib.suppress(TimeoutError):
                    while asyncio.get_running_loop().time() < now + 1:
                        async with asyncio.timeout(0.02):
                            size += await socket.read()

    await again_and_again(one, sessions, duration_s)
    return size


async def again_and_again(one: Callable[[], Awaitable[None]], count: int, duration_s: float) -> None:
    """Run so many at once, each again when the node has closed its connection, for `duration_s`."""

    async def again() -> None:
        while True:
            with contextlib.suppress(Broken, OSError, asyncio.IncompleteReadError):
                await one()
            await asyncio.sleep(0.05)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(duration_s), asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(again())


async def send_over_and_over(
    target: Target, message: bytes, duration_s: float, path: str = "/v1/tts/stream", sockets: int = SESSIONS
) -> int:
    """The same message as fast as sockets take it, on a new one when the node closes it; returns the number sent."""
    sent = 0

    async def one() -> None:
        nonlocal sent
        async with opened(target, path) as socket, background(socket.swallow(), "answers"):
            while not socket.writer.is_closing():
                socket.send(message)
                await socket.writer.drain()
                sent += 1

    await again_and_again(one, sockets, duration_s)
    return sent


async def request_over_and_over(
    target: Target, batches: Iterator[bytes], duration_s: float, connections: int
) -> Counter[str]:
    """Batches of pipelined requests, each as soon as the last is answered; counts the answers by status.

    A connection that the node closes is opened again.
    """
    statuses: Counter[str] = Counter()
    kinds = list(batches)

    async def one(batch: bytes) -> None:
        while True:
            with contextlib.suppress(OSError):
                async with connected(target) as (reader, writer):
                    left = 0
                    while True:
                        if left <= 0:
                            writer.write(batch)
                            left = batch.count(b" HTTP/1.1\r\n")
                        if not (data := await reader.read(1 << 18)):
                            break
                        found = re.findall(rb"HTTP/1.1 (\d+)", data)
                        left -= len(found)
                        statuses.update(status.decode() for status in found)
            await asyncio.sleep(0.01)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(duration_s), asyncio.TaskGroup() as group:
            for number in range(connections):
                group.create_task(one(kinds[number % len(kinds)]))
    return statuses


def told(statuses: Counter[str]) -> str:
    return ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))


# ---------------------------------------------------------------- one by one


@attack("opus unpaced, read in bursts", settings=SLOTS)
async def one_session_in_bursts(target: Target) -> str:
    size = await opus_in_bursts(target, 1, target.scaled(15, 0.5))
    return f"{size >> 10} KiB"


@attack("four such", settings=SLOTS, max_growth_mib=ENCODERS_MIB)
async def four_sessions_in_bursts(target: Target) -> str:
    size = await opus_in_bursts(target, SESSIONS, target.scaled(15, 0.5))
    return f"{size >> 10} KiB"


@attack("four with Ogg", settings=SLOTS, max_growth_mib=ENCODERS_MIB)
async def four_sessions_of_ogg(target: Target) -> str:
    size = await opus_in_bursts(target, SESSIONS, target.scaled(15, 0.5), "ogg_opus")
    return f"{size >> 10} KiB"


@attack("files of all kinds", settings=SLOTS)
async def files(target: Target) -> str:
    def speech() -> Iterator[bytes]:
        for kind in ("mp3", "opus", "aac", "flac"):
            body = json.dumps({"input": TEXT, "response_format": kind})
            yield request(target, "POST", "/v1/audio/speech", body, target.key)

    return told(await request_over_and_over(target, speech(), target.scaled(15, 0.5), 8))


@attack("bad embeddings", settings=SLOTS)
async def bad_embeddings(target: Target) -> str:
    message = f'{{"transcript": "x", "context_id": "x", "voice": {{"embedding": {BAD_EMBEDDING}}}}}'
    sent = await send_over_and_over(target, text_frame(message), target.scaled(15, 0.5), "/tts/websocket")
    return f"{sent} messages"


@attack("unknown fields", settings=SLOTS)
async def unknown_fields(target: Target) -> str:
    message = f'{{"type": "context.open", "context_id": "x", {UNKNOWN_FIELDS}}}'
    sent = await send_over_and_over(target, text_frame(message), target.scaled(15, 0.5))
    return f"{sent} messages"


@attack("unknown fields by HTTP", settings=SLOTS)
async def unknown_fields_of_requests(target: Target) -> str:
    requests = request(target, "POST", "/v1/audio/speech", f'{{"input": "x", {UNKNOWN_FIELDS}}}', target.key)
    return told(await request_over_and_over(target, iter([requests]), target.scaled(15, 0.5), 16))


@attack("pages without a key", settings=SLOTS)
async def pages(target: Target) -> str:
    pipelined = request(target, "GET", "/openapi.json") * 16
    return told(await request_over_and_over(target, iter([pipelined]), target.scaled(15, 0.5), 250))


@attack("metrics and voices", settings=SLOTS)
async def metrics_and_voices(target: Target) -> str:
    paths = ("/metrics", "/v1/audio/voices", "/v1/voices", "/v1/models")
    requests = (request(target, "GET", path, key=target.key) * 16 for path in paths)
    return told(await request_over_and_over(target, requests, target.scaled(15, 0.5), 32))


@attack("all of these at once", settings=SLOTS)
async def everything(target: Target) -> str:
    duration_s = target.scaled(20, 1)
    field = f'{{"type": "context.open", "context_id": "x", {UNKNOWN_FIELDS}}}'
    embedding = f'{{"transcript": "x", "context_id": "x", "voice": {{"embedding": {BAD_EMBEDDING}}}}}'
    bodies = request(target, "POST", "/v1/audio/speech", f'{{"input": "x", {UNKNOWN_FIELDS}}}', target.key)
    found = await asyncio.gather(
        opus_in_bursts(target, 2, duration_s),
        send_over_and_over(target, text_frame(field), duration_s, sockets=1),
        send_over_and_over(target, text_frame(embedding), duration_s, "/tts/websocket", sockets=1),
        request_over_and_over(target, iter([bodies]), duration_s, 8),
        request_over_and_over(target, iter([request(target, "GET", "/openapi.json") * 16]), duration_s, 200),
        request_over_and_over(target, iter([request(target, "GET", "/metrics", key=target.key) * 16]), duration_s, 16),
    )
    return f"{found[0] >> 10} KiB, {found[1] + found[2]} messages, {told(found[3])}; {told(found[4])}; {told(found[5])}"
