"""uvicorn's HTTP and WebSocket, with the deadlines and sizes that it lacks."""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
import weakref
from asyncio.trsock import TransportSocket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import httptools
import uvicorn
from fastapi import FastAPI
from loguru import logger
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Protocol, State

from agent_tts.config.files import FileContents
from agent_tts.config.settings import Settings
from agent_tts.protocol.validation import MAX_FIELDS
from agent_tts.serve.access.fair_queue import SLICE_S, STRANGERS, Flow
from agent_tts.serve.connections import CONNECTION, ConnectionTable, Standing
from agent_tts.serve.fronts import connections
from agent_tts.serve.token_bucket import TokenBucket
from agent_tts.serve.transports import tcp
from agent_tts.serve.transports.tls import server_context
from agent_tts.system import open_files
from agent_tts.system.private_names import require

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent, ASGISendEvent

MAX_HEADER_BYTES = 65_536
MAX_HEADERS = 100
MAX_URL_BYTES = 8_000  # with method and version it has to fit the longest line of `websockets`: 8192 bytes
# Bytes of the headers that are parsed as lists before the client is known, by `websockets` at 0.4 us a byte.
MAX_LIST_BYTES = 4_096
LISTS = frozenset(
    b"connection upgrade sec-websocket-protocol sec-websocket-extensions "
    b"forwarded x-forwarded-for x-forwarded-host".split()
)
MAX_PIPELINED = 16  # requests of one connection that wait for an earlier one
# Parts of a body: each costs as much as some hundred bytes, and a chunk may have one.
MAX_SHORT_PARTS, PART_BYTES = 1_000, 256
SPARE_CONNECTIONS = 512  # for pages, metrics and newcomers, beyond `limits.connections`

# Bytes that a parser gets at once; limits are checked between slices.
HTTP_SLICE = 8_192
WEBSOCKET_SLICE = 1_024

# Pings, pongs, continuation frames and messages after the close of one connection: each costs as much as a message. The
# burst is a message of 64 kB in fragments of a few words.
IDLE_FRAMES_PER_S = 200
IDLE_FRAMES_BURST = 1_000
MAX_FRAGMENTS = 1_000
MAX_PONG_BACKLOG = 65_536  # unsent bytes; pongs are written without waiting for room

TAIL_BYTES = 1_024  # unsent when a connection closes at its end: the last chunk, a close frame
CLOSE_S = 50e-6  # that the end of a connection takes of the loop
SHUTDOWN_S = 2  # for responses that are still being sent after the drain


def socket_of(transport: asyncio.Transport) -> TransportSocket:
    """The socket of a connection, plain or TLS, that is not closing."""
    sock: TransportSocket = transport.get_extra_info("socket")
    return sock


def cut(transport: asyncio.Transport) -> None:
    """Close a connection; what is unsent is dropped, in the kernel too."""
    if not transport.is_closing():
        tcp.drop_unsent(socket_of(transport))
    transport.abort()


class PlayerConnection(asyncio.Protocol):
    """What HTTP and WebSocket share: a connection in the node's table, whose client may play what it is sent.

    The kernel would cut a player that has no room for `timeouts.tcp_user_s`. So a writer waits for it instead, until
    nothing is unsent.
    """

    config: NodeConfig
    transport: asyncio.Transport
    scheme: Any  # http or ws, with an s for TLS
    # The socket while a writer waits for the client; None while the kernel does.
    _player: TransportSocket | None = None

    def wait_for_player(self) -> None:
        """A writer bounds from now on how long the client may have no room."""
        self._player = socket_of(self.transport)
        tcp.set_user_timeout(self._player, 0)

    def recognise(self) -> None:
        """The client has shown a key that is right. Raises `AtCapacity`."""
        self.config.recognise(self.transport)

    def eof_received(self) -> bool:
        """Close the connection in the share of strangers: 1 000 that end at once would keep the loop for 40 ms.

        Not with TLS, which cannot stay open at its end, nor after a reset, nor by a WebSocket's closing handshake.
        """
        if self.scheme in ("https", "wss"):
            return False
        self.config.table.remove(self.transport)  # it gives its place away at once
        Flow(self.config.fair_queue.share(STRANGERS)).call(self.transport.close, CLOSE_S)
        return True

    def _leave_to_kernel(self) -> None:
        if self._player is not None:
            tcp.set_user_timeout(self._player, self.config.settings.timeouts.tcp_user_s)
            self._player = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.config.table.remove(self.transport)
        if self._player is not None and tcp.unsent_bytes(self._player) > TAIL_BYTES:  # it has left before the end
            self._leave_to_kernel()
        super().connection_lost(exc)


