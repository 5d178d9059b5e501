"""One session on one WebSocket, with one reader and one writer, in any dialect that has an adapter."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loguru import logger
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from agent_tts.errors import Draining, SlowConsumer, SpeechError, UnsupportedProtocol
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Failed, ProtocolAdapter
from agent_tts.serve import openai
from agent_tts.serve.access.fair_queue import Flow
from agent_tts.serve.access.guard import Client
from agent_tts.serve.connections import CONNECTION
from agent_tts.serve.node import Node
from agent_tts.serve.session import Session
from agent_tts.serve.token_bucket import TokenBucket
from agent_tts.serve.transports.uvicorn_protocols import WebSocketProtocol
from agent_tts.serve.transports.writer import WRITE_BYTES, Writer

# Close codes of errors that refuse a connection.
CLOSE_CODES = {"unauthorized": 1008, "forbidden": 1008, "at_capacity": 1013, "rate_limited": 1013, "draining": 1012}

# Messages of one connection; faster ones wait in its buffers, then in the client. An agent sends about 100 a second.
# The buffers hold about 2000 messages, which must pass within `ping_s`, or the pong behind them comes too late.
MESSAGES_PER_S = 1_000
MESSAGES_BURST = 2_000


async def next_message(websocket: WebSocket, allowed: TokenBucket, clock: Callable[[], float]) -> str | bytes | None:
    """The next message of a client, no sooner than `allowed`; None when it has left, whatever it has sent before.

    Cancelling may lose one.
    """
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        return None
    if (early_s := allowed.take(clock())) > 0:
        if websocket.scope["extensions"][CONNECTION].has_left:
            return None
        await asyncio.sleep(early_s)
    text: str | None = message.get("text")
    data: str | bytes = message["bytes"] if text is None else text
    return data


@dataclass(frozen=True, slots=True)
class Dialect:
    """The protocol of a route."""

    name: str  # in metrics
    make_adapter: Callable[[WebSocket, Node], ProtocolAdapter]  # of a new connection; never raises
    subprotocols: tuple[str, ...] = ()  # what is spoken here, by its names; none: whatever is offered
    key_query: tuple[str, ...] = ()  # query parameters that may hold the API key
    denies: bool = False  # refuses by an HTTP status before the upgrade; otherwise by a message and a close code
    denial_header: str | None = None  # response header with the reason of such a refusal


NATIVE = Dialect("websocket", lambda *_: protocol.NativeAdapter(), (protocol.SUBPROTOCOL,))


class StreamEndpoint:
    """The ASGI application of a route."""

    def __init__(self, node: Node, dialect: Dialect = NATIVE) -> None:
        self._node = node
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        dialect = self._dialect
        adapter = dialect.make_adapter(websocket, self._node)
        try:
            subprotocol = self._negotiate(websocket)
            if not dialect.denies:
                await self._accept(websocket, subprotocol)
            client = await self._node.guard.identify(websocket, token_ok=True, key_query=dialect.key_query)
            if self._node.service.draining:
                raise Draining
            with await self._node.guard.admit(client) as owner:
                if dialect.denies:
                    await self._accept(websocket, subprotocol)
                await Connection(self._node, websocket, send, dialect, adapter, client, owner).run()
        except SpeechError as error:
            self._node.metrics.refused.labels(error.code).inc()
            if websocket.application_state is WebSocketState.CONNECTING:
                headers = {}
                if dialect.subprotocols:
                    headers["Sec-WebSocket-Protocol"] = ", ".join(dialect.subprotocols)  # what is spoken
                if dialect.denial_header is not None:
                    headers[dialect.denial_header] = error.message.encode("ascii", "replace").decode()
                await deny(websocket, error, self._node.settings.timeouts.write_s, headers)
            else:
                await self._refuse(websocket, adapter, error)

    def _negotiate(self, websocket: WebSocket) -> str | None:
        """The subprotocol, if one was offered. Raises `UnsupportedProtocol` if none of those offered is spoken.

        That is answered before the upgrade: browsers and others fail a handshake that selects no subprotocol, or one
        that was not offered, and RFC 6455 forbids to select one that is not spoken.
        """
        ours, offered = self._dialect.subprotocols, websocket.scope.get("subprotocols", [])
        chosen = next((each for each in offered if each in ours), None)
        if ours and offered and chosen is None:
            raise UnsupportedProtocol(f"no subprotocol that was offered is spoken here: offer {' or '.join(ours)}")
        return chosen

    async def _accept(self, websocket: WebSocket, subprotocol: str | None) -> None:
        async with asyncio.timeout(self._node.settings.timeouts.handshake_s):
            await websocket.accept(subprotocol)

    async def _refuse(self, websocket: WebSocket, adapter: ProtocolAdapter, error: SpeechError) -> None:
        write_s = self._node.settings.timeouts.write_s
        asyncio.get_running_loop().call_later(write_s, websocket.scope["extensions"][CONNECTION].transport.abort)
        with contextlib.suppress(Exception):  # the client may be gone
            async with asyncio.timeout(write_s):
                for message in adapter.encode(Failed(None, error, fatal=True)):
                    kind = "bytes" if isinstance(message, bytes) else "text"
                    await websocket.send({"type": "websocket.send", kind: message})
                await websocket.close(CLOSE_CODES.get(error.code, 1011), close_reason(error.message))


def close_reason(message: str) -> str:
    """As much of a message as a close frame has room for (RFC 6455, 5.5)."""
    return message.encode()[:123].decode(errors="ignore")


async def deny(
    websocket: WebSocket, error: SpeechError, write_s: float, headers: Mapping[str, str] | None = None
) -> None:
    """Answer an upgrade with the HTTP status of an error, within `write_s` seconds."""
    response = JSONResponse(openai.error_body(error), error.status, openai.retry_headers(error))
    response.headers.update(headers or {})
    with contextlib.suppress(Exception):  # the client may be gone
        async with asyncio.timeout(write_s):
            await websocket.receive()  # websocket.connect
            await websocket.send_denial_response(response)


class Connection:
    """Moves messages between a socket and its session."""

    def __init__(
        self,
        node: Node,
        websocket: WebSocket,
        send: Send,
        dialect: Dialect,
        adapter: ProtocolAdapter,
        client: Client,
        owner: int,
    ) -> None:
        self._node = node
        self._adapter = adapter
        self._websocket = websocket
        self._writer = Writer(websocket.scope, send, node.settings.timeouts)
        self._connection: WebSocketProtocol = websocket.scope["extensions"][CONNECTION]
        self._connection.unplayed_s = self._writer.unplayed_s
        self._session = Session(node, dialect.name, owner=owner)
        # One is for reading and one for writing.
        share = node.fair_queue.share(client.key_id)
        self._reader, self._encoder, self._connection.turns = Flow(share), Flow(share), Flow(share)
        if dialect is not NATIVE:  # native clients must always answer pings
            session = self._session
            self._connection.demands_pongs = lambda: session.is_speaking  # not of this object, which holds the protocol
        # The next check for an idle session.
        self._idle_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        # Set while the task `_write` has to act: the client has no room, sending has failed, or a close is due. What
        # failed, and the close that is due.
        self._stalled = asyncio.Event()
        self._fault: Exception | None = None
        self._closing: tuple[int, str] | None = None
        self._session.waker = self._wake

    async def run(self) -> None:
        """Serve until either side closes. Cancelling it stops all speech of the connection at once."""
        writing = asyncio.create_task(self._write(), name=f"writer of session {self._session.id}")
        self._check_idle()
        self._wake()
        try:
            self._session.receive(self._adapter.begin())
            await self._read()
        except SlowConsumer:
            self._cut()
        finally:
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            self._session.close()
            self._stalled.set()  # nothing is sent any more
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _read(self) -> None:
        clock = self._loop.time
        allowed = TokenBucket(MESSAGES_PER_S, MESSAGES_BURST, clock())
        while (message := await next_message(self._websocket, allowed, clock)) is not None:
            with contextlib.suppress(SpeechError):  # `decode` raises it again
                async with self._reader:
                    work = self._adapter.prepare(message)
                if work is not None:
                    await self._node.reading(work)
            async with self._reader:
                self._session.receive(self._adapter.decode(message))
            while self._session.is_reading and self._closing is None:
                if self._connection.has_left:  # its end lies behind what it has sent, which is not read meanwhile
                    self._writer.cut()
                    return
                async with self._reader:
                    self._session.go_on()

    def _wake(self) -> None:
        if not self._stalled.is_set():
            self._encoder.call(self._send)

    def _send(self) -> None:
        """Send a slice of what the session has, or have `_write` act."""
        try:
            if self._writer.has_room():
                if not self._send_all():
                    self._wake()
                    return
                self._closing = self._adapter.closing or self._session.closing
                if self._closing is None:
                    return
        except Exception as error:  # noqa: BLE001 - `_write` raises it
            self._fault = error
        self._stalled.set()

    async def _write(self) -> None:
        """Wait for a client without room, and end the connection: in order, or cut if the client takes nothing."""
        try:
            while True:
                await self._stalled.wait()
                if self._fault is not None:
                    fault, self._fault = self._fault, None  # it holds the frames in which it was raised
                    raise fault
                if self._closing is not None:
                    code, reason = self._closing
                    await self._writer.finish()
                    self._connection.close_timeout += self._writer.unplayed_s()  # it is read after the audio
                    await self._writer.write({"type": "websocket.close", "code": code, "reason": reason})
                    return
                await self._writer.room()
                self._stalled.clear()
                self._wake()
        except SlowConsumer:
            self._cut()
        except Exception as error:  # noqa: BLE001 - the edge of a task: without its writer the connection must end
            if not self._connection.transport.is_closing():
                logger.error("session {}: writer failed: {}", self._session.id, type(error).__name__)
            self._writer.cut()

    def _send_all(self) -> bool:
        """Send what the session has, a slice of work and `WRITE_BYTES` at most; returns whether that was all."""
        session, adapter = self._session, self._adapter
        messages: list[str | bytes] = []
        size, heard_s = 0, session.heard_s
        has_room = True
        while has_room and adapter.closing is None and (event := session.poll()) is not None:
            for message in adapter.encode(event):
                messages.append(message)
                size += len(message)
            if more := adapter.follow():
                session.receive(more)
            has_room = size < WRITE_BYTES and self._encoder.has_time()
        if messages:
            self._connection.write(messages)
            self._writer.wrote(size, session.heard_s - heard_s)
        return has_room

    def _check_idle(self) -> None:
        """Close the session if it has been idle for too long, and check again when it may have been."""
        self._idle_timer = self._loop.call_later(self._session.expire(), self._check_idle)

    def _cut(self) -> None:
        """Close the connection to a client that does not read; it is counted once."""
        if not self._connection.transport.is_closing():
            self._node.metrics.refused.labels("slow_consumer").inc()
            logger.warning("session {}: slow_consumer, connection cut", self._session.id)
        self._writer.cut()
