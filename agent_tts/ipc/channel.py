"""Messages, questions and file descriptors between two processes of a node, over one Unix socket pair.

Frames are those of `wire`; the tag says what a frame is. Its body is `u32 call | u8 descriptors | u8 length of name |
name | JSON`: the name of the message and its fields, or no name and the value of an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import types
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, get_args, get_origin

from loguru import logger

from agent_tts.errors import RETRY_MS, AtCapacity, Internal, SpeechError, from_code
from agent_tts.ipc.front_messages import Question
from agent_tts.ipc.wire import WireError, decode, frame, from_json, to_json
from agent_tts.system import open_files

READ_BYTES = 1 << 16
MAX_FDS = 64  # of one message
MAX_BYTES = 16 << 20  # of one message: with 1 000 keys a page of metrics has some, and so have settings
MAX_UNSENT_BYTES = 2 * MAX_BYTES  # with more, the other side counts as hung
MAX_OPEN = 4_096  # questions without an answer, asked by this side, and handlers that run for the other

_TELL, _ASK, _ANSWER, _REFUSAL = range(1, 5)
_PREFIX = struct.Struct("<IBB")  # call, 0 in what is told; descriptors; length of the name

A = TypeVar("A")
M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class _Frame:
    tag: int
    call: int
    fds: int  # descriptors that come with it
    name: str
    json: bytes


def _frame(tag: int, body: bytes) -> _Frame:
    call, fds, length = _PREFIX.unpack_from(body)
    start = _PREFIX.size + length
    return _Frame(tag, call, fds, str(body[_PREFIX.size : start], "ascii"), body[start:])


# Readers for `decode`.
_FRAMES = {tag: partial(_frame, tag) for tag in (_TELL, _ASK, _ANSWER, _REFUSAL)}


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A `SpeechError` that answers a question."""

    code: str
    message: str
    retry_after_ms: int | None


class NoAnswer(AtCapacity):
    """The other side is gone, or did not answer in time. It may have done what it was asked."""


