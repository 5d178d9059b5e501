"""What a node tells about itself: Prometheus metrics, and the meter that each context is measured by."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from agent_tts.events import EngineInfo, EnginePong, RequestFinished
from agent_tts.protocol.context import Done

if TYPE_CHECKING:
    from agent_tts.serve.telemetry.spans import ContextSpan, Spans

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
_RTF = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0)


class Metrics:
    """The node's metrics, in a registry of their own. Nothing in them tells who spoke or what."""

    def __init__(self, spans: Spans | None = None) -> None:
        # Makes spans of contexts; None where telemetry is off.
        self._spans = spans
        self.registry = registry = CollectorRegistry()
        # By transport: websocket, rtc, http, pipecat.
        self.ttfa = Histogram(
            "agent_tts_ttfa_seconds", "First text to first audio.", ["carrier"], buckets=_SECONDS, registry=registry
        )
        self.rtf = Histogram("agent_tts_rtf", "Engine seconds for a second of audio.", buckets=_RTF, registry=registry)
        self.audio = Counter("agent_tts_audio_seconds", "Audio handed to clients.", ["carrier"], registry=registry)
        self.underrun = Counter(
            "agent_tts_underrun_seconds",
            "Silence heard between frames by a listener who plays from the first frame on.",
            registry=registry,
        )
        self.cancel = Histogram("agent_tts_cancel_seconds", "Cancel to slot free.", buckets=_SECONDS, registry=registry)
        self.active = Gauge("agent_tts_contexts_active", "Contexts open now.", ["carrier"], registry=registry)
        self.finished = Counter("agent_tts_contexts", "Contexts ended.", ["carrier", "reason"], registry=registry)
        self.refused = Counter("agent_tts_refused", "Requests and contexts refused.", ["code"], registry=registry)
        self.sessions = Gauge("agent_tts_sessions", "Sessions and requests admitted now.", registry=registry)
        self.rtc_lateness = Histogram(
            "agent_tts_rtc_lateness_seconds", "Packets behind their 20 ms grid.", buckets=_SECONDS, registry=registry
        )
        # Of all engines together, and then of each by its number; those of an engine that is down are 0.
        self.slots = Gauge("agent_tts_slots", "Contexts that may speak at once.", registry=registry)
        self.slots_used = Gauge("agent_tts_slots_used", "Slots speaking, as of the last heartbeat.", registry=registry)
        self.queued = Gauge("agent_tts_contexts_queued", "Contexts waiting for a slot.", registry=registry)
        self.engine_up = Gauge("agent_tts_engine_up", "Whether it answers.", ["engine"], registry=registry)
        self.engine_slots = Gauge("agent_tts_engine_slots", "Slots of an engine.", ["engine"], registry=registry)
        self.engine_slots_used = Gauge(
            "agent_tts_engine_slots_used", "Slots of an engine that speak.", ["engine"], registry=registry
        )
        self.engine_queued = Gauge(
            "agent_tts_engine_contexts_queued",
            "Contexts waiting for a slot of an engine.",
            ["engine"],
            registry=registry,
        )
        self.engine_step = Histogram(
            "agent_tts_engine_step_seconds",
            "Longest engine step of each second.",
            ["engine"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.engine_starts = Counter(
            "agent_tts_engine_starts", "Engine processes started.", ["engine"], registry=registry
        )
        self.loop_lag = Histogram(
            "agent_tts_loop_lag_seconds", "Event loop behind its clock, probed.", buckets=_SECONDS, registry=registry
        )
        self.tasks = Gauge("agent_tts_tasks", "Tasks of the event loop, probed.", registry=registry)
        # What the gauges of each engine show.
        self._engines: dict[int, _Engine] = {}

    def started(self, engine: int, info: EngineInfo) -> None:
        """An engine has come up."""
        self.engine_starts.labels(engine).inc()
        self._tell(engine, _Engine(info.slots))

    def pulse(self, engine: int, pong: EnginePong) -> None:
        """Take an engine's heartbeat."""
        self.engine_step.labels(engine).observe(pong.step_ms / 1_000)
        self._tell(engine, _Engine(self._engines[engine].slots, pong.speaking, pong.queued))

    def lost(self, engine: int) -> None:
        """An engine is down."""
        self._tell(engine, None)

    def _tell(self, engine: int, now: _Engine | None) -> None:
        """Show how an engine is now, None being down."""
        before = self._engines.get(engine, _DOWN)
        self._engines[engine] = after = now or _DOWN
        self.engine_up.labels(engine).set(now is not None)
        for of_one, of_all, was, is_ in (
            (self.engine_slots, self.slots, before.slots, after.slots),
            (self.engine_slots_used, self.slots_used, before.speaking, after.speaking),
            (self.engine_queued, self.queued, before.queued, after.queued),
        ):
            of_one.labels(engine).set(is_)
            of_all.inc(is_ - was)

    def context(
        self,
        transport: str,
        clock: Callable[[], float] = time.monotonic,
        about: Mapping[str, str | int] | None = None,
    ) -> ContextMeter:
        """Begin to measure a context that was opened now.

        Args:
            about: ids of ours by which its span can be found in the log.
        """
        self.active.labels(transport).inc()
        span = None if self._spans is None else self._spans.context(transport, about or {})
        return ContextMeter(self, transport, clock, span)


@dataclass(frozen=True, slots=True)
class _Engine:
    """What an engine was last known to have."""

    slots: int
    speaking: int = 0
    queued: int = 0


_DOWN = _Engine(0)


class ContextMeter:
    """Measures one context; `finished` must be called exactly once."""

    def __init__(
        self, metrics: Metrics, transport: str, clock: Callable[[], float], span: ContextSpan | None = None
    ) -> None:
        self._metrics = metrics
        self._transport = transport
        self._clock = clock
        # Told of the same things; None where telemetry is off.
        self._span = span
        # When the first text came, and the time from it to the first audio.
        self._text_at: float | None = None
        self._ttfa_s: float | None = None
        # When the first audio was handed out; None before.
        self.started_at: float | None = None
        # When a listener who plays from the first frame on has heard all.
        self._heard_until = 0.0
        # Audio handed out.
        self.audio_ms = 0.0
        # When the cancel came, or None.
        self._cancelled_at: float | None = None

    def text(self) -> None:
        """Text has come."""
        if self._text_at is None:
            self._text_at = self._clock()
            if self._span is not None:
                self._span.mark("text")

    def started(self, queue_ms: int) -> None:
        """It has a slot."""
        if self._span is not None:
            self._span.queued(queue_ms)

    def audio(self, ms: float) -> None:
        """A piece of audio is handed to the transport."""
        now = self._clock()
        if self.started_at is None:
            self.started_at = self._heard_until = now
            self._ttfa_s = now - (now if self._text_at is None else self._text_at)
            self._metrics.ttfa.labels(self._transport).observe(self._ttfa_s)
            if self._span is not None:
                self._span.mark("first_audio")
        elif now > self._heard_until:
            self._metrics.underrun.inc(now - self._heard_until)
            self._heard_until = now
        self._heard_until += ms / 1_000
        self.audio_ms += ms

    def taken_back(self, ms: float) -> None:
        """The last audio that was handed to the transport has not left."""
        self._heard_until -= ms / 1_000
        self.audio_ms -= ms

    def cancelled(self) -> None:
        """The client asked to stop."""
        if self._cancelled_at is None:
            self._cancelled_at = self._clock()
            if self._span is not None:
                self._span.mark("cancelled")

    def played_ms(self) -> float:
        """What that listener has heard by now."""
        if self.started_at is None:
            return 0.0
        return max(0.0, self.audio_ms - max(0.0, self._heard_until - self._clock()) * 1_000)

    def finished(self, event: RequestFinished) -> Done:
        """The context has ended."""
        done = self._count(event)
        if self._span is not None:
            self._span.end(event, done.audio_ms, done.ttfa_ms, done.rtf)
        return done

    def _count(self, event: RequestFinished) -> Done:
        metrics = self._metrics
        metrics.active.labels(self._transport).dec()
        metrics.finished.labels(self._transport, event.reason).inc()
        metrics.audio.labels(self._transport).inc(self.audio_ms / 1_000)
        if event.code is not None:
            metrics.refused.labels(event.code).inc()
        if self._cancelled_at is not None:
            metrics.cancel.observe(self._clock() - self._cancelled_at)
        if self._ttfa_s is None or not self.audio_ms:
            return Done(event.reason, round(self.audio_ms), None, None)
        rtf = event.busy_ms / self.audio_ms
        metrics.rtf.observe(rtf)
        return Done(event.reason, round(self.audio_ms), round(self._ttfa_s * 1_000, 1), round(rtf, 4))
