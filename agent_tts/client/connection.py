"""The asyncio client of a node: text in word by word, speech out frame by frame, over one WebSocket.

    async with connect("http://127.0.0.1:8100") as node:
        utterance = await node.open(voice="nova")
        for token in tokens:
            utterance.write(token)
        utterance.end()
        async for pcm in utterance:  # 16-bit mono at 24 kHz
            player.write(pcm)

When a connection is lost, all utterances on it fail with `ConnectionLost`, and the caller connects again; with
`moves=True` it goes on at another node by itself.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import itertools
import json
import struct
from collections import deque
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from loguru import logger
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as websocket_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from agent_tts.client.utterance import RemoteUtterance
from agent_tts.config.settings import is_loopback
from agent_tts.errors import BadMessage, ContextExists, SettingsError, SpeechError, from_code
from agent_tts.messages import Audio, Cancelled, Finished, Flushed, Mark, Word, Words
from agent_tts.protocol.utterance import AnyUtterance
from agent_tts.protocol.v1 import HEADER, KIND_AUDIO, MAX_ID, SUBPROTOCOL, VERSION, unknown_fields

DEFAULT_URL = "ws://127.0.0.1:8100"
PATH = "/v1/tts/stream"

OPEN_S = 10.0  # for a connection, an update or a context to be answered
CLOSE_S = 2.0  # for the closing handshake
PING_S = 10.0  # between pings, and for their answer: an idle connection to a dead node is detected within 20 s
# A node that is silent for the first while an utterance is open is pinged, and lost without a sign in the second.
QUIET_S = 1.0
ANSWER_S = 1.5
# How long a full buffer may stop the connection. Less than the 2 s after which a node closes a slow connection.
PATIENCE_S = 1.0
BUFFER_BYTES = 4 << 20  # unread audio of one context: 87 s of 24 kHz pcm_s16le
MAX_MESSAGE_BYTES = 1 << 20
MAX_UNSENT_CHARS = 1 << 20  # of messages that the node has not received

# Errors from reading a message that does not follow the protocol.
GARBLED = (ValueError, KeyError, TypeError, AttributeError, struct.error)

_Utterance = TypeVar("_Utterance", bound=AnyUtterance)


class ConnectionLost(SpeechError, ConnectionError, code="connection_lost", status=502):
    """The connection to the node could not be made, or has ended."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    session_id: str
    engine: str | None  # None while the engine restarts
    model: str | None
    sample_rate: int
    frame_ms: int
    limits: dict[str, float]  # rule 5 of protocol.md
    features: list[str]  # what it knows, see protocol.md; empty if it does not say


# ---------------------------------------------------------------- the connection