class Channel:
    """One end of a channel. Messages arrive in the order in which they were sent, answers among them.

    Every method belongs to the event loop's thread.
    """

    def __init__(self, sock: socket.socket, reads: types.UnionType, on_lost: Callable[[str], None]) -> None:
        """Take over a socket of `socket.socketpair()`; read from the next turn of the running event loop on.

        Args:
            reads: the messages that the other side may send.
            on_lost: called once with the reason when nothing more can come; not after `close`.
        """
        sock.setblocking(False)
        self._sock = sock
        self._kinds: dict[str, type] = {kind.__name__: kind for kind in get_args(reads)}
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        # They are kept by kind: how many descriptors come with a message, and who gets it.
        self._handlers: dict[type, tuple[int, Callable[..., Any]]] = {}
        self._rest = bytearray()
        # Descriptors that have come, for the messages that announce some: a list for each message.
        self._received: deque[list[int]] = deque()
        # Frames that the kernel has not taken, with descriptors that go with their first byte; and their bytes.
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self._unsent_bytes = 0
        # Questions without an answer: the type of the answer, and who waits.
        self._asked: dict[int, tuple[Any, asyncio.Future[Any]]] = {}
        self._calls = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = False
        self._loop.add_reader(sock, self._read)

    def handle(self, kind: type[M], handler: Callable[..., Any], fds: int = 0) -> None:
        """Have a kind of message handled, before the first can come.

        The handler is called with the message, then its `fds` descriptors, which belong to it from then on. What it
        returns, or what its coroutine returns, answers a question; a `SpeechError` that it raises is raised by `ask`.
        """
        self._handlers[kind] = fds, handler

    def tell(self, message: object, fds: Sequence[int] = ()) -> None:
        """Send a message; never blocks. Does nothing if the channel is lost.

        The descriptors belong to the channel from now on: it closes them when they are sent, or cannot be.
        Raises `WireError` for a message of more than `MAX_BYTES`.
        """
        self._send(_TELL, 0, type(message).__name__, message, fds)

    async def ask(self, message: Question[A], timeout_s: float, fds: Sequence[int] = ()) -> A:
        """The answer to a question. Descriptors are as in `tell`.

        Cancelling it is safe, but the other side may do what it was asked; a later `tell` can take it back.

        Raises:
            NoAnswer: the channel is lost, no answer came within `timeout_s`, or `MAX_OPEN` questions are open.
            Internal: the question has more than `MAX_BYTES`.
            SpeechError: the other side's refusal, with its code, message and `retry_after_ms`.
        """
        if self.closed or len(self._asked) >= MAX_OPEN:
            _close(fds)
            raise _no_answer()
        self._calls = self._calls % 0xFFFF_FFFF + 1
        call, answer = self._calls, self._loop.create_future()
        self._asked[call] = _answer_of(message), answer
        try:
            self._send(_ASK, call, type(message).__name__, message, fds)
            async with asyncio.timeout(timeout_s):
                result: A = await answer
                return result
        except TimeoutError:
            raise _no_answer() from None
        except WireError as error:
            raise Internal(str(error)) from None
        finally:
            self._asked.pop(call, None)

    async def close(self) -> None:
        """Close it; what is unsent is dropped. `on_lost` is not called any more. Idempotent."""
        self._on_lost = lambda why: None
        self._lose("closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------ out

    def _send(self, tag: int, call: int, name: str, content: object, fds: Sequence[int] = ()) -> None:
        try:
            prefix = _PREFIX.pack(call, len(fds), len(name)) + name.encode("ascii")
            data = frame(tag, prefix + to_json(content), name or "an answer", MAX_BYTES)
        except BaseException:
            _close(fds)
            raise
        if self.closed:
            _close(fds)
            return
        self._unsent.append((memoryview(data), list(fds)))
        self._unsent_bytes += len(data)
        if len(self._unsent) == 1:
            self._flush()
        if self._unsent_bytes > MAX_UNSENT_BYTES:
            self._lose("it does not read its messages")

    def _flush(self) -> None:
        while self._unsent:
            data, fds = self._unsent[0]
            try:
                sent = socket.send_fds(self._sock, [data], fds) if fds else self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._sock, self._flush)
                return
            except OSError as error:
                self._lose(f"it cannot be written to: {error.strerror}")
                return
            self._unsent_bytes -= sent
            _close(fds)
            self._unsent[0] = data[sent:], []
            if sent == len(data):
                self._unsent.popleft()
        self._loop.remove_writer(self._sock)

    # ------------------------------------------------------------ in

    def _read(self) -> None:
        try:
            with open_files.spare():  # descriptors that come find room, whatever clients have taken
                data, fds, flags, _ = socket.recv_fds(self._sock, READ_BYTES, MAX_FDS)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(f"it is gone: {error.strerror}")
            return
        open_files.keep(*fds)
        # The system ends a read after bytes with descriptors. Of those without room it says only that there were some.
        if fds or flags & socket.MSG_CTRUNC:
            self._received.append(fds)
        if not data:
            self._lose("it is gone")
            return
        try:
            for message in decode(self._rest, data, _FRAMES, MAX_BYTES):
                self._take(message)
        except WireError as error:
            self._lose(f"it broke the protocol: {error}")

    def _take(self, message: _Frame) -> None:
        if self.closed:
            return
        if message.tag in (_ANSWER, _REFUSAL):
            self._take_answer(message)
            return
        kind = self._kinds.get(message.name)
        wanted, handler = self._handlers.get(kind, (0, None)) if kind is not None else (0, None)
        fds = self._received.popleft() if message.fds and self._received else []
        try:
            if handler is None or message.fds != wanted:
                raise WireError(f"{message.name} with {message.fds} descriptors is not handled")
            content = from_json(kind, message.json)
            if len(fds) != wanted:
                raise AtCapacity("no file descriptor is free: raise the limit of open files", retry_after_ms=RETRY_MS)
        except WireError:
            _close(fds)
            raise
        except AtCapacity as error:
            _close(fds)
            self._refuse(message, error)
            return
        try:
            result = handler(content, *fds)
        except Exception as error:  # noqa: BLE001 - the edge to another process
            self._refuse(message, error)
            return
        if not isinstance(result, Coroutine):
            self._answer(message, result)
        elif len(self._tasks) >= MAX_OPEN:
            result.close()
            self._refuse(message, _no_answer())
        else:
            task = asyncio.create_task(self._finish(message, result), name=f"handler of {message.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _finish(self, message: _Frame, result: Coroutine[Any, Any, Any]) -> None:
        try:
            value = await result
        except Exception as error:  # noqa: BLE001 - the edge to another process
            self._refuse(message, error)
        else:
            self._answer(message, value)

    def _answer(self, message: _Frame, value: object) -> None:
        if message.tag == _ASK:
            try:
                self._send(_ANSWER, message.call, "", value)
            except WireError as error:  # of this side's own answer
                self._refuse(message, error)

    def _refuse(self, message: _Frame, error: Exception) -> None:
        if not isinstance(error, SpeechError):
            logger.opt(exception=error).error("the handler of {} failed", message.name)
            error = Internal("the node has a fault: its log says more")
        if message.tag == _ASK:
            self._send(_REFUSAL, message.call, "", _Refusal(error.code, error.message, error.retry_after_ms))
        else:
            logger.warning("{} is not obeyed: {}", message.name, error.message)

    def _take_answer(self, message: _Frame) -> None:
        kind, answer = self._asked.get(message.call, (None, None))
        if answer is None or answer.done():  # nobody waits any more
            return
        if message.tag == _REFUSAL:
            told: _Refusal = from_json(_Refusal, message.json)
            answer.set_exception(from_code(told.code, told.message, told.retry_after_ms))
        else:
            answer.set_result(from_json(kind, message.json))

    # ------------------------------------------------------------ the end

    def _lose(self, why: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        for fds in (*self._received, *(fds for _, fds in self._unsent)):
            _close(fds)
        self._unsent.clear()
        self._received.clear()
        # Not now: the caller may be in the middle of its own work. But before those who ask go on, because to them
        # a lost channel looks like a hung peer.
        self._loop.call_soon(lambda: self._on_lost(why))
        for _, answer in self._asked.values():
            if not answer.done():
                answer.set_exception(_no_answer())


def _no_answer() -> NoAnswer:
    return NoAnswer("the node does not answer in time: try again", retry_after_ms=RETRY_MS)


def _answer_of(question: Question[Any]) -> Any:
    bases: tuple[Any, ...] = type(question).__orig_bases__  # pyrefly: ignore[missing-attribute]
    return next(get_args(base)[0] for base in bases if get_origin(base) is Question)


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
