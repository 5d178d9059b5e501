"""A real node on a real port, and small helpers for its clients."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from loguru import logger
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from agent_tts.config.settings import Settings
from agent_tts.engine.factory import chosen_engine, create_loop
from agent_tts.engine.loop import EngineLoop, policy
from agent_tts.engine.scheduler import Scheduler
from agent_tts.engine.tone import ToneEngine
from agent_tts.engine_info import Model
from agent_tts.ipc.front_messages import Place
from agent_tts.messages import OnEvents, OnLost
from agent_tts.serve.access.ledger_client import NodeLedger
from agent_tts.serve.app import Extension, create_app
from agent_tts.serve.dictionaries import Dictionaries
from agent_tts.serve.local_engine import service_of
from agent_tts.serve.node import Node
from agent_tts.serve.processes.listener import listen
from agent_tts.serve.processes.server import NodeServer
from agent_tts.speech.engine_handle import EngineClient, EngineClientFactory
from agent_tts.speech.utterance import Told, Utterance
from tests.in_process import InProcessEngine

T = TypeVar("T")

START_S = 30.0

NO_DICTIONARIES = Dictionaries(Path("/nowhere"), 0)

# Of clients in a loop that tests share: a connection that is kept would be left behind by the test that opened it.
NOT_KEPT = httpx.Limits(max_keepalive_connections=0)


@dataclass(frozen=True, slots=True)
class RunningNode:
    """A node that accepts requests."""

    url: str  # http://127.0.0.1:port
    node: Node
    server: NodeServer

    @property
    def ws_url(self) -> str:
        """URL of the protocol's WebSocket."""
        return self.url.replace("http", "ws", 1) + "/v1/tts/stream"

    def http(self, **options: Any) -> httpx.AsyncClient:
        """A client of its HTTP; `options` are httpx's."""
        return httpx.AsyncClient(base_url=self.url, **options)


@asynccontextmanager
async def running_node(**values: Any) -> AsyncIterator[RunningNode]:
    """A ready node in this event loop, as `app_of` makes it. `values` are settings."""
    async with running_app(app_of(settings_of(**values))) as node:
        yield node


@asynccontextmanager
async def running_node_with_process(**values: Any) -> AsyncIterator[RunningNode]:
    """A node in this event loop with its engine in a child process, as in production. `values` are settings."""
    async with running_app(create_app(settings_of(**values))) as node:
        yield node


def app_of(settings: Settings, extension: Extension | None = None) -> FastAPI:
    """A node whose engine is in this event loop, too. Several engines, and those with a model, have processes."""
    in_process = settings.engines in (None, 1) and chosen_engine(settings) != "qwen3"
    return (
        app_with(settings, in_this_loop(settings), extension) if in_process else create_app(settings, None, extension)
    )


def app_with(settings: Settings, client: EngineClientFactory, extension: Extension | None = None) -> FastAPI:
    """A node with one engine, whose client this factory makes."""
    return create_app(settings, service_of(settings, [client]), extension)


def in_this_loop(settings: Settings) -> EngineClientFactory:
    """A factory of in-process engine clients; the engine's memory is taken when the node starts."""

    def make(on_events: OnEvents, on_lost: OnLost) -> EngineClient:
        return InProcessEngine(create_loop(settings), on_events, on_lost)

    return make


def settings_of(**values: Any) -> Settings:
    """Settings of a node with the tone engine on a free port that logs only warnings."""
    return Settings(**dict[str, Any](port=0, engine="tone", log_level="warning") | values)


def with_models(*models: Model, names: Sequence[str] = (), instructed: bool = False) -> EngineClientFactory:
    """A factory of in-process tone engines that list these models: routing uses them, speech does not.

    Args:
        names: of its only voices, in place of `tone-440` and so on; frequencies, which it speaks.
        instructed: whether its own model, which has the named voices, obeys instructions.
    """

    def make(on_events: OnEvents, on_lost: OnLost) -> EngineClient:
        settings = settings_of()
        engine = ToneEngine(settings, slots=4)
        if names:
            renamed = zip(engine.info.voices, names, strict=False)
            voices = tuple(dataclasses.replace(voice, name=name) for voice, name in renamed)
            engine.info = dataclasses.replace(engine.info, voices=voices, default_voice=names[0], aliases={})
        speakers = tuple(voice.name for voice in engine.info.voices)
        own = Model("named", "named", "nowhere", speakers=speakers, instructed=instructed)
        engine.info = dataclasses.replace(engine.info, models=(own, *models))
        return InProcessEngine(EngineLoop(engine, Scheduler(policy(settings, 4))), on_events, on_lost)

    return make


