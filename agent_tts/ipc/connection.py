"""The front's end of a link to an engine: commands out, events in, heartbeats."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque

from agent_tts.ipc.wire import TO_FRONT, WireError, decode, encode, prepare
from agent_tts.messages import EngineCommand, EngineEvent, EnginePing, EnginePong, OnEvents

MAX_UNREAD_BYTES = 8 << 20  # commands that the engine has not read; with more it counts as hung
# Credits, and words of requests that speak already, wait so long for other commands: each write wakes the engine, and
# costs as much as a frame. An engine is granted more before it has used up a window.
WAIT_S = 0.005
LONG_BYTES = 65_536  # 17 frames; a step of many is read in pieces of 64, each of which takes half a millisecond
BEATS = 5  # heartbeats without an answer, after which it counts as hung
LATE = 2  # and after which new streams go elsewhere: the first of them has waited for a whole interval


def drop(command: EngineCommand, *, waits: bool = False) -> None:
    """Send to no engine."""


class EngineConnection:
    """One link, from `open` to `close`: over the pipes of a process, or a socket.

    `on_events` gets its events in the order and batches in which they arrive. `_broken` is called at most once, with
    the reason, when the engine breaks the protocol, does not read its commands or does not answer heartbeats.
    """

    def __init__(self, heartbeat_s: float, on_events: OnEvents) -> None:
        prepare(TO_FRONT)
        self._loop = asyncio.get_running_loop()
        self._heartbeat_s = heartbeat_s
        self._on_events = on_events
        # Where commands go; None before `open` and after `close`.
        self._pipe: asyncio.WriteTransport | None = None
        # Whether `close` was called. Events may come before `open`.
        self._closed = False
        self._rest = bytearray()
        # Pieces that wait for a pass of the event loop, after a long one. The credit of requests bounds them.
        self._unread: deque[bytes] = deque()
        self._waits_for_pass = False
        # Frames to write together: at the end of this tick of the event loop, or when this timer ends if all may wait.
        self._outbox: list[bytes] = []
        self._flushes_soon = False
        self._waiting: asyncio.TimerHandle | None = None
        # Heartbeats sent since the last answer, and the next one; None before the first and after `close`.
        self._unanswered = 0
        self._next_beat: asyncio.TimerHandle | None = None

    @property
    def late(self) -> bool:
        return self._unanswered >= LATE

    def open(self, pipe: asyncio.WriteTransport) -> None:
        """Write to `pipe` from now on. The caller gives what it reads to `feed`."""
        self._pipe = pipe

    def close(self) -> None:
        """Write nothing and call nothing from now on. Idempotent. The pipe is the caller's."""
        self._closed = True
        self._pipe = None
        self._outbox.clear()
        self._unread.clear()
        for timer in filter(None, (self._waiting, self._next_beat)):
            timer.cancel()
        self._waiting = self._next_beat = None

    def send(self, command: EngineCommand, *, waits: bool = False) -> None:
        """Never blocks; dropped once it is closed. All commands of a tick of the event loop leave in one write.

        One that `waits` does so for `WAIT_S`. Raises `WireError` for a command over a megabyte.
        """
        if self._closed:
            return
        self._outbox.append(encode(command))
        if not waits:
            if not self._flushes_soon:
                self._flushes_soon = True
                self._loop.call_soon(self._flush)
        elif self._waiting is None:
            self._waiting = self._loop.call_later(WAIT_S, self._flush)

    def write(self, data: bytes) -> None:
        """Write frames at once."""
        pipe = self._pipe
        if pipe is None or pipe.is_closing():  # uvloop raises where asyncio drops the data
            return
        pipe.write(data)
        if not pipe.is_closing() and pipe.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._break("it does not read its commands")

    def feed(self, data: bytes) -> None:
        """Take bytes of the engine. After a long piece the next ones wait for later passes of the event loop."""
        if self._waits_for_pass:
            self._unread.append(data)
            return
        if len(data) >= LONG_BYTES:
            self._waits_for_pass = True
            self._loop.call_soon(self._next_pass)
        self._take(data)

    def read_all(self) -> None:
        """Take what waits: nothing follows it."""
        while self._unread:
            self._take(self._unread.popleft())

    def _next_pass(self) -> None:
        self._waits_for_pass = False
        while self._unread and not self._waits_for_pass:
            self.feed(self._unread.popleft())

    def _take(self, data: bytes) -> None:
        if self._closed:
            return
        try:
            new = decode(self._rest, data, TO_FRONT)
        except WireError as error:
            self._break(f"it broke the protocol: {error}")
            return
        if new:
            if any(isinstance(event, EnginePong) for event in new):
                self._unanswered = 0
            self._deliver(new)

    def beat(self) -> None:
        # Counts beats, not seconds: after a pause of the front itself, answers that wait in the pipe still count.
        if self._unanswered == BEATS:
            self._break(f"no answer for {self._heartbeat_s:g} s")
            return
        self._unanswered += 1
        self.send(EnginePing(self._unanswered))
        self._next_beat = self._loop.call_later(self._heartbeat_s / BEATS, self.beat)

    def _flush(self) -> None:
        self._flushes_soon = False
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if self._outbox:
            data = b"".join(self._outbox)
            self._outbox.clear()
            self.write(data)

    def _break(self, why: str) -> None:
        EngineConnection.close(self)
        self._broken(why)

    def _deliver(self, new: list[EngineEvent]) -> None:
        self._on_events(new)

    @abstractmethod
    def _broken(self, why: str) -> None: ...
