"""A WebSocket client with minimal CPU use, which leaves the machine to the node: it has no tasks.

Without flow control and deadlines; programs use `agent_tts.client.connection`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from agent_tts.client.connection import CLOSE_S, ConnectionLost
from agent_tts.protocol.v1 import HEADER, SUBPROTOCOL

OPEN_S = 30.0
MESSAGE_CHARS = 3_500  # below the limit for one message


class ContextListener(Protocol):
    def heard(self, now: float, pcm: bytes | memoryview) -> None:
        """Audio arrived, pcm_s16le, at `now` on the monotonic clock."""

    def told(self, now: float, message: dict[str, Any]) -> None:
        """A message of the context arrived. The last is `context.done` or `error`."""


class RawConnection(asyncio.Protocol):
    """A connection with any number of contexts. Opened by `dial`, closed by `close`."""

    def __init__(self, url: str, key: str | None, traceparent: str | None = None) -> None:
        self._transport: asyncio.Transport | None = None
        self._protocol = ClientProtocol(parse_uri(url), subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=None)
        self._headers = {"Authorization": key and f"Bearer {key}", "traceparent": traceparent}
        # They are kept by context_id, and by context_no after the start.
        self._listeners: dict[str, ContextListener] = {}
        self._by_no: dict[int, ContextListener] = {}
        # The first message completes it: `session.created` or an error.
        self.greeted: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        # It gets every message before its listener does.
        self.observer: Callable[[dict[str, Any]], None] | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def _is_open(self) -> bool:
        return self._protocol.state is State.OPEN and self._transport is not None and not self._transport.is_closing()

    def listen(self, context_id: str, listener: ContextListener) -> None:
        """Send the events of this context to `listener` until it ends."""
        self._listeners[context_id] = listener

    def send(self, type_: str, **fields: Any) -> None:
        """Send a message; dropped after the connection is closed."""
        if self._is_open:
            self._protocol.send_text(json.dumps({"type": type_, **fields}, separators=(",", ":")).encode())
            self._flush()

    async def hang_up(self) -> None:
        """Close it by the closing handshake; without it after 2 s."""
        if self._is_open:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self._flush()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await asyncio.shield(self.closed)
        await self.close()

    async def close(self, *, reset: bool = False) -> None:
        """Close it without a close frame; with `reset` by an RST, as the kernel does for a killed process."""
        if self._transport is not None:
            if reset and not self._transport.is_closing():
                _never_linger(self._transport.get_extra_info("socket").fileno())
            self._transport.abort()
            await asyncio.shield(self.closed)  # cancelling this must not cancel the future

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        request = self._protocol.connect()
        request.headers.update({name: value for name, value in self._headers.items() if value is not None})
        self._protocol.send_request(request)
        self._flush()

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                if event.opcode is Opcode.BINARY:
                    _, _, _, context_no, _ = HEADER.unpack_from(event.data)
                    listener = self._by_no.get(context_no)
                    if listener is not None:
                        listener.heard(now, memoryview(event.data)[HEADER.size :])
                elif event.opcode is Opcode.TEXT:
                    self._take(now, json.loads(bytes(event.data)))
            elif isinstance(event, Response) and self._protocol.handshake_exc is not None:
                self.greeted.set_exception(ConnectionLost(f"the node answers with HTTP {event.status_code}"))
        self._flush()  # pongs

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionLost("the node closed the connection"))
        message = {"type": "error", "code": "connection_lost"}
        for listener in self._listeners.values():
            listener.told(time.monotonic(), message)
        self._listeners.clear()
        self._by_no.clear()
        self.closed.set_result(None)

    def _flush(self) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(self._protocol.data_to_send()))

    def _take(self, now: float, message: dict[str, Any]) -> None:
        if self.observer is not None:
            self.observer(message)
        listener = self._listeners.get(message.get("context_id", ""))
        match message["type"]:
            case "session.created" | "error" if not self.greeted.done():
                self.greeted.set_result(message)
            case "context.started" if listener is not None:
                self._by_no[message["context_no"]] = listener
                listener.told(now, message)
            case "context.done" | "error" if listener is not None:
                del self._listeners[message["context_id"]]
                self._by_no = {no: other for no, other in self._by_no.items() if other is not listener}
                listener.told(now, message)
            case _ if listener is not None:
                listener.told(now, message)


def _never_linger(fd: int) -> None:
    """Discard unsent data and send an RST when the socket is closed."""
    with socket.socket(fileno=os.dup(fd)) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def dial(url: str, key: str | None = None, traceparent: str | None = None) -> RawConnection:
    """Connect to the WebSocket at `url` (ws:// or wss://); the node has greeted on return.

    Args:
        traceparent: the header of W3C's trace context: the parent of the node's span.

    Raises:
        ConnectionLost: no node answers, or it refuses.
        TimeoutError: the node did not answer within 30 s.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "wss"
    host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(OPEN_S):
        try:
            _, connection = await loop.create_connection(
                lambda: RawConnection(url, key, traceparent), host, port, ssl=secure or None
            )
        except OSError as error:
            raise ConnectionLost(f"no node answers at {parts.netloc}: {type(error).__name__}") from error
        try:
            greeting = await connection.greeted
        except BaseException:
            await connection.close()
            raise
    if greeting["type"] == "error":
        await connection.close()
        raise ConnectionLost(f"the node refuses: {greeting['message']}")
    return connection


def send_text(send: Callable[..., None], context_id: str, text: str) -> None:
    """Send the text of a context, split to the limit of messages, and its end."""
    for start in range(0, len(text), MESSAGE_CHARS):
        send("text.append", context_id=context_id, text=text[start : start + MESSAGE_CHARS])
    send("context.end", context_id=context_id)
