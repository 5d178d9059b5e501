"""Connecting to a node; and a connection that moves: to where its node asks, and to another when its own is lost."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, overload

from agent_tts.client.connection import (
    BUFFER_BYTES,
    DEFAULT_URL,
    ConnectionLost,
    NodeConnection,
    NodeInfo,
    open_connection,
    stream_url,
    until_started,
)
from agent_tts.client.resuming import ResumableUtterance
from agent_tts.errors import SettingsError, SpeechError

RENEW_S = 3.0  # to find another node after one is lost
ATTEMPT_S = 1.5  # for one attempt
# Before an attempt it waits for a random time, up to `RETRY_S`, then up to twice as long each time: the clients of a
# node that is lost do not come at once.
RETRY_S = 0.05
MAX_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where connections go, and with what; see `connect`. Raises `SettingsError`: the url is not that of a node."""

    url: str = DEFAULT_URL
    api_key: str | None = None
    moves: bool = False
    buffer_bytes: int = BUFFER_BYTES

    def __post_init__(self) -> None:
        stream_url(self.url)

    async def open(self, **session: Any) -> AnyConnection:
        """Connect. The caller closes the connection; cancelling it leaves none. Raises the errors of `connect`."""
        node = await self.dial(self.url, session)
        return MovingConnection(node, self) if self.moves else node

    async def dial(self, url: str, session: dict[str, Any]) -> NodeConnection:
        """A connection that does not move, to this url."""
        node = await open_connection(url, api_key=self.api_key, buffer_bytes=self.buffer_bytes)
        try:
            if session:
                await node.update(**session)
        except BaseException:
            await node.close()
            raise
        return node


