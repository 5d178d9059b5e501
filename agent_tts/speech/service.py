"""All speech of a node: opens streams on the engine, hands their events out, and ends them when the engine is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from loguru import logger

from agent_tts.errors import RETRY_MS, Draining, EngineLost
from agent_tts.events import Command, EngineInfo, Event, Finished, Hello, Open, Pong, SpeechOptions
from agent_tts.speech.routing import Routing
from agent_tts.speech.session import Speech
from agent_tts.voices.library import VoiceLibrary


class Link(Protocol):
    """The way to an engine loop, in another process or in this one."""

    async def start(self) -> None:
        """Bring the engine up; its `Hello` has been handed out when this returns."""
        ...

    def send(self, command: Command) -> None:
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


LinkFactory = Callable[[Callable[[list[Event]], None], Callable[[str], None]], Link]


class SpeechService:
    """Owns the link to the engine and every open `Speech`."""

    def __init__(self, make_link: LinkFactory, library: VoiceLibrary | None = None) -> None:
        self._link = make_link(self._on_events, self._on_lost)
        # Voices beside the engine's own. None when there are no others.
        self.library = library
        # Open streams by id.
        self._open: dict[int, Speech] = {}
        # Id of the next stream. A u32, which four billion streams do not exhaust in an engine's life.
        self._next_id = 1
        # What the engine is; kept over a restart, so that requests can be checked meanwhile. None before the first.
        self.info: EngineInfo | None = None
        # The names of `info` and `library`. None before the first request.
        self._routing: Routing | None = None
        # Whether a real synthesis has succeeded since the engine started.
        self.ready = False
        # Whether new streams are refused because the node is going away.
        self.draining = False
        # Called with each pulse, and with each start of an engine; set by the metrics.
        self.on_pulse: Callable[[Pong], None] | None = None
        self.on_start: Callable[[EngineInfo], None] | None = None
        # The first synthesis after a start, or None.
        self._trial: Speech | None = None
        # Set whenever no stream is open.
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def alive(self) -> bool:
        """Whether the engine is there and answers."""
        return self._link.alive

    @property
    def failed(self) -> bool:
        """Whether the engine is down for good."""
        return self._link.failed.is_set()

    @property
    def speaking(self) -> int:
        """Open streams, waiting ones included."""
        return len(self._open)

    async def start(self) -> None:
        """Bring the engine up.

        Raises:
            EngineLost: it did not come up; the message says why.
        """
        await self._link.start()

    async def close(self) -> None:
        """End every stream and stop the engine. Idempotent."""
        self.draining = True
        self._fail_all("draining", "the node is going away")
        await self._link.close()

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new streams and wait for the open ones; whether all ended in time. Safe to cancel."""
        self.draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def open(self, options: SpeechOptions) -> Speech:
        """Start a stream: it takes a slot, or a place in the queue, at once.

        Raises:
            UnknownVoice, UnknownModel, UnsupportedLanguage, Unsupported, InvalidRequest: see `Routing.resolve`.
            Draining: the node is going away.
            EngineLost: the engine is down and comes back by itself.
        """
        if self.draining:
            raise Draining("the node is going away: use another one")
        if self.info is None or not self._link.alive:
            raise EngineLost("the engine is restarting: try again", retry_after_ms=RETRY_MS)
        return self._begin(self.resolve(options))

    def resolve(self, options: SpeechOptions) -> SpeechOptions:
        """The same options with voice, language and model as `Routing.resolve` names them, and its errors."""
        return self.routing.resolve(options)

    @property
    def routing(self) -> Routing:
        """What a request may name now: voices that were added or deleted since the last one are seen.

        Raises:
            EngineLost: no engine has been up yet.
        """
        if self.info is None:
            raise EngineLost("the engine is starting: try again", retry_after_ms=RETRY_MS)
        stored = self.library.voices() if self.library is not None else ()
        if self._routing is None or self._routing.info is not self.info or self._routing.stored is not stored:
            self._routing = Routing(self.info, stored)
        return self._routing

    def _begin(self, options: SpeechOptions) -> Speech:
        speech = Speech(self._next_id, self._link.send)
        self._next_id += 1
        self._open[speech.stream] = speech
        self._idle.clear()
        self._link.send(Open(speech.stream, options))
        return speech

    # ------------------------------------------------------------ the link's side

    def _on_events(self, new: list[Event]) -> None:
        for event in new:
            if isinstance(event, Hello):
                self._on_hello(event)
            elif isinstance(event, Pong):
                if self.on_pulse is not None:
                    self.on_pulse(event)
            elif (speech := self._open.get(event.stream)) is not None:
                if isinstance(event, Finished):
                    self._forget(event.stream)
                speech.deliver(event)

    def _on_hello(self, hello: Hello) -> None:
        self.info = hello.info
        if self.on_start is not None:
            self.on_start(hello.info)
        self._trial = trial = self._begin(self.resolve(SpeechOptions(lead_ms=None)))
        self._forget_when_heard(trial)
        trial.write("ready")
        trial.end()

    def _forget_when_heard(self, trial: Speech) -> None:
        """Let `trial` take its own audio, and call the node ready when there was some and nothing failed."""

        def hear() -> None:
            while trial.poll() is not None:
                pass
            if trial.finished is not None and trial is self._trial:
                self._trial = None
                self.ready = trial.finished.reason in ("end", "length") and trial.samples > 0
                if not self.ready:
                    why = trial.finished.message or "it gave no audio"
                    logger.error("the engine's first synthesis failed: {}", why)

        trial.waker = hear

    def _on_lost(self, why: str) -> None:
        logger.error("engine lost with {} streams: {}", len(self._open), why)
        self.ready = False
        self._fail_all("engine_lost", "the engine was lost; it restarts by itself: try again")

    def _fail_all(self, code: str, message: str) -> None:
        self._trial = None  # its failure says nothing new
        for stream in list(self._open):
            speech = self._open[stream]
            self._forget(stream)
            speech.deliver(Finished(stream, "error", code=code, message=message, retry_after_ms=RETRY_MS))

    def _forget(self, stream: int) -> None:
        del self._open[stream]
        if not self._open:
            self._idle.set()
