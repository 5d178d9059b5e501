"""A front's link to an engine that it shares with other fronts. The engine's owner hands it over."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from agent_tts.ipc.connection import EngineConnection, drop
from agent_tts.messages import EngineReady, OnEvents, OnLost, Send

ASK_S = 1.0  # between two requests for a new link


@dataclass(eq=False)
class EngineLink:
    """The links to one engine, one after the other.

    Each `EngineReady` given to `on_events` is followed by at most one `on_lost`. Both are called on the event loop.
    After a loss `ask` is called, at most once a second, until `connect` brings a new link: the owner of the engine
    makes one unless the engine is down, when one follows its restart.
    """

    ask: Callable[[], None]
    heartbeat_s: float
    on_events: OnEvents
    on_lost: OnLost
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    # The link that stands; None before the first, after a loss and after `close`.
    _link: _Link | None = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)
    # The next call of `ask`, and the earliest time for it on the event loop's clock.
    _asking: asyncio.TimerHandle | None = field(default=None, init=False)
    _ask_at: float = field(default=0.0, init=False)

    @property
    def alive(self) -> bool:
        return self._link is not None

    @property
    def late(self) -> bool:
        return self._link is not None and self._link.late

    async def start(self) -> None:
        """Does nothing: `connect` brings the link."""

    async def connect(self, sock: socket.socket, greeting: EngineReady) -> None:
        """Use this link; `on_events` gets `greeting` first. `sock` is closed with the link, or after any error.

        A link that still stands is kept, and this one closed: the owner may answer twice.

        Raises:
            OSError: it cannot be used.
        """
        if self.alive or self._closed:
            sock.close()
            return
        link = _Link(self, greeting)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=sock)
        except BaseException:
            sock.close()
            raise

    @property
    def send(self) -> Send:
        """See `EngineConnection.send`, of the link that stands; what is sent is dropped if there is none."""
        return drop if self._link is None else self._link.send

    async def close(self) -> None:
        """Close the link; the engine cancels its requests. No event follows. Idempotent."""
        self._closed = True
        self._stop_asking()
        link, self._link = self._link, None
        if link is not None:
            link.abort()
            await link.ended

    def _begin(self, link: _Link, greeting: EngineReady) -> bool:
        if self.alive or self._closed:
            return False
        self._stop_asking()
        self._link = link
        self.on_events([greeting])
        link.beat()
        return True

    def _lose(self, link: _Link, why: str) -> None:
        if link is not self._link:
            return
        self._link = None
        link.abort()
        self.on_lost(why)
        self._asking = asyncio.get_running_loop().call_at(self._ask_at, self._ask_again)

    def _ask_again(self) -> None:
        loop = asyncio.get_running_loop()
        self._ask_at = loop.time() + ASK_S
        self._asking = None
        if not self.failed.is_set():
            self._asking = loop.call_at(self._ask_at, self._ask_again)
            self.ask()

    def _stop_asking(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None


class _Link(EngineConnection, asyncio.Protocol):
    def __init__(self, owner: EngineLink, greeting: EngineReady) -> None:
        super().__init__(owner.heartbeat_s, owner.on_events)
        self._owner = owner
        self._greeting = greeting
        self._transport: asyncio.Transport | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def abort(self) -> None:
        """Close it without a wait."""
        self.close()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.open(self._transport)
        if not self._owner._begin(self, self._greeting):
            self.abort()

    def data_received(self, data: bytes) -> None:
        self.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.read_all()
        self.ended.set_result(None)
        self._owner._lose(self, "its link ended")

    def _broken(self, why: str) -> None:
        self._owner._lose(self, why)
