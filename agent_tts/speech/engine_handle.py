"""One engine of a node: its client, its open requests and its state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from loguru import logger

from agent_tts.engine_info import EngineInfo
from agent_tts.errors import RETRY_MS
from agent_tts.messages import (
    Audio,
    EngineEvent,
    EngineLoad,
    EnginePong,
    EngineReady,
    EngineState,
    Finished,
    OnEvents,
    OnLost,
    Open,
    RequestEvent,
    Send,
)
from agent_tts.options import EngineOptions, SpeechOptions
from agent_tts.speech.routing import Routing
from agent_tts.speech.utterance import Utterance
from agent_tts.speech.words.peaks import peaks_of_each


class EngineClient(Protocol):
    async def start(self) -> None:
        """Start the engine. `EngineReady` has been delivered when this returns.

        Raises:
            SettingsError: the settings do not suit the engine.
            EngineLost: the engine did not start; the message says why.
        """

    @property
    def send(self) -> Send:
        """Sends commands to the engine that runs, and to none when that is lost."""

    async def close(self) -> None:
        """Stop the engine and its supervision. Idempotent."""

    @property
    def alive(self) -> bool:
        """Whether the engine runs and answers."""

    @property
    def late(self) -> bool:
        """Whether a heartbeat of a running engine is overdue."""

    @property
    def failed(self) -> asyncio.Event:
        """Set when restarts of the engine are given up."""


EngineClientFactory = Callable[[OnEvents, OnLost], EngineClient]


class Receiver(Protocol):
    """Gets the events of one request id of an engine."""

    # Whether it has or had a slot there.
    started: bool

    def deliver(self, event: RequestEvent) -> None:
        """Take an event. Must not raise or await."""


class EngineObserver:
    """Receives changes of the engines' state, with the engine's index. No method may raise or await."""

    def started(self, engine: int, info: EngineInfo) -> None:
        """The engine has started."""

    def ready(self, engine: int) -> None:
        """The engine's first synthesis has succeeded."""

    def pulse(self, engine: int, pong: EnginePong) -> None:
        """The engine has answered a heartbeat."""

    def lost(self, engine: int) -> None:
        """The engine is lost; `started` follows if it restarts."""


def load(requests: int, slots: int, queue: int) -> tuple[bool, float]:
    """(Whether an engine would refuse another request, open requests per slot). The least is the best place for one."""
    return requests >= slots + queue, requests / slots