class MovingConnection:
    """A `NodeConnection` and its successors, as one. Made by `connect(moves=True)`.

    The next connection is open before the old one is left, whose contexts end where they are.
    """

    def __init__(self, node: NodeConnection, target: Target) -> None:
        self._node = node
        self._target = target
        # It numbers context_ids, which differ on all connections.
        self._ids = itertools.count(1)
        # Set, and replaced, when `_node` or `lost` has changed.
        self._changed = asyncio.Event()
        # Why it does not go on; None while it does.
        self.lost: SpeechError | None = None
        # Replaces `_node`; and those that wait for the end of old connections. Cancelled and awaited by `close`.
        self._keeper = asyncio.create_task(self._keep(), name="keeper of a moving connection")
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def info(self) -> NodeInfo:
        return self._node.info

    @property
    def is_usable(self) -> bool:
        return self.lost is None and self._node.is_usable

    @property
    def contexts(self) -> int:
        return self._node.contexts

    async def open(self, *, context_id: str | None = None, **session: Any) -> ResumableUtterance:
        """See `NodeConnection.open`. While another node is looked for, it waits."""
        while self._node.lost is not None:
            await self._next_node(self._node)
        utterance = self.begin(context_id=context_id, **session)
        return await until_started(utterance, utterance.started)

    def begin(self, *, context_id: str | None = None, **session: Any) -> ResumableUtterance:
        """See `NodeConnection.begin`. Without a seed it draws one, which the utterance keeps on every node."""
        if self.lost is not None:
            raise self.lost
        if (self._node.session | session).get("seed") is None:
            session["seed"] = secrets.randbits(32)
        session["context_id"] = context_id or f"m{next(self._ids)}"
        return ResumableUtterance(self._node, self._next_node, **session)

    async def update(self, **session: Any) -> None:
        """See `NodeConnection.update`; later connections have the same options."""
        await self._node.update(**session)

    async def cancel_all(self) -> None:
        await self._node.cancel_all()

    async def close(self) -> None:
        """Stop all contexts and close all connections, within 4 s. Idempotent."""
        self._end(ConnectionLost("the connection was closed"))
        tasks = [self._keeper, *self._leaving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._node.close()

    # ------------------------------------------------------------ inside

    async def _keep(self) -> None:
        while self.lost is None:
            old = self._node
            await old.parting.wait()
            try:
                new = await self._find(old)
            except (SpeechError, TimeoutError) as error:
                self._end(error if isinstance(error, SpeechError) else ConnectionLost("no other node answers in time"))
                return
            self._node = new
            # Before those who are told may call `close`: a task that is cancelled before it begins closes nothing.
            leaving = asyncio.create_task(old.retire(), name="end of an old node connection")
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            self._tell()

    async def _find(self, old: NodeConnection) -> NodeConnection:
        """Connect until it succeeds; for `RENEW_S` at most after `old` is lost."""
        loop = asyncio.get_running_loop()
        wait_s, deadline = RETRY_S, math.inf
        urls = itertools.cycle((_allowed(old.address, self._target.url), self._target.url))
        while True:
            if old.lost is not None:
                deadline = min(deadline, loop.time() + RENEW_S)
            await asyncio.sleep(random.uniform(0, wait_s))
            try:
                async with asyncio.timeout_at(min(deadline, loop.time() + ATTEMPT_S)):
                    return await self._target.dial(next(urls), old.session)
            except (SpeechError, TimeoutError):
                if loop.time() >= deadline:
                    raise
            wait_s = min(2 * wait_s, MAX_RETRY_S)

    async def _next_node(self, old: NodeConnection) -> NodeConnection:
        """The connection after `old`. Raises `SpeechError` if there is none. Cancelling it is safe."""
        while self.lost is None and self._node is old:
            await self._changed.wait()
        if self.lost is not None:
            raise self.lost
        return self._node

    def _end(self, error: SpeechError) -> None:
        if self.lost is None:
            self.lost = error
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


AnyConnection = NodeConnection | MovingConnection


def _allowed(address: str | None, url: str) -> str:
    """Where a node asks to go, if that is an address and as private as `url`; otherwise `url`."""
    if address is None:
        return url
    try:
        there = stream_url(address)
    except SettingsError:
        return url
    return url if stream_url(url).startswith("wss:") and not there.startswith("wss:") else address


@overload
def connect(  # pyrefly: ignore[inconsistent-overload]
    url: str = ...,
    *,
    api_key: str | None = ...,
    buffer_bytes: int = ...,
    moves: Literal[False] = ...,
    **session: Any,
) -> AbstractAsyncContextManager[NodeConnection]: ...


@overload
def connect(  # pyrefly: ignore[inconsistent-overload]
    url: str = ..., *, api_key: str | None = ..., buffer_bytes: int = ..., moves: Literal[True], **session: Any
) -> AbstractAsyncContextManager[MovingConnection]: ...


@asynccontextmanager
async def connect(
    url: str = DEFAULT_URL,
    *,
    api_key: str | None = None,
    buffer_bytes: int = BUFFER_BYTES,
    moves: bool = False,
    **session: Any,
) -> AsyncIterator[Any]:
    """A connection to a node, for an `async with` block; leaving the block stops all speech on it.

    Args:
        url: `http(s)://`, `ws(s)://`, or `host:port`; a path before `/v1/tts/stream` is kept.
        api_key: sent as `Authorization: Bearer`.
        buffer_bytes: limit of unread audio of one context; see `RemoteUtterance`.
        moves: it goes to another node when its node asks it to, or is lost: open utterances then go on from the first
            word that has not come whole. `url` is that of a load balancer, or nodes tell theirs (`public_url`).
        session: options of all contexts; see `NodeConnection.open`.

    Raises:
        Unauthorized, AtCapacity, Draining: the node refused the connection.
        SpeechError: the node refused the session; the message says what is allowed.
        ConnectionLost: no node answers at `url`.
        SettingsError: `url` is not the address of a node.
        TimeoutError: it did not answer within 10 s.
    """
    connection = await Target(url, api_key, moves, buffer_bytes).open(**session)
    try:
        yield connection
    finally:
        await connection.close()
