"""The engine's ends of its links to fronts that share it: sockets that the owner of the process passes to it.

One thread, `links`, reads all of them, and writes what a front did not take at once. All else runs in the engine's
thread. A link that ends, breaks the protocol, does not read or falls silent takes its requests with it, and nobody
else's.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import math
import os
import queue
import selectors
import socket
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from agent_tts.ipc.wire import TO_SHARED_ENGINE, WireError, decode, encode
from agent_tts.messages import (
    Audio,
    Cancel,
    EngineEvent,
    EngineLoad,
    EnginePing,
    EnginePong,
    EngineReady,
    Finished,
    Open,
    RequestEvent,
)

if TYPE_CHECKING:
    from agent_tts.engine.loop import EngineLoop

READ_BYTES = 1 << 16
# A link's commands that the engine has not taken. With more the link ends: the front sends without end, or the engine
# hangs and is killed soon.
MAX_UNTAKEN_BYTES = 8 << 20
# A link's events that the front has not read; with more the link ends. About a second of 600 listeners.
MAX_BACKLOG_BYTES = 32 << 20
BUFFER_BYTES = 1 << 20  # of the kernel, for one step of 250 requests; the system's limit may be less
LOAD_S = 0.05  # between two `EngineLoad`
CANCELS = 64  # requests of ended links that are cancelled before a step
ID_BITS = 32  # of a front's own request id; the link's number stands above them

# What the thread `links` has read: None when a link is new, no bytes when it has ended.
Arrivals: TypeAlias = "queue.SimpleQueue[tuple[Link | None, bytes | None]]"


class Link:
    """One link. Methods are called by the engine's thread, except where another is named."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        # Never reused, so that late events of a link's requests reach no other.
        self.number = number
        self.first_id = number << ID_BITS
        # Closed by the thread `links`.
        self.sock = sock
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self._rest = bytearray()
        # Bytes read, counted by the thread `links`, and bytes taken.
        self.read = 0
        self.taken = 0
        # For how long the front has not been heard, by the thread `links`. It may start long after its link was made.
        self.silent_s = -math.inf
        self.requests: set[int] = set()
        self.pings: list[int] = []
        self.frames: list[bytes] = []
        # Guards what follows. Bytes that the front has not read yet, and whether nothing more may be written.
        self._lock = threading.Lock()
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        self._ended = False

    def take(self, data: bytes, loop: EngineLoop) -> None:
        self.taken += len(data)
        if self._ended:
            return
        try:
            for command in decode(self._rest, data, TO_SHARED_ENGINE):
                if isinstance(command, EnginePing):
                    self.pings.append(command.nonce)
                    continue
                if not 0 <= command.id < 1 << ID_BITS:
                    raise WireError("a request id outside its range")
                command = dataclasses.replace(command, id=self.first_id + command.id)
                if isinstance(command, Open):
                    if command.id in self.requests:
                        raise WireError("a request id that is in use")
                    self.requests.add(command.id)
                loop.submit(command)
        except WireError as error:
            self.end(f"it broke the protocol: {error}")

    def add(self, event: RequestEvent) -> None:
        """Append an event of one of its requests to `frames`."""
        its_id = event.id - self.first_id
        if isinstance(event, Finished):
            self.requests.discard(event.id)
        its = Audio(its_id, event.payload) if isinstance(event, Audio) else dataclasses.replace(event, id=its_id)
        self.frames.append(encode(its))

    def write(self) -> bool:
        """Write `frames` as far as the front takes them; returns whether the thread `links` has to write the rest."""
        data = b"".join(self.frames)
        self.frames.clear()
        with self._lock:
            if self._ended:
                return False
            waits = bool(self._backlog)
            sent = 0 if waits else self._send(data)
            if sent < len(data):
                self._backlog.append(memoryview(data)[sent:])
                self._backlog_bytes += len(data) - sent
        if self._backlog_bytes > MAX_BACKLOG_BYTES:
            self.end("it does not read its events")
        return not waits and sent < len(data)

    def write_backlog(self) -> bool:
        """Write more of the backlog; returns whether some is left. For the thread `links`."""
        with self._lock:
            if self._backlog:
                sent = self._send(self._backlog[0])
                self._backlog_bytes -= sent
                if rest := self._backlog.popleft()[sent:]:
                    self._backlog.appendleft(rest)
            return bool(self._backlog)

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:  # the front has closed it: the end is read, too
            return len(data)

    def end(self, why: str) -> None:
        """Write nothing more, and have the thread `links` read the link's end. For any thread."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._backlog.clear()
            self._backlog_bytes = 0
        print(f"link {self.number} ends: {why}", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


class LinkThread:
    """The thread `links`: accepts links from `control`, reads them, and writes their backlogs."""

    def __init__(self, control: socket.socket, arrivals: Arrivals, silence_s: float) -> None:
        self._control = control
        self._arrivals = arrivals
        # A link that is silent for so long ends: a front sends heartbeats. When the thread has looked for it last.
        self._silence_s = silence_s
        self._looked_at = time.monotonic()
        self._selector = selectors.DefaultSelector()
        # Links whose backlog is new, and a pipe that tells the thread.
        self._new_backlogs: deque[Link] = deque()
        self._waker, self._bell = os.pipe()
        self._links: set[Link] = set()
        self._count = 0
        for fd in (self._waker, self._bell, control.fileno()):
            os.set_blocking(fd, False)
        for fd in (self._waker, control.fileno()):
            self._selector.register(fd, selectors.EVENT_READ)
        threading.Thread(target=self._run, name="links", daemon=True).start()

    def add_backlog(self, link: Link) -> None:
        """Write the backlog of a link as soon as its front reads. For the engine's thread."""
        self._new_backlogs.append(link)
        with contextlib.suppress(BlockingIOError):  # it is woken already
            os.write(self._bell, b"\0")

    def _run(self) -> None:
        try:
            while True:
                self._turn()
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
            raise

    def _turn(self) -> None:
        for key, mask in self._selector.select(self._silence_s / 5 if self._links else None):
            link = key.data
            if link is None:
                self._accept() if key.fd == self._control.fileno() else self._watch_backlogs()
                continue
            if mask & selectors.EVENT_WRITE and not link.write_backlog():
                self._selector.modify(link.sock, selectors.EVENT_READ, link)
            if mask & selectors.EVENT_READ:
                self._read(link)
        now = time.monotonic()
        # A pause of the whole node, such as of its container, counts as one turn: fronts may go on after the engine.
        waited_s, self._looked_at = min(now - self._looked_at, self._silence_s / 5), now
        for link in self._links:
            link.silent_s += waited_s
            if link.silent_s > self._silence_s:
                link.end(f"no heartbeat for {self._silence_s:g} s")

    def _accept(self) -> None:
        fds = array.array("i", [-1])
        size = socket.CMSG_LEN(fds.itemsize)
        data, passed, *_ = self._control.recvmsg(1, size, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        if not data:  # the owner is gone, and stdin ends as well
            self._selector.unregister(self._control)
        for _level, _kind, body in passed:
            fds.frombytes(body)
            self._count += 1
            link = Link(self._count, socket.socket(fileno=fds[-1]))
            self._links.add(link)
            self._selector.register(link.sock, selectors.EVENT_READ, link)
            self._arrivals.put((link, None))

    def _watch_backlogs(self) -> None:
        os.read(self._waker, READ_BYTES)
        while self._new_backlogs:
            link = self._new_backlogs.popleft()
            if link in self._links:
                self._selector.modify(link.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, link)

    def _read(self, link: Link) -> None:
        try:
            data = link.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        link.silent_s = 0.0
        link.read += len(data)
        self._arrivals.put((link, data))
        if not data:
            self._selector.unregister(link.sock)
            self._links.remove(link)
            link.end("its front is gone")
            link.sock.close()
        elif link.read - link.taken > MAX_UNTAKEN_BYTES:
            link.end("the engine does not take its commands")


class Links:
    """All links, for the engine's thread."""

    def __init__(self, loop: EngineLoop, thread: LinkThread | None = None) -> None:
        self._loop = loop
        # None where no links can be passed to this process.
        self._thread = thread
        self._links: dict[int, Link] = {}
        # Whether there has been a link. Before, all events are of the process' owner, and no other method is called.
        self.shared = False
        # Requests of ended links that are still to be cancelled.
        self._orphans: deque[int] = deque()
        # Slots in use, waiting requests, and open requests of each link: now, and as told; None: a link is new.
        self._load: tuple[int, int, tuple[int, ...]] = (0, 0, ())
        self._told: tuple[int, int, tuple[int, ...]] | None = None
        self._tell_at = -math.inf

    def arrive(self, link: Link, data: bytes | None) -> None:
        if data is None:
            self._links[link.number] = link
            self.shared = True
            self._told = None
        elif data:
            link.take(data, self._loop)
        else:
            del self._links[link.number]
            self._orphans += link.requests

    def wait_s(self) -> float | None:
        """Seconds until there is work; None: until something arrives."""
        if self._orphans:
            return 0.0
        if self._links and self._load != self._told:
            return max(0.0, self._tell_at - time.monotonic())
        return None

    def before_step(self) -> None:
        """Cancel requests of ended links, not all in one step."""
        for _ in range(min(CANCELS, len(self._orphans))):
            self._loop.submit(Cancel(self._orphans.popleft()))

    def after_step(self, new: list[EngineEvent]) -> list[EngineEvent]:
        """Write a step's events, and answers to pings, to each link at once; returns those of the process' owner."""
        owners: list[EngineEvent] = []
        for event in new:
            if isinstance(event, EnginePong | EngineReady | EngineLoad) or not (number := event.id >> ID_BITS):
                owners.append(event)
            elif (link := self._links.get(number)) is not None:
                link.add(event)
        self._tell()
        for link in self._links.values():
            if link.frames and link.write():
                assert self._thread is not None
                self._thread.add_backlog(link)
        return owners

    def _tell(self) -> None:
        """Answer pings, and tell a load that has changed."""
        speaking, queued = self._loop.load
        each = tuple([len(link.requests) for link in self._links.values()])
        self._load = (speaking, queued, each)
        now = time.monotonic()
        due = self._load != self._told and now >= self._tell_at
        for link in self._links.values():
            # What counts since the last answer is told to the owner alone.
            link.frames += [encode(EnginePong(nonce, speaking, queued, step_ms=0.0)) for nonce in link.pings]
            link.pings.clear()
            if due:
                link.frames.append(encode(EngineLoad(speaking, queued, sum(each) - len(link.requests))))
        if due:
            self._told, self._tell_at = self._load, now + LOAD_S
