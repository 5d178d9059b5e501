"""The node's Prometheus metrics, and the meter that measures each context."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from agent_tts.messages import CutReason, Finished, Stages
from agent_tts.options import SpeechOptions
from agent_tts.serve.connections import Standing
from agent_tts.serve.telemetry.engine_metrics import SECONDS
from agent_tts.serve.telemetry.usage import Usage
from agent_tts.speech.routing import Resolved
from agent_tts.speech.service import SpeechService
from agent_tts.speech.utterance import Listener, Meter, Utterance

if TYPE_CHECKING:
    from agent_tts.serve.telemetry.spans import ContextSpan, Spans

_RTF = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0)


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

    # What the guard tells; see `Watcher`.

    def key_shown(self, name: str) -> None:
        self.usage.show(name)

    def key_refused(self, name: str, code: str) -> None:
        self.usage.refused.labels(name, code).inc()

    def request_refused(self, code: str) -> None:
        self.refused.labels(code).inc()

    def session_opened(self, name: str) -> None:
        self.sessions.inc()
        self.usage.sessions.labels(name).inc()

    def session_closed(self, name: str) -> None:
        self.sessions.dec()
        self.usage.sessions.labels(name).dec()

    def open(
        self,
        service: SpeechService,
        transport: str,
        options: SpeechOptions | Resolved,
        owner: int,
        listener: Listener | None = None,
        about: Mapping[str, str | int] | None = None,
    ) -> Utterance:
        """Open an utterance, and count what it takes and gives; for `about` see `context`.

        Raises `RateLimited` if the owner's key has no characters left, and the errors of `SpeechService.open`.
        """
        self.usage.check(owner)
        utterance = service.open(options, owner, listener)
        clock = time.monotonic if listener is None else listener.clock
        utterance.meter = self.context(transport, clock, about, owner)
        return utterance

    def context(
        self,
        transport: str,
        clock: Callable[[], float] = time.monotonic,
        about: Mapping[str, str | int] | None = None,
        owner: int = 0,
    ) -> ContextMeter:
        """The meter of a context that is opened now, for an owner; `about` are ids of ours, attributes of its span."""
        self.active.labels(transport).inc()
        span = None if self._spans is None else self._spans.context(transport, about or {})
        return ContextMeter(self, transport, clock, span, owner)


class ContextMeter(Meter):
    """Measures one context."""

    def __init__(
        self,
        metrics: Metrics,
        transport: str,
        clock: Callable[[], float],
        span: ContextSpan | None = None,
        owner: int = 0,
    ) -> None:
        super().__init__()
        self._metrics = metrics
        self._transport = transport
        self._owner = owner
        self._clock = clock
        self._span = span  # None where telemetry is off
        # When the first text came, and the seconds from then to the first audio; None before.
        self._text_at: float | None = None
        self._ttfa_s: float | None = None
        # When the first audio was handed out; None before.
        self.started_at: float | None = None
        # When a listener who plays from the first frame on will have heard all.
        self._heard_until = 0.0
        # When the cancel came, or None.
        self._cancelled_at: float | None = None

    def text(self, characters: int) -> None:
        self._metrics.usage.spend(self._owner, characters)
        if self._text_at is None:
            self._text_at = self._clock()
            if self._span is not None:
                self._span.mark("text")

    def submitted(self, read_at: float) -> None:
        if self._span is not None:
            self._span.mark("received", read_at)
            self._span.mark("submitted")

    def stages(self, stages: Stages) -> None:
        if self._span is not None:
            self._span.stages(stages)

    def started(self, queue_ms: int) -> None:
        if self._span is not None:
            self._span.queued(queue_ms)

    def audio(self, ms: float) -> None:
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
        self._heard_until -= ms / 1_000
        super().taken_back(ms)

    def cancelled(self) -> None:
        if self._cancelled_at is None:
            self._cancelled_at = self._clock()
            if self._span is not None:
                self._span.mark("cancelled")

    def played_ms(self) -> float:
        if self.started_at is None:
            return 0.0
        return max(0.0, self.audio_ms - max(0.0, self._heard_until - self._clock()) * 1_000)

    def finished(self, event: Finished[str]) -> Finished[str]:
        done = self._count(event)
        if self._span is not None:
            self._span.end(done)
        return done

    def _count(self, event: Finished[str]) -> Finished[str]:
        metrics = self._metrics
        metrics.active.labels(self._transport).dec()
        metrics.finished.labels(self._transport, event.reason).inc()
        metrics.audio.labels(self._transport).inc(self.audio_ms / 1_000)
        metrics.usage.audio.labels(metrics.usage.name(self._owner)).inc(self.audio_ms / 1_000)
        if event.code is not None:
            (metrics.gave_way if event.gave_way else metrics.refused).labels(event.code).inc()
        for why in event.cut:
            metrics.cut.labels(why).inc()
        if self._cancelled_at is not None:
            metrics.cancel.observe(self._clock() - self._cancelled_at)
        if self._ttfa_s is None or not self.audio_ms:
            return replace(event, audio_ms=round(self.audio_ms))
        rtf = event.busy_ms / self.audio_ms
        metrics.rtf.observe(rtf)
        ttfa_ms, rtf = round(self._ttfa_s * 1_000, 1), round(rtf, 4)
        return replace(event, audio_ms=round(self.audio_ms), ttfa_ms=ttfa_ms, rtf=rtf)
