"""The node's Prometheus metrics: of its engines, its keys and its fronts; and the meter that measures each context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from agent_tts import __version__
from agent_tts.config.settings import UNNAMED
from agent_tts.engine_info import EngineInfo
from agent_tts.errors import AtCapacity, RateLimited, SpeechError
from agent_tts.messages import CutReason, EnginePong, Finished, Stages
from agent_tts.options import SpeechOptions
from agent_tts.serve.connections import Standing
from agent_tts.speech.engine_handle import EngineObserver
from agent_tts.speech.routing import Resolved
from agent_tts.speech.service import SpeechService
from agent_tts.speech.utterance import Listener, Meter, Utterance

if TYPE_CHECKING:
    from agent_tts.serve.telemetry.spans import ContextSpan, Spans

# Upper bounds of the buckets of times.
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
_RTF = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0)


class EngineMetrics(EngineObserver):
    """The metrics of a node's engines, in a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        gauge("agent_tts_version", "1, with the node's version as its label.", ["version"]).labels(__version__).set(1)
        # They are kept by the engine's number.
        self.engine_up = gauge("agent_tts_engine_up", "Whether it answers.", ["engine"])
        self.engine_starts = counter("agent_tts_engine_starts", "Engine processes started.", ["engine"])
        name, text = "agent_tts_engine_step_seconds", "Longest engine step of each second."
        self.engine_step = Histogram(name, text, ["engine"], buckets=SECONDS, registry=registry)
        self.worker_deaths = counter(
            "agent_tts_worker_deaths", "Processes of espeak-ng that ended; another took over.", ["engine"]
        )
        self.texts_dropped = counter(
            "agent_tts_texts_dropped", "Clauses left out because they end a process of espeak-ng.", ["engine"]
        )
        # A gauge of all engines and one by engine, for each field of `_Engine`; an engine that is down counts 0.
        self._gauges = [
            (gauge(f"agent_tts_{name}", text), gauge(f"agent_tts_engine_{name}", f"{text} By engine.", ["engine"]))
            for name, text in (
                ("slots", "Contexts that may speak at once."),
                ("slots_used", "Slots speaking, as of the last heartbeat."),
                ("contexts_queued", "Contexts waiting for a slot."),
            )
        ]
        # What the gauges of each engine show.
        self._engines: dict[int, _Engine] = {}

    def started(self, engine: int, info: EngineInfo) -> None:
        self.engine_starts.labels(engine).inc()
        self._show(engine, _Engine(info.slots))

    def pulse(self, engine: int, pong: EnginePong) -> None:
        self.engine_step.labels(engine).observe(pong.step_ms / 1_000)
        self.worker_deaths.labels(engine).inc(pong.worker_deaths)
        self.texts_dropped.labels(engine).inc(pong.texts_dropped)
        self._show(engine, _Engine(self._engines[engine].slots, pong.speaking, pong.queued))

    def lost(self, engine: int) -> None:
        self._show(engine, None)

    def _show(self, engine: int, now: _Engine | None) -> None:
        before, after = self._engines.get(engine, _Engine()), now or _Engine()
        self._engines[engine] = after
        self.engine_up.labels(engine).set(now is not None)
        for (of_all, of_each), old, new in zip(self._gauges, before, after, strict=True):
            of_each.labels(engine).set(new)
            of_all.inc(new - old)


class _Engine(NamedTuple):
    slots: int = 0
    speaking: int = 0
    queued: int = 0


class Budget:
    """Who counts the characters of keys, for the whole node. This one counts none: that of a service without a node."""

    def name(self, owner: int) -> str:
        """The name of an owner's key; see `SpeechService.open`."""
        return UNNAMED

    def check(self, owner: int, characters: int, *, begins: bool) -> None:
        """Raise `RateLimited` if the owner's key may not speak so many characters now."""

    def spend(self, owner: int, characters: int) -> None:
        """Count text that is to be spoken for an owner."""