class NodeConnection:
    """A connection to a node, with any number of contexts on it. Made by `connect` and `open_connection`."""

    def __init__(self, websocket: ClientConnection, info: NodeInfo, buffer_bytes: int) -> None:
        self.info = info
        self._websocket = websocket
        self._buffer_bytes = buffer_bytes
        self._utterances: dict[str, RemoteUtterance] = {}
        # Those utterances by context_no, from the node's `context.started` on.
        self._by_no: dict[int, RemoteUtterance] = {}
        # It numbers context_ids that the caller does not choose.
        self._ids = itertools.count(1)
        # Messages to send, and the characters in them; at most `MAX_UNSENT_CHARS`.
        self._outbox: asyncio.Queue[str] = asyncio.Queue()
        self._unsent = 0
        # Unanswered session updates, oldest first.
        self._updates: deque[asyncio.Future[None]] = deque()
        # The fatal error that the node sent before it closed the connection, or None.
        self._last_words: SpeechError | None = None
        self.lost: SpeechError | None = None
        # Whether the node has asked to move: it drains, so that new contexts are refused, or it is full. And where to.
        self.draining = False
        self.address: str | None = None
        # Set when it is lost or is to be left.
        self.parting = asyncio.Event()
        self.session: dict[str, Any] = {}
        # When the last message came, or the answer to a ping, by the loop's clock.
        self._heard_at = asyncio.get_running_loop().time()
        # The only receiver, the only sender, and who pings. Cancelled and awaited by `close`.
        self._tasks = [
            asyncio.create_task(self._receive(), name="receiver of a node connection"),
            asyncio.create_task(self._transmit(), name="sender of a node connection"),
            asyncio.create_task(self._watch(), name="watch of a node connection"),
        ]

    @property
    def is_usable(self) -> bool:
        """Whether new contexts may begin: it is not lost, and the node does not drain."""
        return self.lost is None and not self.draining

    @property
    def contexts(self) -> int:
        """How many are open on it."""
        return len(self._utterances)

    async def open(self, *, context_id: str | None = None, **session: Any) -> RemoteUtterance:
        """Start a context and wait for its slot. Cancelling it stops the context.

        Args:
            context_id: 1 to 128 characters, not "*"; None: the connection chooses one.
            session: options that differ from the connection's: `voice`, `language`, `speed`, `pitch`, `seed`,
                `lead_ms`, `timestamps`, `output={"encoding": ..., "sample_rate": ...}` and the others of protocol.md.

        Raises:
            AtCapacity: no slot became free; try again after `retry_after_ms`.
            UnknownVoice, UnsupportedLanguage, UnsupportedFormat, BadMessage, ContextLimit, Draining, EngineLost: the
                node refused it.
            ConnectionLost: the connection is lost.
            TimeoutError: the node did not answer within 10 s.
        """
        utterance = self.begin(context_id=context_id, **session)
        return await until_started(utterance, utterance.started)

    def begin(self, *, context_id: str | None = None, **session: Any) -> RemoteUtterance:
        """Start a context without waiting for its slot; text may be written at once.

        If the node refuses it, its events and `started` raise the error. The arguments are those of `open`.

        Raises:
            BadMessage, ContextExists: the context_id cannot be used, or neither the node nor this client knows a field.
            ConnectionLost: the connection is lost.
        """
        if self.lost is not None:
            raise self.lost
        self._check_fields(session)
        if context_id is None:
            context_id = f"c{next(self._ids)}"
        elif not 1 <= len(context_id) <= MAX_ID or context_id == "*":
            raise BadMessage(f"a context_id has 1 to {MAX_ID} characters, and is not *")
        if context_id in self._utterances:
            raise ContextExists("this context is open: choose another context_id")
        limit = int(self.info.limits["text_message_chars"])
        utterance = self._utterances[context_id] = RemoteUtterance(context_id, self.send, limit)
        self.send("context.open", context_id=context_id, **session)
        return utterance

    async def update(self, **session: Any) -> None:
        """Change the options of later contexts. After a cancel, the node may have applied the change or not.

        Raises `SpeechError` if a field is not allowed: nothing has changed; `TimeoutError` without an answer in 10 s.
        """
        if self.lost is not None:
            raise self.lost
        self._check_fields(session)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._updates.append(answer)
        self.send("session.update", session=session)
        async with asyncio.timeout(OPEN_S):
            await answer
        self.session |= session

    async def cancel_all(self) -> None:
        """Stop every context at once. Cancelling it is safe: they stop anyway."""
        utterances = list(self._utterances.values())
        for utterance in utterances:
            utterance.stop()
        await asyncio.gather(*(utterance.cancel() for utterance in utterances))

    async def retire(self) -> None:
        """Close it when its last context has ended. Cancelling it closes it at once."""
        try:
            await asyncio.gather(*(utterance.wait_closed() for utterance in self._utterances.values()))
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop all contexts and close the connection, within 2 s. Idempotent; cancelling it aborts the connection."""
        self._lose(ConnectionLost("the connection was closed"))
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await _close(self._websocket)
        finally:
            self._websocket.transport.abort()

    def send(self, type_: str, **fields: Any) -> None:
        """Queue a message; never blocks. Dropped when the connection is lost."""
        if self.lost is not None:
            return
        message = json.dumps({"type": type_, **fields}, separators=(",", ":"))
        self._outbox.put_nowait(message)
        self._unsent += len(message)
        if self._unsent > MAX_UNSENT_CHARS:
            self._lose(ConnectionLost("the node does not read its messages"))
            self._websocket.transport.abort()

    def _check_fields(self, session: dict[str, Any]) -> None:
        """Refuse a misspelt field, which the node would ignore."""
        if unknown := [path for path in unknown_fields(session) if path not in self.info.features]:
            raise BadMessage(f"neither the node nor this client knows {', '.join(unknown)}")

    # ------------------------------------------------------------ tasks

    async def _transmit(self) -> None:
        with contextlib.suppress(ConnectionClosed):  # the receiver reports it
            while True:
                message = await self._outbox.get()
                await self._websocket.send(message)
                self._unsent -= len(message)

    async def _receive(self) -> None:
        why = "the connection to the node has ended"
        try:
            async for message in self._websocket:
                self._heard_at = asyncio.get_running_loop().time()
                await (self._take_audio(message) if isinstance(message, bytes) else self._take_text(message))
        except ConnectionClosed:
            pass
        except GARBLED as error:
            why = f"the node does not speak {SUBPROTOCOL} ({type(error).__name__})"
            self._websocket.transport.abort()
        finally:
            self._lose(self._last_words or ConnectionLost(why))

    async def _watch(self) -> None:
        """Lose a node that is silent while an utterance is open, and answers no ping: its machine or network died."""
        loop = asyncio.get_running_loop()
        while self.lost is None:
            quiet_s = loop.time() - self._heard_at
            if not self._utterances:
                await asyncio.sleep(QUIET_S)
            elif quiet_s < QUIET_S:
                await asyncio.sleep(QUIET_S - quiet_s)
            elif await self._answers():
                self._heard_at = loop.time()
            else:
                self._lose(ConnectionLost("the node does not answer"))
                self._websocket.transport.abort()

    async def _answers(self) -> bool:
        heard_at = self._heard_at
        pong: asyncio.Future[float] | None = None
        try:
            async with asyncio.timeout(ANSWER_S):
                pong = asyncio.ensure_future(await self._websocket.ping())
                await asyncio.shield(pong)
        except ConnectionClosed:
            return True  # the receiver reports it
        except TimeoutError:  # also where this program was held up, and the pong has come
            pass
        return (pong is not None and pong.done()) or self._heard_at != heard_at

    def _lose(self, error: SpeechError) -> None:
        """Fail all utterances and updates. Idempotent."""
        if self.lost is not None:
            return
        self.lost = error
        self.parting.set()
        for utterance in self._utterances.values():
            utterance.close(error)
        self._utterances.clear()
        self._by_no.clear()
        for answer in self._updates:
            _complete(answer, error)
        self._updates.clear()

    # ------------------------------------------------------------ messages

    async def _take_audio(self, message: bytes) -> None:
        version, kind, flags, context_no, first_sample = HEADER.unpack_from(message)
        if version != VERSION:
            raise ValueError("version")
        utterance = self._by_no.get(context_no)
        if utterance is not None and kind == KIND_AUDIO:
            await self._deliver_audio(utterance, message[HEADER.size :], first_sample, flags)

    async def _deliver_audio(self, utterance: RemoteUtterance, payload: bytes, first_sample: int, flags: int) -> None:
        """Receives nothing more while the reader is behind, for `PATIENCE_S` at most: other readers wait, too."""
        utterance.deliver(Audio(utterance.context_id, payload, first_sample, flags, utterance.context_no))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await utterance.room(self._buffer_bytes)
        except TimeoutError:
            utterance.overflow()

    async def _take_text(self, message: str) -> None:
        """Deliver a JSON message. Ignores types of newer nodes."""
        fields = json.loads(message)
        utterance = self._utterances.get(fields.get("context_id"))
        match fields["type"]:
            case "audio" if utterance:
                payload = base64.b64decode(fields["audio"])
                await self._deliver_audio(utterance, payload, fields["first_sample"], fields["flags"])
            case "words" if utterance:
                words = tuple(Word(**word) for word in fields["words"])
                utterance.deliver(Words(utterance.context_id, words, fields["kind"]))
            case "mark" if utterance:
                utterance.deliver(_read(Mark, fields))
            case "context.started" if utterance:
                utterance.context_no = fields["context_no"]
                self._by_no[utterance.context_no] = utterance
                if not utterance.started.done():
                    utterance.started.set_result(None)
            case "context.flushed" if utterance:
                utterance.deliver(_read(Flushed, fields))
            case "context.cancelled" if utterance:
                utterance.cut(_read(Cancelled, fields))
            case "context.done" if utterance:
                del self._utterances[utterance.context_id]
                self._by_no.pop(fields["context_no"], None)
                utterance.deliver(_read(Finished, fields | {"cut": tuple(fields.get("cut", ()))}))
            case "session.updated" if self._updates:
                _complete(self._updates.popleft())
            case "session.draining":
                self.draining, self.address = True, fields.get("address")
                self.parting.set()
            case "warning":
                logger.warning("the node says of {}: {}", ", ".join(fields.get("fields", ())), fields["message"])
            case "error":
                self._take_error(fields, utterance)

    def _take_error(self, fields: dict[str, Any], utterance: RemoteUtterance | None) -> None:
        error = from_code(fields["code"], fields["message"], fields.get("retry_after_ms"))
        if fields.get("fatal"):
            self._last_words = error
        elif utterance is None:
            if fields.get("context_id") is None and self._updates:
                _complete(self._updates.popleft(), error)
        elif not utterance.started.done():  # refused
            del self._utterances[utterance.context_id]
            utterance.close(error)
        elif error.code != "unknown_context":  # of which the node says in another message why it has ended
            # Some of its text is lost, so it must not go on.
            utterance.fail(error)
            self.send("context.cancel", context_id=utterance.context_id)


def _read(type_: type[Any], fields: dict[str, Any]) -> Any:
    """A dataclass from a message, which may have fields of newer nodes; `TypeError` if one is missing."""
    told = {**fields, "id": fields.get("context_id")}
    names = [field.name for field in dataclasses.fields(type_) if field.name in told]
    return type_(**{name: told[name] for name in names})


def _complete(answer: asyncio.Future[None], error: SpeechError | None = None) -> None:
    if answer.done():  # its caller was cancelled
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)


# ---------------------------------------------------------------- connecting


async def until_started(utterance: _Utterance, started: asyncio.Future[None]) -> _Utterance:
    """Wait for the slot of an utterance; returns it. Cancelling it stops the utterance, and so does an error.

    Raises what `started` does, and `TimeoutError` without an answer in 10 s.
    """
    try:
        async with asyncio.timeout(OPEN_S):
            await asyncio.shield(started)
    except BaseException:
        utterance.stop()
        raise
    return utterance


async def open_connection(
    url: str = DEFAULT_URL, *, api_key: str | None = None, buffer_bytes: int = BUFFER_BYTES
) -> NodeConnection:
    """Like `moving.connect`, for a caller that closes the connection itself. Cancelling it leaves no connection."""
    websocket = await _dial(stream_url(url), api_key)
    try:
        async with asyncio.timeout(OPEN_S):
            info = await _greeting(websocket)
    except BaseException:
        await _close(websocket)
        raise
    return NodeConnection(websocket, info, buffer_bytes)


def stream_url(url: str) -> str:
    """The WebSocket address of the node at `url`; raises `SettingsError` if it is not the address of a node."""
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    try:
        parts = urlsplit(url if "://" in url else f"ws://{url}")
        if parts.scheme not in schemes or not parts.hostname or parts.port == 0:
            raise ValueError
    except ValueError:  # also of an invalid address in brackets, or an invalid port
        known = ", ".join(f"{name}://host:port" for name in schemes)
        raise SettingsError(f"a node's url is {known} or host:port") from None
    path = parts.path.rstrip("/").removesuffix(PATH) + PATH
    return urlunsplit((schemes[parts.scheme], parts.netloc, path, parts.query, ""))


def http_url(url: str) -> str:
    """The HTTP address of the node at `url`, without a slash at its end; raises the errors of `stream_url`."""
    scheme, host, path, query, _ = urlsplit(stream_url(url))
    return urlunsplit((scheme.replace("ws", "http", 1), host, path.removesuffix(PATH), query, ""))


async def _dial(url: str, api_key: str | None) -> ClientConnection:
    parts = urlsplit(url)
    try:
        return await websocket_connect(
            url,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            additional_headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
            compression=None,
            open_timeout=OPEN_S,
            ping_interval=PING_S,
            ping_timeout=PING_S,
            close_timeout=CLOSE_S,
            max_size=MAX_MESSAGE_BYTES,
            proxy=None if is_loopback(parts.hostname or "") else True,
        )
    except InvalidStatus as error:
        status, spoken = error.response.status_code, error.response.headers.get("Sec-WebSocket-Protocol")
        if spoken is not None:
            raise ConnectionLost(f"{parts.netloc} speaks {spoken}, this client {SUBPROTOCOL}") from error
        raise ConnectionLost(f"{parts.netloc} answers with HTTP {status}: is it a node?") from error
    except (OSError, WebSocketException) as error:
        if isinstance(error, TimeoutError):
            raise
        raise ConnectionLost(f"no node answers at {parts.netloc}: {type(error).__name__}") from error


async def _greeting(websocket: ClientConnection) -> NodeInfo:
    try:
        fields = json.loads(await websocket.recv(decode=True))
        if fields["type"] == "error":
            raise from_code(fields["code"], fields["message"], fields.get("retry_after_ms"))
        if fields["type"] != "session.created" or fields["protocol"] != SUBPROTOCOL:
            raise ValueError("not the greeting")
        node: NodeInfo = _read(NodeInfo, {"features": []} | fields)
        return node
    except (ConnectionClosed, *GARBLED) as error:
        raise ConnectionLost(f"the server there does not speak {SUBPROTOCOL}") from error


async def _close(websocket: ClientConnection) -> None:
    """Close with a handshake, for twice `CLOSE_S` at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2 * CLOSE_S):
            await websocket.close()