@asynccontextmanager
async def running_app(app: FastAPI) -> AsyncIterator[RunningNode]:
    """A ready node in this event loop."""
    node: Node = app.state.node
    settings = node.settings
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with closing(listen(settings)) as listener:
        server = NodeServer(app, url.set_result)
        task = asyncio.create_task(server.serve([listener]), name="node")
        try:
            async with asyncio.timeout(START_S):
                waiting: list[asyncio.Future[Any]] = [task, url]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    task.result()
            await until(lambda: node.service.ready, START_S)
            yield RunningNode(url.result(), node, server)
        finally:
            server.should_exit = True
            await task


@contextmanager
def logged(level: str = "WARNING", **options: Any) -> Iterator[list[str]]:
    """The lines that are logged in the block. `options` are loguru's."""
    lines: list[str] = []
    sink = logger.add(lines.append, level=level, format="{message}", **options)
    try:
        yield lines
    finally:
        logger.remove(sink)


def present(value: T | None) -> T:
    """The value, which is there."""
    assert value is not None
    return value


def typed(kind: type[T], value: object) -> T:
    """The value, which is of this type."""
    assert isinstance(value, kind)
    return value


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Poll a condition that has no event; less often, the longer it takes: a look costs more than time that jumps.

    Raises:
        TimeoutError: it stayed false.
    """
    pause_s = 0.005
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(pause_s)
            pause_s = min(1.05 * pause_s, 0.025)


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """The same, where no event loop runs."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.005)


async def passes(count: int) -> None:
    """Let the event loop pass so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def events_of(speech: Utterance) -> AsyncIterator[Told]:
    """All events of an utterance in this process, `Started` among them; a failure raises nothing."""
    arrived = asyncio.Event()
    speech.waker = arrived.set
    while speech.done is None or speech.has_events:
        if (event := speech.poll()) is not None:
            yield event
            continue
        arrived.clear()
        await arrived.wait()


async def ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their ends, whatever they are."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def uncollected() -> Iterator[None]:
    """What goes in the block goes without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def figures(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The samples of a node's metrics, by name and labels."""
    async with httpx.AsyncClient(timeout=20) as http:
        page = await http.get(f"{url}/metrics")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(page.text))
    assert len({family.name for family in families}) == len(families)
    samples = [sample for each in families for sample in each.samples]
    found = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
    assert len(found) == len(samples)
    return found


def taken(node: RunningNode, place: Place) -> int:
    """Places of a kind that are taken on a node with one front."""
    ledger = node.node.guard.ledger
    assert isinstance(ledger, NodeLedger)
    return ledger.counts.taken(place)


def recorded(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, what: Callable[..., Any] = lambda *given, **named: given
) -> list[Any]:
    """What is told of each call of a function from now on, which works as before; by default what it is given."""
    calls: list[Any] = []
    work: Callable[..., Any] = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        calls.append(what(*given, **named))
        return work(*given, **named)

    monkeypatch.setattr(owner, name, call)
    return calls


def threads_of(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[bool]:
    """Of each call, whether it holds the event loop."""
    return recorded(monkeypatch, owner, name, lambda *_, **__: threading.current_thread() is threading.main_thread())


def dominant_hz(pcm: bytes | NDArray[np.int16], rate: int = 24_000) -> float:
    """The loudest frequency of mono pcm_s16le."""
    samples = np.frombuffer(pcm, "<i2").astype(np.float64) if isinstance(pcm, bytes) else pcm.astype(np.float64)
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum) * rate / len(samples))
