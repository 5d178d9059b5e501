"""The engines of a node: opens each utterance on one of them and reports their common state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from loguru import logger

from agent_tts.engine_info import EngineInfo
from agent_tts.errors import RETRY_MS, Draining, EngineLost
from agent_tts.options import SpeechOptions
from agent_tts.speech.engine_handle import EngineClientFactory, EngineHandle, EngineObserver
from agent_tts.speech.moving import Mover
from agent_tts.speech.routing import Resolved, Routing
from agent_tts.speech.utterance import Listener, Utterance
from agent_tts.text.entries import Lexicon
from agent_tts.voices.library import StoredLexicon, VoiceLibrary

LEXICON_S = 0.8  # an engine that others wait for ends a request after a second without text

P = ParamSpec("P")
T = TypeVar("T")


class SpeechService:
    """The engines of a node, all of the same kind.

    Where another process owns them, `tries` is false, and `EngineHandle.tell` gets their states. Of engines with the
    same load, utterances begin at number `prefers` modulo their number: fronts that share them should differ.
    """

    def __init__(
        self,
        make_clients: Sequence[EngineClientFactory],
        library: VoiceLibrary | None = None,
        observer: EngineObserver | None = None,
        aliases: Mapping[str, str] = MappingProxyType({}),
        lexicon: Lexicon | None = None,
        *,
        tries: bool = True,
        prefers: int = 0,
    ) -> None:
        observer = observer or EngineObserver()
        self.engines = tuple(
            EngineHandle(number, make, observer, tries=tries) for number, make in enumerate(make_clients)
        )
        # Moves waiting utterances; None with one engine.
        self._mover = Mover(self.engines) if len(self.engines) > 1 else None
        self._prefers = prefers
        # Voices in addition to the engines' own; None without a voice library.
        self.library = library
        self._aliases = aliases
        # What all requests have from their start on; None without one.
        self.lexicon = lexicon
        # The names of `info` and `library`. None before the first request.
        self._routing: Routing | None = None
        # True while the node shuts down: new utterances are refused.
        self.draining = False
        # Threads for the library, whose folder may not answer, and the tasks that wait for lexicons, one an utterance.
        self._threads = ThreadPoolExecutor(4, "voices")
        self._readings: set[asyncio.Task[None]] = set()
        # Starts the engines; None before `begin`.
        self._start: asyncio.Task[None] | None = None

    @property
    def info(self) -> EngineInfo | None:
        """Description of the engines, kept over a restart. None before the first engine has started."""
        return next((engine.info for engine in self.engines if engine.info is not None), None)

    @property
    def alive(self) -> bool:
        return any(engine.alive for engine in self.engines)

    @property
    def ready(self) -> bool:
        return any(engine.ready for engine in self.engines)

    @property
    def used(self) -> float:
        """Open utterances of all fronts, those that wait included, for each slot of engines that run; 0 without one."""
        up = [engine for engine in self.engines if engine.alive]
        slots = sum(engine.slots for engine in up)
        return sum(engine.load[1] * engine.slots for engine in up) / slots if slots else 0.0

    @property
    def failed(self) -> bool:
        return all(engine.failed for engine in self.engines)

    @property
    def speaking(self) -> int:
        """Open utterances, waiting ones included."""
        return sum(engine.speaking for engine in self.engines)

    def observe(self, observer: EngineObserver) -> None:
        """Tell `observer`, and no other, of the engines, also that those run that do."""
        for engine in self.engines:
            engine.observe(observer)

    def begin(self) -> None:
        """Begin to start all engines; `start` is to follow, or `close`."""
        self._start = asyncio.create_task(self._start_all(), name="start of the engines")

    async def start(self) -> None:
        """Start all engines; raises the errors of `EngineClient.start`. A failure or a cancel stops all of them."""
        if self._start is None:
            self.begin()
        assert self._start is not None
        await self._start

    async def _start_all(self) -> None:
        try:
            async with asyncio.TaskGroup() as starts:
                for engine in self.engines:
                    starts.create_task(engine.client.start(), name=f"start of engine {engine.number}")
        except BaseException as error:
            await self._stop()
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None
            raise

    async def close(self) -> None:
        """End every utterance and stop the engines. Idempotent."""
        self.draining = True
        if self._start is not None:
            self._start.cancel()
            await asyncio.gather(self._start, return_exceptions=True)
        for reading in self._readings:
            reading.cancel()
        self._threads.shutdown(wait=False)
        for engine in self.engines:
            engine.fail_all("draining", "the node is going away")
        await self._stop()

    async def _stop(self) -> None:
        if self._mover is not None:
            self._mover.close()
        async with asyncio.TaskGroup() as stops:
            for engine in self.engines:
                stops.create_task(engine.client.close(), name=f"stop of engine {engine.number}")

    async def drain(self) -> None:
        """Refuse new utterances and wait for the end of the open ones. Safe to cancel."""
        self.draining = True
        while self.speaking:  # what waits may move to an engine that was idle
            for engine in self.engines:
                await engine.idle.wait()

    def open(self, options: SpeechOptions | Resolved, owner: int = 0, listener: Listener | None = None) -> Utterance:
        """Start an utterance on the least loaded engine. It takes a slot or a place in the queue at once.

        While it waits, it may move to an engine that has a slot first.

        Args:
            owner: a number for whose it is: owners get equal shares of each engine. 0 is the node itself.
            listener: what is made for its reader; None: pcm_s16le at 24 kHz, without words.

        Raises:
            Draining: the node shuts down.
            EngineLost: no engine runs; lost engines restart automatically.
            SpeechError: see `Routing.resolve`.
        """
        if self.draining:
            raise Draining
        up = [engine for engine in self.engines if engine.alive]
        if not up:
            raise EngineLost("the engine is restarting: try again", retry_after_ms=RETRY_MS)
        # An engine that is not ready may fail fast and so look idle: it would receive every utterance.
        able = [engine for engine in up if engine.able] or [engine for engine in up if engine.ready] or up
        engine = min(able, key=lambda engine: (*engine.load, (engine.number - self._prefers) % len(self.engines)))
        resolved = options if isinstance(options, Resolved) else self.resolve(options)
        assert self.info is not None
        lexicons = tuple(map(self._kept, resolved.lexicons))
        utterance = Utterance(resolved._replace(lexicons=lexicons), self.info, engine.window, owner, listener)
        if utterance.waits_for_lexicons:
            reading = asyncio.create_task(self._read_lexicons(utterance, lexicons), name="lexicons of a voice")
            self._readings.add(reading)
            reading.add_done_callback(self._readings.discard)
        opens = engine.open if self._mover is None else partial(self._mover.open, engine)
        opens(utterance, resolved.options)
        return utterance

    def resolve(self, options: SpeechOptions) -> Resolved:
        """What the options mean here; its lexicons with the node's. Raises the errors of `Routing.resolve`."""
        resolved = self.routing.resolve(options)
        own = () if self.lexicon is None else (self.lexicon,)
        return resolved._replace(lexicons=(*resolved.lexicons, *own))

    def _kept(self, lexicon: Lexicon | StoredLexicon) -> Lexicon | StoredLexicon:
        """A lexicon of a voice if it is in memory."""
        if isinstance(lexicon, Lexicon) or self.library is None:
            return lexicon
        return self.library.kept_lexicon(lexicon) or lexicon

    async def _read_lexicons(self, utterance: Utterance, lexicons: Sequence[Lexicon | StoredLexicon]) -> None:
        """Its text waits `LEXICON_S` at most, and is then spoken without; the next utterance has what was read."""
        assert self.library is not None
        found = [each if isinstance(each, Lexicon) else None for each in lexicons]
        try:
            async with asyncio.timeout(LEXICON_S):
                for place, each in enumerate(lexicons):
                    if isinstance(each, StoredLexicon):
                        found[place] = await self.in_thread(self.library.read_lexicon, each)
        except TimeoutError:
            logger.warning("a text is spoken without the lexicon of its voice, which cannot be read in time")
        utterance.look_up([each for each in found if each is not None])

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of work on the library, which may wait for its folder: in threads that nothing else needs."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args, **kwargs))

    @property
    def routing(self) -> Routing:
        """The names that a request may use now. Raises `EngineLost` before the first engine has started."""
        info = self.info
        if info is None:
            raise EngineLost("the engine is starting: try again", retry_after_ms=RETRY_MS)
        stored = self.library.known if self.library is not None else ()
        if self._routing is None or self._routing.info is not info or self._routing.stored is not stored:
            self._routing = Routing(info, stored, self._aliases)
        return self._routing
