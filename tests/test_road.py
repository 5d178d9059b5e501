"""Through whose hands a word and a frame go in a node: counted, limited, and told in the architecture page."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from pydantic import BaseModel

from agent_tts.client.moving import connect
from agent_tts.config.settings import Settings
from agent_tts.engine.factory import create_loop
from agent_tts.engine.tone import ToneEngine
from agent_tts.ipc.child import Inbox, serve
from agent_tts.ipc.connection import EngineConnection
from agent_tts.ipc.links import Links
from agent_tts.messages import Audio, OnEvents, OnLost, Send, StopEngine
from agent_tts.speech.engine_handle import EngineClient
from tests.support import app_with, running_app, settings_of, until

pytestmark = pytest.mark.node

# Objects of ours between the socket and `Engine.step`, these two included, and back.
MOST_FOR_A_WORD, MOST_FOR_A_FRAME = 14, 10

WORD = "mellifluously"
PAGE = Path(__file__).parents[1] / "web" / "docs" / "architecture.md"


class Piped(EngineConnection, asyncio.Protocol):
    """The front's end of a pipe."""

    def connection_made(self, transport: Any) -> None:
        self.open(transport)

    def data_received(self, data: bytes) -> None:
        self.feed(data)

    def _broken(self, why: str) -> None:
        raise AssertionError(why)


class InThread:
    """An engine as in a process of its own, at the other end of a socket pair, but in a thread that can be traced."""

    alive, late = True, False

    def __init__(self, settings: Settings, on_events: OnEvents) -> None:
        self._settings = settings
        self._connection = Piped(settings.timeouts.engine_heartbeat_s, on_events)
        self.failed = asyncio.Event()
        self._ours, self._its = socket.socketpair()
        self._thread = threading.Thread(target=self._serve)

    @property
    def send(self) -> Send:
        return self._connection.send

    async def start(self) -> None:
        self._thread.start()
        await asyncio.get_running_loop().create_unix_connection(lambda: self._connection, sock=self._ours)

    async def close(self) -> None:
        self.send(StopEngine())
        await asyncio.to_thread(self._thread.join)
        self._connection.close()
        self._its.shutdown(socket.SHUT_RDWR)  # ends the reader's thread
        self._its.close()

    def _serve(self) -> None:
        loop = create_loop(self._settings)
        serve(loop, Inbox(self._its.fileno()), self._its.fileno(), Links(loop))


def holds(value: Any, mark: str | bytes, depth: int = 4) -> bool:
    """Whether a value is or has the mark: text or bytes, alone, in a message or in a collection of these."""
    if isinstance(value, str):
        return isinstance(mark, str) and mark in value
    if isinstance(value, bytes | bytearray | memoryview):
        return (mark.encode() if isinstance(mark, str) else mark) in bytes(value)
    if depth == 0:
        return False
    if isinstance(value, (list, tuple, deque)):
        return any(holds(one, mark, depth - 1) for one in list(value)[:64])
    if isinstance(value, dict):
        return any(holds(one, mark, depth - 1) for one in value.values())
    if is_value(value) and is_dataclass(value):
        return any(holds(getattr(value, field.name), mark, depth - 1) for field in fields(value))
    return False


def is_ours(one: Any) -> bool:
    """Whether an object is of the node, and more than a value."""
    module = type(one).__module__
    of_node = module.startswith("agent_tts.") and not module.startswith("agent_tts.client")
    return isinstance(one, Piped) or (of_node and not is_value(one))


def is_value(one: Any) -> bool:
    """Whether an object only holds what it is made of: a message, a model, a tuple."""
    kind = type(one)
    frozen = is_dataclass(kind) and kind.__dataclass_params__.frozen  # pyrefly: ignore[missing-attribute]
    return frozen or isinstance(one, (BaseModel, tuple))


class Trace:
    """The classes of ours whose methods get or return the word on its way to the engine, or the first frame back."""

    def __init__(self) -> None:
        self.word: dict[str, None] = {}
        self.frame: dict[str, None] = {}
        # The thread in which a step runs; whether the engine has the word; bytes of its first frame.
        self._stepping: int | None = None
        self._is_there = False
        self._pcm: bytes | None = None

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        if event not in ("call", "return"):
            return
        one = frame.f_locals.get("self")
        if not is_ours(one):
            return
        if isinstance(one, ToneEngine) and frame.f_code.co_name == "step":
            self._step(event, frame, result)
        if self._stepping == threading.get_ident():
            return
        # A method has what it was given, and at its end, or where it waits, also what it has got meanwhile.
        got = [result, *(value for name, value in frame.f_locals.items() if name != "self")]
        name = EngineConnection.__name__ if isinstance(one, Piped) else type(one).__name__
        if not self._is_there and holds(got, WORD):
            self.word[name] = None
        if self._pcm is not None and holds(got, self._pcm):
            self.frame[name] = None

    def _step(self, event: str, frame: FrameType, result: Any) -> None:
        self._stepping = threading.get_ident() if event == "call" else None
        if event == "call":
            self._is_there = self._is_there or holds(list(frame.f_locals.values()), WORD)
        elif self._is_there and self._pcm is None:
            audio = next((told for told in result or () if isinstance(told, Audio)), None)
            self._pcm = None if audio is None else audio.payload[-64:]

    @contextlib.contextmanager
    def everywhere(self) -> Iterator[None]:
        """Trace this thread and those that begin meanwhile."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


@asynccontextmanager
async def traced(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Trace]:
    """A node that has spoken one word for a client, with its engine behind a pipe."""
    monkeypatch.setattr(os, "_exit", lambda _: None)  # the end of an engine process
    settings = settings_of()
    trace = Trace()

    def engine(on_events: OnEvents, on_lost: OnLost) -> EngineClient:
        return InThread(settings, on_events)

    with trace.everywhere():
        async with running_app(app_with(settings, engine)) as node, connect(node.url) as client:
            speech = await client.open()
            speech.write("One ")
            await until(lambda: bool(speech.words))
            speech.write(f"{WORD} ")
            speech.end()
            async for _ in speech:
                pass
            yield trace


def told(heading: str) -> set[str]:
    """The objects in the paragraph of the page that begins with this."""
    (line,) = re.findall(rf"^{heading}(.*?)(?:\n\n|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return set(re.findall(r":(\w+)`", line))


async def test_a_word_and_a_frame_go_through_few_hands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new object on the way is a new row here: the page names it, and another one goes."""
    async with traced(monkeypatch) as trace:
        assert set(trace.word) == told("Objects that a word meets: ")
        assert set(trace.frame) == told("Objects that a frame meets, from the engine's step on: ")
        assert len(trace.word) <= MOST_FOR_A_WORD
        assert len(trace.frame) <= MOST_FOR_A_FRAME
