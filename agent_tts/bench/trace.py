"""`bench trace`: where the time to first audio goes, from the client's and the node's clocks. Needs agent-tts[otel].

A client sends a trace id with each connection; the node's span of its context tells when the request passed which stage
(`telemetry.stages`). All processes are on one machine, so that their clocks agree.
"""

from __future__ import annotations

import http.server
import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from rich.bar import Bar

from agent_tts.bench.report import table
from agent_tts.bench.scenario import CallSample
from agent_tts.bench.statistics import percentiles

SENT, HEARD = "sent", "heard"  # at the client; the other points are events of the node's span
# What a request goes through, one after the other: a stage, and the point where it ends.
STAGES = (
    ("socket", "received"),
    ("decode", "text"),
    ("session", "submitted"),
    ("ipc", "taken"),
    ("scheduler", "scheduled"),
    ("prompt", "stepped"),
    ("prepare", "launching"),
    ("launch", "launched"),
    ("compute", "computed"),
    ("read back", "read_back"),
    ("hand out", "handed_out"),
    ("ipc back", "first_audio"),
    ("send", HEARD),
)
BAR_WIDTH = 48  # characters

Points = Mapping[str, float]  # seconds, on one clock


def figures(name: str, calls: Sequence[CallSample], node: Mapping[str, Points]) -> dict[str, Any]:
    """Percentiles of the stages of some calls, in ms; `untraced` is how many calls are not among them."""
    whole = []
    for call in calls:
        if call.sent_at is not None and call.first_audio_at is not None and call.error is None:
            points = {**node.get(call.trace_id or "", {}), SENT: call.sent_at, HEARD: call.first_audio_at}
            if all(end in points for _, end in STAGES):
                ends = itertools.pairwise([SENT, *(end for _, end in STAGES)])
                took_ms = [(points[end] - points[begin]) * 1_000 for begin, end in ends]
                whole.append({stage: ms for (stage, _), ms in zip(STAGES, took_ms, strict=True)})
    return {
        "load": name,
        "requests": len(calls),
        "errors": dict(Counter(call.error for call in calls if call.error is not None)),
        "untraced": len(calls) - len(whole),
        "ttfa_ms": percentiles([sum(timeline.values()) for timeline in whole], 50, 95, digits=3),
        "stages": {name: percentiles([one[name] for one in whole], 50, 95, digits=3) for name, _ in STAGES},
    }


def show(title: str, run: Mapping[str, Any], width: int | None = None) -> None:
    """Print the stages of a load, and the medians as bars on one line of time."""
    whole, begin, rows = sum(stage["p50"] for stage in run["stages"].values()), 0.0, []
    for name, _ in STAGES:
        p50, p95 = run["stages"][name].values()
        rows.append([name, f"{p50:.3f}", f"{p95:.3f}", Bar(whole or 1.0, begin, begin + p50, width=BAR_WIDTH)])
        begin += p50
    rows.append(["first audio", *(f"{value:.3f}" for value in run["ttfa_ms"].values()), ""])
    table(title, ("stage", "p50 ms", "p95 ms", "medians, one after the other"), rows, width)


class Collector(http.server.ThreadingHTTPServer):
    """Receives spans by OTLP over HTTP, the part of it that its exporters use, and keeps the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.url = f"http://127.0.0.1:{self.server_port}"
        # Each with what leads from the monotonic clock to that of its spans, ns, when it came: hosts set their clocks.
        self.received: list[tuple[str, ExportTraceServiceRequest, int]] = []

    def events(self, name: str) -> dict[str, dict[str, float]]:
        """When each event of the spans of this name was, in seconds on the monotonic clock, by the id of the trace."""
        return {
            span.trace_id.hex(): {event.name: (event.time_unix_nano - offset) / 1e9 for event in span.events}
            for _, request, offset in self.received
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            if span.name == name
        }


class _Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Collector)
        offset = time.time_ns() - time.monotonic_ns()
        self.server.received.append((self.path, ExportTraceServiceRequest.FromString(body), offset))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *_: object) -> None:
        """Silent."""
