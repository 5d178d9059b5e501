"""All speech of a node: opens each utterance on one of its engines, and tells how they are together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from agent_tts.errors import RETRY_MS, Draining, EngineLost
from agent_tts.events import EngineInfo, SpeechOptions
from agent_tts.speech.engine_handle import EngineClientFactory, EngineHandle, EngineObserver
from agent_tts.speech.engine_request import EngineRequest
from agent_tts.speech.placement import least_loaded
from agent_tts.speech.routing import Routing
from agent_tts.voices.library import VoiceLibrary


class SpeechService:
    """Owns the engines of a node, which are all alike."""

    def __init__(
        self,
        make_clients: Sequence[EngineClientFactory],
        library: VoiceLibrary | None = None,
        observer: EngineObserver | None = None,
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.engines = tuple(EngineHandle(number, make, observer) for number, make in enumerate(make_clients))
        # Voices beside the engines' own. None when there are no others.
        self.library = library
        # Other names of voices; see `Routing`.
        self._aliases = aliases
        # The names of `info` and `library`. None before the first request.
        self._routing: Routing | None = None
        # Whether new utterances are refused because the node is going away.
        self.draining = False

    @property
    def info(self) -> EngineInfo | None:
        """What the engines are; kept over a restart. None before the first has come up."""
        return next((engine.info for engine in self.engines if engine.info is not None), None)

    @property
    def alive(self) -> bool:
        """Whether an engine is there and answers."""
        return any(engine.alive for engine in self.engines)

    @property
    def ready(self) -> bool:
        """Whether an engine is there and has really spoken since it started."""
        return any(engine.ready for engine in self.engines)

    @property
    def failed(self) -> bool:
        """Whether all engines are down for good."""
        return all(engine.failed for engine in self.engines)

    @property
    def speaking(self) -> int:
        """Open utterances, waiting ones included."""
        return sum(engine.speaking for engine in self.engines)

    async def start(self) -> None:
        """Bring all engines up at once. On failure, and when this is cancelled, none is left.

        Raises:
            SettingsError: they cannot be set up like that.
            EngineLost: one did not come up; the message says why.
        """
        try:
            async with asyncio.TaskGroup() as starts:
                for engine in self.engines:
                    starts.create_task(engine.start(), name=f"start of engine {engine.number}")
        except BaseException as error:
            await self._stop()
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None
            raise

    async def close(self) -> None:
        """End every utterance and stop the engines. Idempotent."""
        self.draining = True
        for engine in self.engines:
            engine.fail_all("draining", "the node is going away")
        await self._stop()

    async def _stop(self) -> None:
        async with asyncio.TaskGroup() as stops:
            for engine in self.engines:
                stops.create_task(engine.close(), name=f"stop of engine {engine.number}")

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new utterances and wait for the open ones; whether all ended in time. Safe to cancel."""
        self.draining = True
        try:
            async with asyncio.timeout(timeout_s):
                for engine in self.engines:
                    await engine.idle.wait()
        except TimeoutError:
            return False
        return True

    def open(self, options: SpeechOptions) -> EngineRequest:
        """Start an utterance on the least loaded engine: it takes a slot, or a place in the queue, at once.

        Raises:
            UnknownVoice, UnknownModel, UnsupportedLanguage, Unsupported, InvalidRequest: see `Routing.resolve`.
            Draining: the node is going away.
            EngineLost: no engine is up; they come back by themselves.
        """
        if self.draining:
            raise Draining
        up = [engine for engine in self.engines if engine.alive]
        if not up:
            raise EngineLost("the engine is restarting: try again", retry_after_ms=RETRY_MS)
        # One that has never spoken fails quickly, so that it would look idle and draw every utterance.
        able = [engine for engine in up if engine.ready] or up
        return able[least_loaded([engine.load for engine in able])].open(self.resolve(options))

    def resolve(self, options: SpeechOptions) -> SpeechOptions:
        """The same options with voice, language and model as `Routing.resolve` names them, and its errors."""
        return self.routing.resolve(options)

    @property
    def routing(self) -> Routing:
        """What a request may name now: voices that were added or deleted since the last one are seen.

        Raises:
            EngineLost: no engine has been up yet.
        """
        info = self.info
        if info is None:
            raise EngineLost("the engine is starting: try again", retry_after_ms=RETRY_MS)
        stored = self.library.voices() if self.library is not None else ()
        if self._routing is None or self._routing.info is not info or self._routing.stored is not stored:
            self._routing = Routing(info, stored, self._aliases)
        return self._routing