class Usage:
    """Counters by the name of a key, in a registry. Names come from the settings alone, so there are few."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self.sessions = Gauge("agent_tts_key_sessions", "Sessions open now, by key.", ["key"], registry=registry)
        self.characters = counter("agent_tts_key_characters", "Characters of text to speak, by key.", ["key"])
        self.audio = counter("agent_tts_key_audio_seconds", "Audio handed to clients, by key.", ["key"])
        self.refused = counter(
            "agent_tts_key_refused", "Sessions and texts refused at a limit, by key.", ["key", "code"]
        )
        self.budget = Budget()
        self.show(UNNAMED)

    def show(self, name: str) -> None:
        """Begin the counters of a key at 0."""
        for metric in (self.sessions, self.characters, self.audio):
            metric.labels(name)
        for code in (AtCapacity.code, RateLimited.code):
            self.refused.labels(name, code)

    def check(self, owner: int, characters: int, *, begins: bool = True) -> None:
        """Refuse a text of an owner whose key has too few characters left: raises `RateLimited`."""
        try:
            self.budget.check(owner, characters, begins=begins)
        except SpeechError as error:
            self.refused.labels(self.budget.name(owner), error.code).inc()
            raise


class Metrics:
    """The metrics of a front, in a registry of their own. Nothing in them identifies a client or quotes a text."""

    def __init__(self, spans: Spans | None = None, front: int = 0) -> None:
        # Makes spans of contexts; None where telemetry is off.
        self._spans = spans
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry, buckets=SECONDS)
        # The label "carrier" is the transport: websocket, rtc, http or pipecat.
        self.ttfa = histogram("agent_tts_ttfa_seconds", "First text to first audio.", ["carrier"])
        self.rtf = histogram("agent_tts_rtf", "Engine seconds for a second of audio.", buckets=_RTF)
        self.audio = counter("agent_tts_audio_seconds", "Audio handed to clients.", ["carrier"])
        self.underrun = counter(
            "agent_tts_underrun_seconds", "Silence between frames for a listener who plays from the first frame on."
        )
        self.cancel = histogram("agent_tts_cancel_seconds", "Cancel to slot free.")
        self.active = gauge("agent_tts_contexts_active", "Contexts open now.", ["carrier"])
        self.finished = counter("agent_tts_contexts", "Contexts ended.", ["carrier", "reason"])
        self.refused = counter("agent_tts_refused", "Requests and contexts refused.", ["code"])
        self.gave_way = counter("agent_tts_contexts_given_way", "Contexts ended for others that waited.", ["code"])
        for code in ("starved", "at_capacity"):
            self.gave_way.labels(code)
        self.cut = counter("agent_tts_contexts_cut", "Contexts with a piece that the engine ended, by why.", ["reason"])
        for why in get_args(CutReason):
            self.cut.labels(why)
        self.sessions = gauge("agent_tts_sessions", "Sessions and requests admitted now.")
        self.draining = gauge("agent_tts_draining", "Fronts that let their sessions end and admit no others.")
        self.usage = Usage(self.registry)
        self.connections_given_way = counter(
            "agent_tts_connections_given_way", "Connections closed to make room, by what they were.", ["standing"]
        )
        for standing in set(Standing) - {Standing.BUSY_CLIENT}:
            self.connections_given_way.labels(standing.name.lower())
        self.rtc_lateness = histogram("agent_tts_rtc_lateness_seconds", "Packets behind their 20 ms grid.")
        self.rtc_dropped = counter("agent_tts_rtc_dropped", "Datagrams of WebRTC not handled.", ["reason"])
        for reason in ("format", "source", "stun", "full", "sctp", "audio"):
            self.rtc_dropped.labels(reason)
        lag = histogram("agent_tts_loop_lag_seconds", "Event loop behind its clock, probed.", ["front"])
        self.loop_lag = lag.labels(front)
        self.log_lost = counter("agent_tts_log_lines_lost", "Log lines left out.", ["reason"])
        for reason in ("unread", "repeated"):
            self.log_lost.labels(reason)
        self.tasks = gauge("agent_tts_tasks", "Tasks of the event loop, probed.", ["front"]).labels(front)

    def open(
        self,
        service: SpeechService,
        transport: str,
        options: SpeechOptions | Resolved,
        owner: int,
        listener: Listener,
        about: Mapping[str, str | int] | None = None,
        characters: int = 0,
    ) -> Utterance:
        """Open an utterance, and count what it takes and gives; `about` are ids of ours, attributes of its span.

        Raises `RateLimited` if the owner's key has too few characters left for a text of so many, and the errors of
        `SpeechService.open`.
        """
        self.usage.check(owner, characters)
        utterance = service.open(options, owner, listener)
        span = None if self._spans is None else self._spans.context(transport, about or {})
        utterance.meter = ContextMeter(self, transport, listener.clock, span, owner)
        if characters:
            utterance.meter.take(characters, begins=True)
        return utterance


@dataclass(eq=False)
class ContextMeter(Meter):
    """Measures one context, which is opened now."""

    metrics: Metrics
    transport: str
    clock: Callable[[], float]
    span: ContextSpan | None = None  # None where telemetry is off
    owner: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        self.metrics.active.labels(self.transport).inc()
        # Characters that were taken from the key's and are not written yet.
        self._taken = 0
        # When the first text came, and the seconds from then to the first audio; None before.
        self._text_at: float | None = None
        self._ttfa_s: float | None = None
        # When the first audio was handed out; None before.
        self.started_at: float | None = None
        # When a listener who plays from the first frame on will have heard all.
        self._heard_until = 0.0
        # When the cancel came, or None.
        self._cancelled_at: float | None = None

    def take(self, characters: int, *, begins: bool) -> None:
        self.metrics.usage.check(self.owner, characters, begins=begins)
        self.metrics.usage.budget.spend(self.owner, characters)
        self._taken += characters

    def text(self, characters: int) -> None:
        usage = self.metrics.usage
        usage.characters.labels(usage.budget.name(self.owner)).inc(characters)
        self._taken -= characters
        if self._taken < 0:
            usage.budget.spend(self.owner, -self._taken)
            self._taken = 0
        if self._text_at is None:
            self._text_at = self.clock()
            self._mark("text")

    def awaited(self) -> None:
        self._text_at = self.clock()

    def submitted(self, read_at: float) -> None:
        self._mark("received", read_at)
        self._mark("submitted")

    def stages(self, stages: Stages) -> None:
        if self.span is not None:
            self.span.stages(stages)

    def started(self, queue_ms: int) -> None:
        if self.span is not None:
            self.span.queued(queue_ms)

    def audio(self, ms: float) -> None:
        now = self.clock()
        if self.started_at is None:
            self.started_at = self._heard_until = now
            self._ttfa_s = now - (now if self._text_at is None else self._text_at)
            self.metrics.ttfa.labels(self.transport).observe(self._ttfa_s)
            self._mark("first_audio")
        elif now > self._heard_until:
            self.metrics.underrun.inc(now - self._heard_until)
            self._heard_until = now
        self._heard_until += ms / 1_000
        self.audio_ms += ms

    def taken_back(self, ms: float) -> None:
        self._heard_until -= ms / 1_000
        super().taken_back(ms)

    def cancelled(self) -> None:
        if self._cancelled_at is None:
            self._cancelled_at = self.clock()
            self._mark("cancelled")

    def played_ms(self) -> float:
        if self.started_at is None:
            return 0.0
        return max(0.0, self.audio_ms - max(0.0, self._heard_until - self.clock()) * 1_000)

    def finished(self, event: Finished[str]) -> Finished[str]:
        metrics = self.metrics
        metrics.active.labels(self.transport).dec()
        metrics.finished.labels(self.transport, event.reason).inc()
        metrics.audio.labels(self.transport).inc(self.audio_ms / 1_000)
        metrics.usage.audio.labels(metrics.usage.budget.name(self.owner)).inc(self.audio_ms / 1_000)
        if event.code is not None:
            (metrics.gave_way if event.gave_way else metrics.refused).labels(event.code).inc()
        for why in event.cut:
            metrics.cut.labels(why).inc()
        if self._cancelled_at is not None:
            metrics.cancel.observe(self.clock() - self._cancelled_at)
        done = super().finished(event)
        if self._ttfa_s is not None and done.rtf is not None:
            metrics.rtf.observe(done.rtf)
            done = replace(done, ttfa_ms=round(self._ttfa_s * 1_000, 1), rtf=round(done.rtf, 4))
        if self.span is not None:
            self.span.end(done)
        return done

    def _mark(self, what: str, at: float | None = None) -> None:
        if self.span is not None:
            self.span.mark(what, at)