class OldCycle(RequestResponseCycle):
    """An answer to HTTP/1.0, which knows no chunks: one without a length ends with its connection."""

    _is_counted = False  # whether it has a length

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            self._is_counted = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            self.chunked_encoding = None if self._is_counted else False
        elif message["type"] == "http.response.body" and not self._is_counted:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class HttpProtocol(PlayerConnection, HttpToolsProtocol):  # pyrefly: ignore[inconsistent-inheritance]
    """HTTP with limits on the size and time of each request's head, and on pipelined requests."""

    config: NodeConfig
    # Cuts the connection when a head, or the rest of a body whose request is answered, is late. None when neither is
    # awaited.
    _deadline: asyncio.TimerHandle | None = None
    # Whether the parser is between requests or in the head of one.
    _in_head = True
    # Bytes fed since the parser last reported a head or a part of a body. Bounds heads, chunk framing and trailers.
    _unparsed = 0
    # Bytes of the request's headers and trailers so far.
    _header_bytes = 0
    _list_bytes = 0  # of `LISTS`
    # Parts of its body so far, and their bytes.
    _parts = _part_bytes = 0
    _hosts = 0  # headers of this name
    # What the parser has got last.
    _piece = b""
    # Whether it waits for its turn to become a WebSocket.
    _is_upgrading = False
    # Requests without a whole answer: uvicorn tells only the last one that the client has left.
    _unanswered: Sequence[RequestResponseCycle] = ()

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyrefly: ignore[bad-override]
        super().connection_made(transport)
        self._set_deadline()
        self.config.enter(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        for cycle, _ in self.pipeline:  # what never begins holds this protocol
            cycle.on_response = lambda: None
        self._unanswered = ()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), HTTP_SLICE):
            if self.transport.is_closing():
                return
            if self._is_upgrading:  # the client did not wait for the answer
                self.transport.abort()
                return
            piece = data[start : start + HTTP_SLICE]
            self._unparsed += len(piece)
            if self._unparsed > MAX_HEADER_BYTES:
                self.send_400_response("The request head is too long.")
                return
            if self._in_head and self._deadline is None:
                self._set_deadline()
            self._piece = piece
            super().data_received(piece)

    def _unsupported_upgrade_warning(self) -> None:
        """Parse a request again without its `Upgrade`, which a server may ignore: the parser skips its body.

        Java's HttpClient offers h2c with its requests, unless it is told not to.
        """
        upgrade = sys.exception()
        assert isinstance(upgrade, httptools.HttpParserUpgrade)
        version = self.parser.get_http_version().encode()
        headers = [b"%b: %b\r\n" % (name, value) for name, value in self.headers if name != b"upgrade"]
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (self.parser.get_method(), self.url, version, b"".join(headers))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self._unparsed = 0
        self.data_received(head + self._piece[upgrade.args[0] :])

    def handle_websocket_upgrade(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # its answer would end up in the WebSocket
            self.transport.abort()
            return
        self._is_upgrading = True
        self.transport.pause_reading()
        # It takes 0.4 ms, and many may come at once.
        Flow(self.config.fair_queue.share(STRANGERS)).call(self._upgrade)

    def _upgrade(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()
            super().handle_websocket_upgrade()
        self.parser = None  # pyrefly: ignore[bad-assignment]  # it holds this protocol, which is no longer needed

    # Callbacks of the parser. A ValueError is answered with 400, and the connection is closed.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self.cycle is None or self.cycle.response_complete:
            self._leave_to_kernel()
        self._header_bytes = self._list_bytes = self._hosts = self._parts = self._part_bytes = 0
        self.scope["extensions"] = {CONNECTION: weakref.proxy(self)}

    def on_url(self, url: bytes) -> None:
        if len(self.url) + len(url) > MAX_URL_BYTES or (self.url + url).count(b"&") > MAX_FIELDS:
            raise ValueError("the URL is too long")
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES or len(self.headers) >= MAX_HEADERS:
            raise ValueError("too many headers")
        if name.lower() in LISTS:
            self._list_bytes += len(value)
            if self._list_bytes > MAX_LIST_BYTES:
                raise ValueError("a list in a header is too long")
        self._hosts += name.lower() == b"host"
        super().on_header(name, value)

    @property
    def _is_parsed_again(self) -> bool:
        """Whether the request offers another protocol than WebSocket; see `_unsupported_upgrade_warning`."""
        return self.parser.should_upgrade() and not self._should_upgrade()

    def on_headers_complete(self) -> None:
        if self._is_parsed_again:
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("the node is no proxy")
            return
        if self._hosts != 1 and (self._hosts or self.parser.get_http_version() != "1.0"):  # RFC 9112, 3.2
            raise ValueError("a request needs one Host header")
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many requests at once")
        self._in_head = False
        self._unparsed = 0
        self.config.table.busy(self.transport)
        self._clear_deadline()
        earlier = self.cycle
        super().on_headers_complete()
        if self.cycle is earlier:
            return
        self._unanswered = [*self._unanswered, self.cycle]
        if self.parser.get_http_version() == "1.0":
            self.cycle.__class__ = OldCycle

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        self._parts += 1
        self._part_bytes += len(body)
        if self._parts > MAX_SHORT_PARTS + self._part_bytes // PART_BYTES:
            raise ValueError("the chunks of the body are too short")
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_parsed_again:
            return
        self._in_head = True
        self._unparsed = 0
        self._clear_deadline()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._unanswered = [each for each in self._unanswered if not each.response_complete]
        if self.pipeline:
            self._leave_to_kernel()
        super().on_response_complete()
        if not self.cycle.response_complete:  # a later request's
            return
        self.config.table.idle(self.transport)
        if not self._in_head:  # the rest of the body is not read
            self._set_deadline()

    # The endpoint calls these.

    @property
    def is_full(self) -> bool:
        """Whether written bytes wait in this process."""
        return self.flow.write_paused

    async def drained(self) -> None:
        """Wait until it is not full, or until it is lost. Cancelling it is safe."""
        await self.flow.drain()

    def _set_deadline(self) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(self.config.settings.timeouts.handshake_s, self.transport.abort)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class WebSocketProtocol(PlayerConnection, WebSocketsSansIOProtocol):  # pyrefly: ignore[inconsistent-inheritance]
    """A WebSocket with limits on frames that carry no message."""

    config: NodeConfig

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._idle_frames = TokenBucket(IDLE_FRAMES_PER_S, IDLE_FRAMES_BURST, self.loop.time())
        # Bytes after a message that the endpoint has not taken yet, or that wait for the loop. Reading is paused
        # meanwhile. In which they wait, among all strangers until the endpoint knows the client; and whether they do.
        self._unparsed = b""
        self.turns = Flow(self.config.fair_queue.share(STRANGERS))
        self._is_in_line = False
        # Whether the client has to answer pings: now, and when the last was sent. Some clients read only while they
        # wait for speech, and answer none in between; a machine that is gone is still found.
        self.demands_pongs: Callable[[], bool] = lambda: True
        self._pong_is_due = True
        # Seconds of audio that the client may play before it reads what is sent now; and when the pong of the last
        # ping is due because of that.
        self.unplayed_s: Callable[[], float] = lambda: 0.0
        self._pong_due_at = 0.0

    def data_received(self, data: bytes) -> None:
        self._unparsed += data
        self._parse()
        # The first data is a whole head, from `HttpProtocol`. uvicorn would leave an invalid one unanswered.
        if not self.handshake_initiated:
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    async def receive(self) -> ASGIReceiveEvent:
        message = await super().receive()
        self._parse()
        return message

    def _parse(self) -> None:
        """Parse until a message waits for the endpoint: the queue holds at most the messages of one slice.

        After `SLICE_S` others have their turn: what begins no message, and what follows a close, may be much.
        """
        until = time.monotonic() + SLICE_S
        # After the close frame the endpoint takes no messages, and uvicorn drops them.
        while self._unparsed and (self.close_sent or self.queue.empty()) and not self.transport.is_closing():
            if self._is_in_line:
                self.transport.pause_reading()
                self.turns.call(self._go_on)
                return
            piece, self._unparsed = self._unparsed[:WEBSOCKET_SLICE], self._unparsed[WEBSOCKET_SLICE:]
            super().data_received(piece)
            self._is_in_line = self.handshake_initiated and time.monotonic() > until

    def _go_on(self) -> None:
        self._is_in_line = False
        if not (self.read_paused or self.transport.is_closing()):
            self.transport.resume_reading()
        self._parse()

    def handle_ping(self) -> None:
        if self._may_send_idle_frame():
            super().handle_ping()
            if self.transport.get_write_buffer_size() > MAX_PONG_BACKLOG:
                self.transport.abort()

    def handle_pong(self, event: Frame) -> None:
        if self._may_send_idle_frame():
            super().handle_pong(event)

    def send_keepalive_ping(self) -> None:
        self._pong_is_due = self.demands_pongs()
        timeouts = self.config.settings.timeouts
        self._pong_due_at = self.loop.time() + timeouts.ping_s + self.unplayed_s()
        super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        timeouts = self.config.settings.timeouts
        left_s = self._pong_due_at - self.loop.time()
        if not self.transport.is_closing() and tcp.is_lost(socket_of(self.transport), timeouts.tcp_user_s):
            cut(self.transport)
        elif not (self._pong_is_due and self.demands_pongs()):
            self.pong_timer = self.pending_ping_payload = None
            self.schedule_ping()
        elif left_s > 0:
            self.pong_timer = self.loop.call_later(min(left_s, timeouts.ping_s), self.keepalive_timeout)
        else:
            super().keepalive_timeout()
            self.loop.call_later(timeouts.write_s, self.transport.abort)  # if the last frame cannot be sent

    def handle_cont(self, event: Frame) -> None:
        if self._may_send_idle_frame() and len(self.frames) < MAX_FRAGMENTS:
            super().handle_cont(event)
        else:
            self.transport.abort()

    def send_receive_event_to_app(self) -> None:
        if self.close_sent:
            self._may_send_idle_frame()
        elif self.curr_msg_data_type == "text":
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:  # uvicorn would log a traceback
                self.conn.send_close(CloseCode.INVALID_DATA)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    def _may_send_idle_frame(self) -> bool:
        if self._idle_frames.take(self.loop.time()):
            self.transport.abort()
        return not self.transport.is_closing()

    async def send(self, message: ASGISendEvent) -> None:
        if self.transport.is_closing() and not self.handshake_complete:  # uvicorn would log an error
            raise ClientDisconnected
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # it was denied; uvicorn would log a missing answer

    async def run_asgi(self) -> None:
        self.scope["extensions"][CONNECTION] = weakref.proxy(self)
        await super().run_asgi()
        self.unplayed_s = lambda: 0.0  # that of the endpoint holds this protocol

    # The endpoint calls these; see `HttpProtocol`.

    @property
    def has_left(self) -> bool:
        """Whether the client has closed the connection, seen while reading is paused, too."""
        return self.transport.is_closing() or tcp.has_left(socket_of(self.transport))

    def take_messages_of(self, size: int) -> None:
        """Take messages of up to `size` bytes from now on, in place of `limits.message_bytes`."""
        self.conn.max_message_size = size

    @property
    def is_full(self) -> bool:
        return not self.writable.is_set()

    async def drained(self) -> None:
        await self.writable.wait()

    def write(self, messages: Sequence[str | bytes]) -> None:
        """Write messages now, whether there is room or not. Raises `ClientDisconnected` if it is closed or closing."""
        if self.disconnected or self.close_sent or self.conn.state is not State.OPEN:
            raise ClientDisconnected
        frames = (
            Frame(Opcode.BINARY, message) if isinstance(message, bytes) else Frame(Opcode.TEXT, message.encode())
            for message in messages
        )
        self.transport.writelines([frame.serialize(mask=False) for frame in frames])


_NAMES: dict[type, str] = {
    uvicorn.Config: "ws_max_size ws_ping_interval ws_ping_timeout",
    uvicorn.Server: "capture_signals force_exit handle_exit on_tick server_state should_exit shutdown started startup",
    HttpToolsProtocol: "_should_upgrade _unsupported_upgrade_warning connection_lost connection_made cycle "
    "data_received flow handle_websocket_upgrade headers loop on_body on_header on_headers_complete on_message_begin "
    "on_message_complete on_response_complete on_url parser pipeline scheme scope send_400_response transport",
    RequestResponseCycle: "chunked_encoding disconnected expected_content_length message_event on_response "
    "response_complete send",
    WebSocketsSansIOProtocol: "close_sent conn connection_lost curr_msg_data_type data_received disconnected frames "
    "handle_cont handle_parser_exception handle_ping handle_pong handshake_complete handshake_initiated "
    "initial_response keepalive_timeout loop pending_ping_payload pong_timer queue read_paused receive run_asgi "
    "schedule_ping scheme send send_keepalive_ping send_receive_event_to_app transport writable",
}


class NodeConfig(uvicorn.Config):
    """The settings of the node's uvicorn.

    Raises the SettingsError of `server_context`, and one if these versions of uvicorn and websockets lack a name that
    is used here and that they do not promise.
    """

    def __init__(self, app: FastAPI, settings: Settings, contents: FileContents | None = None) -> None:
        require("uvicorn", _NAMES)
        require("websockets", {Protocol: "max_message_size"})
        super().__init__(
            app,
            http=HttpProtocol,
            ws=WebSocketProtocol,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=SHUTDOWN_S,
            access_log=False,
            log_config=None,
            log_level="warning",
            lifespan="on",
            proxy_headers=False,
            server_header=False,
        )
        self.fair_queue = app.state.node.fair_queue
        self.table: ConnectionTable[asyncio.Transport] = ConnectionTable(SPARE_CONNECTIONS)
        # Files that are open and are no connection's, as of the last count.
        self._other_files = 0
        self._given_way = app.state.node.metrics.connections_given_way
        self.use(settings, server_context(settings.tls, contents))

    def use(self, settings: Settings, tls: ssl.SSLContext | None) -> None:
        """Take the limits and deadlines of these settings; new connections have all of them."""
        self.settings, self.tls = settings, tls
        self.ws_max_size = settings.limits.message_bytes
        self.ws_ping_interval = self.ws_ping_timeout = settings.timeouts.ping_s
        self.table.room = connections(settings) + SPARE_CONNECTIONS
        self._room_for_files = open_files.room()  # file descriptors that may be open

    def count_files(self) -> None:
        """Count what else is open: WebRTC peers, pipes of engines."""
        self._other_files = max(0, open_files.in_use() - len(self.table))

    def enter(self, connection: asyncio.Transport) -> None:
        """Count a new connection; another one gives way if there is no room."""
        crowded = len(self.table) + self._other_files >= self._room_for_files
        why = "few file descriptors are free" if crowded else "all places are taken"
        self._close(self.table.enter(connection, crowded=crowded), why)

    def recognise(self, connection: asyncio.Transport) -> None:
        """Count a connection as a client's from now on. Raises `AtCapacity`."""
        self._close(self.table.recognise(connection), "all places of clients are taken")

    def _close(self, leaving: tuple[asyncio.Transport, Standing] | None, why: str) -> None:
        if leaving is not None:
            connection, standing = leaving
            connection.abort()
            kind = standing.name.lower()
            self._given_way.labels(kind).inc()
            logger.warning("{}: of {} connections the oldest {} gives way", why, len(self.table), kind)
