"""OpenTelemetry spans of a node: one for each request or connection, and within it one for each context.

Imported only where telemetry is on. Only this module sets what a span holds: times, counts, codes, our own ids. Never
text, audio, or what a client chose: context ids, voices, paths that match no route.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from importlib.metadata import version

from loguru import logger
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_tts.messages import Finished, Stages

CLOSE_S = 5.0  # for the last spans to be sent
TRACED = "/v1/"  # paths that get spans; probes, metrics and the page do not

_PROPAGATOR = TraceContextTextMapPropagator()

# The bounds of `SpanSender`.
MAX_WAITING = 2_048  # spans; more are dropped
MAX_BATCH = 512  # spans of one export
EVERY_S = 2.0  # between exports


class Spans:
    """Makes the spans of one node, or of one of its several fronts. `processor` gets them; `close` closes it."""

    def __init__(self, processor: SpanProcessor, front: int | None = None) -> None:
        named = Resource({SERVICE_NAME: "agent-tts", SERVICE_VERSION: version("agent-tts")})
        # Attributes of every span.
        self._common: dict[str, int] = {} if front is None else {"agent_tts.front": front}
        # Not OpenTelemetry's global provider: libraries would record whole URLs with it.
        self._provider = _Provider(resource=named.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer: Tracer = self._provider.get_tracer("agent_tts")

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """`app` with spans for its requests and connections, whose parent is the one in a client's `traceparent`."""
        return partial(self._trace, app)

    def context(self, transport: str, about: Mapping[str, str | int]) -> ContextSpan:
        """The span of a context that is opened now, a child of its request's or connection's span."""
        attributes: dict[str, str | int] = {f"agent_tts.{name}": value for name, value in about.items()}
        attributes |= {"agent_tts.carrier": transport, **self._common}
        return ContextSpan(self._tracer.start_span("context", attributes=attributes))

    async def _trace(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not scope["path"].startswith(TRACED):
            await app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        with self._tracer.start_as_current_span(
            scope["type"],
            _PROPAGATOR.extract(headers),
            SpanKind.SERVER,
            self._common,
            record_exception=False,  # its message may quote a client
            set_status_on_exception=False,
        ) as span:

            async def send_and_record(message: Message) -> None:
                if message["type"] == "websocket.close":
                    span.set_attribute("agent_tts.close_code", message.get("code", 1000))
                elif message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= 500:
                        span.set_status(StatusCode.ERROR)
                await send(message)

            try:
                await app(scope, receive, send_and_record)
            except BaseException as error:
                span.set_status(StatusCode.ERROR)
                span.set_attribute("error.type", type(error).__name__)
                raise
            finally:
                route = _route(scope)
                if route is not None:
                    span.set_attribute("http.route", route)
                    span.update_name(f"{scope.get('method', 'WEBSOCKET')} {route}")

    async def close(self) -> None:
        """Send the last spans, for `CLOSE_S` at most, and stop. Cancelling it only ends the wait."""
        await asyncio.to_thread(self._provider.shutdown)


class _Provider(TracerProvider):
    """Starts no thread in a forked process, where it would hang: the child runs another program at once."""

    def _handle_fork(self) -> None: ...


class ContextSpan:
    """Span of one context: when it passed the stages before its first audio, and how it ended."""

    def __init__(self, span: Span) -> None:
        self._span = span
        # It leads from the monotonic clock to that of the span. All events have one: a busy host would put them in
        # another order.
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def mark(self, what: str, at: float | None = None) -> None:
        """Record received, text, submitted, started, first_audio or cancelled, `at` s of the monotonic clock or now."""
        at_ns = time.monotonic_ns() if at is None else round(at * 1e9)
        self._span.add_event(what, timestamp=self._offset_ns + at_ns)

    def stages(self, stages: Stages) -> None:
        """Record an event for each stage of the engine, by the names of the fields."""
        for field in fields(stages):
            if field.name != "id":
                self.mark(field.name, getattr(stages, field.name))

    def queued(self, ms: int) -> None:
        """It has its slot, after a wait of `ms`."""
        self._span.set_attribute("agent_tts.queue_ms", ms)
        self.mark("started")

    def end(self, done: Finished[str]) -> None:
        told = {name: getattr(done, name) for name in ("reason", "audio_ms", "ttfa_ms", "rtf", "cut", "code")}
        self._span.set_attributes({f"agent_tts.{name}": value for name, value in told.items() if value is not None})
        if done.reason == "error":
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


def _route(scope: Scope) -> str | None:
    """The path of the matched route, with the names of its parameters; None where no route matched."""
    named: str | None = getattr(scope.get("route"), "path", None)
    if named is not None or "endpoint" not in scope:
        return named
    path: str = scope["path"]  # starlette does not tell which WebSocket route matched
    for name, value in scope["path_params"].items():
        path = path.replace(f"/{value}", f"/{{{name}}}", 1)
    return path


class SpanSender(SpanProcessor):
    """Hands finished spans to an exporter in a thread of its own, which has `close_s` for the last ones.

    OpenTelemetry's batch processor restarts its thread in every forked process. uvloop forks to spawn the engine
    process, which would hang.
    """

    def __init__(self, exporter: SpanExporter, close_s: float) -> None:
        # Only the thread calls it. It may block until its own deadline.
        self._exporter = exporter
        self._close_s = close_s
        self._waiting: queue.Queue[ReadableSpan] = queue.Queue(MAX_WAITING)
        # Whether the last export failed. Only the first failure in a row is logged.
        self._failed = False
        # Set when the waiting spans are the last.
        self._closing = threading.Event()
        # A daemon: an exporter that hangs does not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span. Never blocks."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with contextlib.suppress(queue.Full):  # the collector is slow or away, which the thread has logged
            self._waiting.put_nowait(span)

    def shutdown(self) -> None:
        """Send the waiting spans, for `close_s` at most. Idempotent."""
        self._closing.set()
        self._thread.join(self._close_s)
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._closing.wait(EVERY_S):
            self._export()
        while not self._waiting.empty():
            self._export()
            if self._failed:
                break

    def _export(self) -> None:
        batch: list[ReadableSpan] = []
        while len(batch) < MAX_BATCH and not self._waiting.empty():
            batch.append(self._waiting.get_nowait())
        if not batch:
            return
        try:
            sent = self._exporter.export(batch).name == "SUCCESS"
            fault = None if sent else "the collector does not accept spans: check telemetry.endpoint"
        except Exception as error:  # noqa: BLE001 - the edge of a thread: the next batch may be sent
            fault = f"sending spans failed: {type(error).__name__}"
        if fault is not None and not self._failed:
            logger.warning("telemetry: {}", fault)
        self._failed = fault is not None
