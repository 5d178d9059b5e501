"""Spans of a node, as OpenTelemetry has them: a request or connection, and in it each context.

Imported only where telemetry is on. What a span holds is listed here and nowhere else: times, counts, codes, our own
ids. Neither text nor audio, nor what a client has named: its context ids, its voices, paths that are no route.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib.metadata import version

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_tts.events import RequestFinished

CLOSE_S = 5.0  # for the last spans to be sent
TRACED = "/v1/"  # paths that get spans; probes, metrics and the page do not


class Spans:
    """Makes the spans of one node.

    Args:
        processor: where they go; it is closed with this.
    """

    def __init__(self, processor: SpanProcessor) -> None:
        named = Resource({SERVICE_NAME: "agent-tts", SERVICE_VERSION: version("agent-tts")})
        # Not OpenTelemetry's global one: a library that finds that would record whole URLs.
        self._provider = _Provider(resource=named.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer: Tracer = self._provider.get_tracer("agent_tts")

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """An application whose requests and connections have spans."""
        return _Traced(app, self._tracer)

    def context(self, transport: str, about: Mapping[str, str | int]) -> ContextSpan:
        """The span of a context that is opened now, in that of the request or connection."""
        attributes = {"agent_tts.carrier": transport} | {f"agent_tts.{name}": value for name, value in about.items()}
        return ContextSpan(self._tracer.start_span("context", attributes=attributes))

    async def close(self) -> None:
        """Send what is left, for `CLOSE_S` at most, and stop. Cancelling it leaves the rest to the process's end."""
        await asyncio.to_thread(self._provider.shutdown)


class _Provider(TracerProvider):
    """OpenTelemetry's own starts threads in every forked process: where uvloop spawns the engine, it would hang."""

    def _handle_fork(self) -> None:
        """The child runs another program at once."""


class ContextSpan:
    """One context: when it got its slot, its first text, its first audio, and how it ended."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def mark(self, what: str) -> None:
        """Something has happened now: text, started, first_audio or cancelled."""
        self._span.add_event(what)

    def queued(self, ms: int) -> None:
        """It has waited so long for its slot."""
        self._span.set_attribute("agent_tts.queue_ms", ms)
        self.mark("started")

    def end(self, event: RequestFinished, audio_ms: int, ttfa_ms: float | None, rtf: float | None) -> None:
        """It is over."""
        self._span.set_attributes({"agent_tts.reason": event.reason, "agent_tts.audio_ms": audio_ms})
        for name, value in (("code", event.code), ("ttfa_ms", ttfa_ms), ("rtf", rtf)):
            if value is not None:
                self._span.set_attribute(f"agent_tts.{name}", value)
        if event.reason == "error":
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


class _Traced:
    """ASGI middleware. The span that a client's `traceparent` names is the parent."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not scope["path"].startswith(TRACED):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        with self._tracer.start_as_current_span(
            scope["type"],
            self._propagator.extract(headers),
            SpanKind.SERVER,
            record_exception=False,  # its message may quote a client
            set_status_on_exception=False,
        ) as span:

            async def watched(message: Message) -> None:
                if message["type"] in ("http.response.start", "websocket.close"):
                    _tell_answer(span, message)
                await send(message)

            try:
                await self._app(scope, receive, watched)
            except BaseException as error:
                span.set_status(StatusCode.ERROR)
                span.set_attribute("error.type", type(error).__name__)
                raise
            finally:
                route = _route(scope)
                if route is not None:
                    span.set_attribute("http.route", route)
                    span.update_name(f"{scope.get('method', 'WEBSOCKET')} {route}")


def _tell_answer(span: Span, message: Message) -> None:
    if message["type"] == "websocket.close":
        span.set_attribute("agent_tts.close_code", message.get("code", 1000))
        return
    span.set_attribute("http.response.status_code", message["status"])
    if message["status"] >= 500:
        span.set_status(StatusCode.ERROR)


def _route(scope: Scope) -> str | None:
    """The path of the route that took a request, with names for its parameters; None where no route did."""
    named: str | None = getattr(scope.get("route"), "path", None)
    if named is not None or "endpoint" not in scope:
        return named
    path: str = scope["path"]  # starlette's routes for WebSockets do not say which they are
    for name, value in scope["path_params"].items():
        path = path.replace(f"/{value}", f"/{{{name}}}", 1)
    return path
