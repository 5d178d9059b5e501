"""One engine of a node, as the service sees it: the way to it, its utterances, and whether it really speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, Protocol

from loguru import logger

from agent_tts.errors import RETRY_MS
from agent_tts.events import (
    EngineCommand,
    EngineEvent,
    EngineInfo,
    EnginePong,
    EngineReady,
    OpenRequest,
    RequestFinished,
    SpeechOptions,
)
from agent_tts.speech.engine_request import EngineRequest
from agent_tts.speech.placement import Load
from agent_tts.speech.routing import Routing

# Greeted and heard; greeted and not heard yet; to be started again; given up.
EngineState = Literal["ready", "starting", "lost", "failed"]


class EngineClient(Protocol):
    """The way to an engine loop, in another process or in this one."""

    async def start(self) -> None:
        """Bring the engine up; its `EngineReady` has been handed out when this returns."""
        ...

    def send(self, command: EngineCommand) -> None:
        """Never blocks; a command to a lost engine is dropped."""
        ...

    async def close(self) -> None:
        """Stop the engine and everything that watches it. Idempotent."""
        ...

    @property
    def alive(self) -> bool:
        """Whether an engine is there and answers."""
        ...

    @property
    def failed(self) -> asyncio.Event:
        """Set when it has given up on bringing an engine back."""
        ...


EngineClientFactory = Callable[[Callable[[list[EngineEvent]], None], Callable[[str], None]], EngineClient]


class EngineObserver(Protocol):
    """Who is told how the engines are, each by its number. No method may raise or await."""

    def started(self, engine: int, info: EngineInfo) -> None:
        """It has come up."""
        ...

    def pulse(self, engine: int, pong: EnginePong) -> None:
        """It has answered a heartbeat."""
        ...

    def lost(self, engine: int) -> None:
        """It is gone; `started` follows if it comes back."""
        ...


class EngineHandle:
    """Owns the client of one engine and the open utterances there. Its failures touch no other engine."""

    def __init__(self, number: int, make_client: EngineClientFactory, observer: EngineObserver | None) -> None:
        # Its place among the node's engines, from 0.
        self.number = number
        self._observer = observer
        self._client = make_client(self._on_events, self._on_lost)
        # Open utterances by id.
        self._open: dict[int, EngineRequest] = {}
        # Id of the next utterance. A u32, which four billion utterances do not exhaust in an engine's life.
        self._next_id = 1
        # What the engine is; kept over a restart, so that requests can be checked meanwhile. None before the first.
        self.info: EngineInfo | None = None
        # How many utterances may wait for a slot there.
        self._queue = 0
        # Frames of an utterance that are made ahead of its credit, at most; see `EngineRequest`.
        self._window = 1
        # Whether a real synthesis has succeeded since the engine started.
        self.ready = False
        # The first synthesis after a start, or None.
        self._trial: EngineRequest | None = None
        # Set whenever no utterance is open.
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def alive(self) -> bool:
        """Whether the engine is there and answers."""
        return self._client.alive

    @property
    def failed(self) -> bool:
        """Whether the engine is down for good."""
        return self._client.failed.is_set()

    @property
    def state(self) -> EngineState:
        """How it is, in a word."""
        if self.alive:
            return "ready" if self.ready else "starting"
        return "failed" if self.failed else "lost"

    @property
    def speaking(self) -> int:
        """Open utterances, waiting ones included."""
        return len(self._open)

    @property
    def load(self) -> Load:
        """For the choice among several engines. Known here: it does not wait for a heartbeat."""
        return Load(len(self._open), self.info.slots if self.info is not None else 1, self._queue)

    async def start(self) -> None:
        """Bring the engine up.

        Raises:
            SettingsError: it cannot be set up like that.
            EngineLost: it did not come up; the message says why.
        """
        await self._client.start()

    async def close(self) -> None:
        """Stop the engine; its utterances have been failed before. Idempotent."""
        await self._client.close()

    def open(self, options: SpeechOptions) -> EngineRequest:
        """Start an utterance with options that are resolved: it takes a slot, or a place in the queue, at once."""
        utterance = EngineRequest(self._next_id, self._client.send, self._window, self.number)
        self._next_id += 1
        self._open[utterance.request_id] = utterance
        self.idle.clear()
        self._client.send(OpenRequest(utterance.request_id, options))
        return utterance

    def fail_all(self, code: str, message: str) -> None:
        """End every utterance with an error."""
        self._trial = None  # its failure says nothing new
        for request_id in list(self._open):
            utterance = self._open[request_id]
            self._forget(request_id)
            utterance.deliver(RequestFinished(request_id, "error", code=code, message=message, retry_after_ms=RETRY_MS))

    # ------------------------------------------------------------ the engine client's side

    def _on_events(self, new: list[EngineEvent]) -> None:
        for event in new:
            if isinstance(event, EngineReady):
                self._on_ready(event)
            elif isinstance(event, EnginePong):
                if self._observer is not None:
                    self._observer.pulse(self.number, event)
            elif (utterance := self._open.get(event.request_id)) is not None:
                if isinstance(event, RequestFinished):
                    self._forget(event.request_id)
                    if event.code == "internal":  # why is in the engine's own log
                        logger.error("request {} failed: {}", utterance.name, event.message)
                utterance.deliver(event)

    def _on_ready(self, event: EngineReady) -> None:
        self.info, self._queue, self._window = event.info, event.queue, event.window
        if self._observer is not None:
            self._observer.started(self.number, event.info)
        self._trial = trial = self.open(Routing(event.info).resolve(SpeechOptions(lead_ms=None)))
        self._forget_when_heard(trial)
        trial.write("ready")
        trial.end()

    def _forget_when_heard(self, trial: EngineRequest) -> None:
        """Let `trial` take its own audio, and call the engine ready when there was some and nothing failed."""

        def hear() -> None:
            while trial.poll() is not None:
                pass
            if trial.finished is not None and trial is self._trial:
                self._trial = None
                self.ready = trial.finished.reason in ("end", "length") and trial.samples > 0
                if not self.ready:
                    why = trial.finished.message or "it gave no audio"
                    logger.error("engine {}: its first synthesis failed: {}", self.number, why)

        trial.waker = hear

    def _on_lost(self, why: str) -> None:
        logger.error("engine {} is lost with {} utterances: {}", self.number, len(self._open), why)
        self.ready = False
        if self._observer is not None:
            self._observer.lost(self.number)
        self.fail_all("engine_lost", "the engine was lost; it restarts by itself: try again")

    def _forget(self, request_id: int) -> None:
        del self._open[request_id]
        if not self._open:
            self.idle.set()