class EngineHandle:
    """One engine: its client and its open requests. Its failures do not affect other engines."""

    def __init__(
        self, number: int, make_client: EngineClientFactory, observer: EngineObserver, *, tries: bool = True
    ) -> None:
        # Index among the node's engines, from 0.
        self.number = number
        self._observer = observer
        self.client = make_client(self._on_events, self._on_lost)
        self._open: dict[int, Receiver] = {}
        # Id of the next request, a u32; never reused while the engine lives.
        self._next_id = 1
        # Kept over a restart, to check requests meanwhile. None before the first start.
        self.info: EngineInfo | None = None
        self._queue = 0
        # Maximum number of frames that a request is made ahead of its credit; see `Utterance`.
        self.window = 1
        # What the engine has told last, where fronts share it; otherwise None.
        self._told: EngineLoad | None = None
        # Whether a synthesis is tried after each start; otherwise `tell` says whether one has succeeded.
        self._tries = tries
        self.ready = False
        # The first synthesis after a start; None when it has ended.
        self._trial: Utterance | None = None
        # Set while no request is open.
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def alive(self) -> bool:
        return self.client.alive

    @property
    def failed(self) -> bool:
        return self.client.failed.is_set()

    @property
    def state(self) -> EngineState:
        if self.alive:
            return "ready" if self.ready else "starting"
        return "failed" if self.failed else "lost"

    @property
    def speaking(self) -> int:
        """Number of open requests, waiting ones included."""
        return len(self._open)

    @property
    def able(self) -> bool:
        """Whether it is ready and no heartbeat is overdue."""
        return self.alive and self.ready and not self.client.late

    @property
    def load(self) -> tuple[bool, float]:
        """See `load`. Own requests are counted here: current without a heartbeat."""
        others = 0 if self._told is None else self._told.others
        return load(len(self._open) + others, self.slots, self._queue)

    @property
    def free(self) -> int:
        """Slots that nobody has or waits for, as far as is known."""
        if self._told is None:
            return self.slots - len(self._open)
        unstarted = sum(not receiver.started for receiver in self._open.values())
        return self.slots - self._told.speaking - self._told.queued - unstarted

    @property
    def slots(self) -> int:
        """How many requests it speaks at once; 1 before its first start."""
        return 1 if self.info is None else self.info.slots

    def owners(self) -> list[int]:
        return [request.owner for request in self._open.values() if isinstance(request, Utterance)]

    def open(self, utterance: Utterance, options: EngineOptions) -> None:
        """Start an utterance. It takes a slot or a place in the queue at once."""
        self.settle(self.enter(utterance, options, utterance.owner), utterance)

    def enter(
        self, receiver: Receiver, options: EngineOptions, owner: int, *, waits: bool = True, waited_ms: int = 0
    ) -> int:
        """Open a request whose events `receiver` gets; returns its id. See `Open`."""
        request_id = self._next_id
        self._next_id += 1
        self._open[request_id] = receiver
        self.idle.clear()
        self.client.send(Open(request_id, options, owner, waited_ms, waits))
        return request_id

    def settle(self, request_id: int, utterance: Utterance) -> None:
        """Have `utterance` get the events of this id, and send its commands here."""
        self._open[request_id] = utterance
        utterance.settle(request_id, self.number, self.client.send)

    def observe(self, observer: EngineObserver) -> None:
        """Tell `observer` of the changes from now on, and that the engine has started if it runs."""
        self._observer = observer
        if self.alive and self.info is not None:
            observer.started(self.number, self.info)

    def tell(self, state: EngineState) -> None:
        """Take over the state from the engine's owner, which has tried it."""
        self.ready = state == "ready"
        if state == "failed":
            self.client.failed.set()

    def fail_all(self, code: str, message: str) -> None:
        self._trial = None  # its failure need not be logged
        for request_id, receiver in list(self._open.items()):
            self._forget(request_id)
            receiver.deliver(Finished(request_id, "error", code=code, message=message, retry_after_ms=RETRY_MS))

    # ------------------------------------------------------------ the engine client's side

    def _on_events(self, new: list[EngineEvent]) -> None:
        peaks: Iterator[bytes] | None = None
        if self.info is not None and not self.info.aligns_words:
            peaks = iter(peaks_of_each([event.payload for event in new if isinstance(event, Audio)]))
        for event in new:
            if isinstance(event, Audio):
                its_peaks = b"" if peaks is None else next(peaks)
                if (receiver := self._open.get(event.id)) is not None:
                    receiver.deliver(Audio(event.id, event.payload, peaks=its_peaks))
            elif isinstance(event, EngineReady):
                self._on_ready(event)
            elif isinstance(event, EnginePong):
                self._observer.pulse(self.number, event)
            elif isinstance(event, EngineLoad):
                self._told = event
            elif (receiver := self._open.get(event.id)) is not None:
                if isinstance(event, Finished):
                    self._forget(event.id)
                    if event.code == "internal":  # the engine's log has the traceback
                        logger.error("request {}/{} failed: {}", self.number, event.id, event.message)
                receiver.deliver(event)

    def _on_ready(self, event: EngineReady) -> None:
        self.info, self._queue, self.window = event.info, event.queue, event.window
        self._observer.started(self.number, event.info)
        if self._tries:
            self._try()

    def _try(self) -> None:
        assert self.info is not None
        resolved = Routing(self.info).resolve(SpeechOptions(lead_ms=None))
        self._trial = trial = Utterance(resolved, self.info, self.window)
        self.open(trial, resolved.options)
        trial.waker = partial(self._on_trial, trial)
        trial.write("ready")
        trial.end()

    def _on_trial(self, trial: Utterance) -> None:
        """Discard the audio of `trial`; set `ready` if it made audio and did not fail."""
        while trial.poll() is not None:
            pass
        if trial.finished is not None and trial is self._trial:
            self._trial = None
            trial.waker = None  # without the cycle it is freed at once
            self.ready = trial.finished.reason in ("end", "length") and trial.received > 0
            if self.ready:
                self._observer.ready(self.number)
            else:
                why = trial.finished.message or "it gave no audio"
                logger.error("engine {}: its first synthesis failed: {}", self.number, why)

    def _on_lost(self, why: str) -> None:
        logger.error("engine {} is lost with {} utterances: {}", self.number, len(self._open), why)
        self.ready = False
        self._told = None
        self._observer.lost(self.number)
        self.fail_all("engine_lost", "the engine was lost; it restarts by itself: try again")

    def _forget(self, request_id: int) -> None:
        del self._open[request_id]
        if not self._open:
            self.idle.set()
