"""A collector of OpenTelemetry spans: the part of OTLP over HTTP that its exporters use. Needs agent-tts[otel]."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(http.server.ThreadingHTTPServer):
    """Receives OTLP over HTTP and keeps the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.url = f"http://127.0.0.1:{self.server_port}"
        # The path and content of each export.
        self.received: list[tuple[str, ExportTraceServiceRequest]] = []

    def events(self, name: str) -> dict[str, dict[str, float]]:
        """When each event of the spans of this name was, in seconds on the monotonic clock, by the id of the trace."""
        offset_s = (time.time_ns() - time.monotonic_ns()) / 1e9
        scopes = (scope for _, request in self.received for r in request.resource_spans for scope in r.scope_spans)
        return {
            span.trace_id.hex(): {event.name: event.time_unix_nano / 1e9 - offset_s for event in span.events}
            for scope in scopes
            for span in scope.spans
            if span.name == name
        }


class _Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Collector)
        self.server.received.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Silent."""


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector on a free port."""
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, name="collector")
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
