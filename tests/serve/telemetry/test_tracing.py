"""Spans as OpenTelemetry's exporters receive them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent_tts.bench.statistics import serving
from agent_tts.bench.trace import Collector
from agent_tts.config.settings import Telemetry
from agent_tts.errors import SettingsError
from agent_tts.messages import Stages
from agent_tts.serve import app
from agent_tts.serve.telemetry.spans import Spans
from agent_tts.serve.telemetry.tracing import spans_of
from tests.rtc_peer import connected
from tests.support import RunningNode, logged, present, running_node, until
from tests.wire import wire

pytestmark = pytest.mark.node

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
SAMPLE = {"input": "Hello there.", "response_format": "pcm"}


@asynccontextmanager
async def watched(
    monkeypatch: pytest.MonkeyPatch, number: int | None = None, **settings: object
) -> AsyncIterator[tuple[RunningNode, InMemorySpanExporter]]:
    """A node whose spans stay in memory; `number` is that of the front."""
    memory = InMemorySpanExporter()
    monkeypatch.setattr(app, "spans_of", lambda _, front: Spans(SimpleSpanProcessor(memory), number))
    async with running_node(**settings) as running:
        yield running, memory


def spans(memory: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in memory.get_finished_spans() if span.name == name]


def trace_of(span: ReadableSpan) -> str:
    return f"{present(span.context).trace_id:032x}"


async def context_of(running: RunningNode, memory: InMemorySpanExporter, **options: object) -> ReadableSpan:
    """The span of a context that is spoken over a WebSocket."""
    async with wire(running.ws_url) as peer:
        await peer.say("one", "Hello there.", **options)
        await peer.until("context.done", "one")
    await until(lambda: len(memory.get_finished_spans()) == 2)
    (context,) = spans(memory, "context")
    return context


async def assert_traced(url: str, memory: InMemorySpanExporter) -> None:
    """A caller speaks by WebSocket, HTTP and WebRTC to a watched node at `url`; all is in its trace, to the engine."""
    async with wire(f"{url.replace('http', 'ws', 1)}/v1/tts/stream", additional_headers=PARENT) as peer:
        await peer.say("one", "Hello there.")
        await peer.until("context.done", "one")
    async with httpx.AsyncClient(base_url=url, headers=PARENT) as client:
        assert (await client.post("/v1/audio/speech", json=SAMPLE)).is_success
    async with connected(url, PARENT) as caller:
        caller.say("one", "Hello there.")
        await caller.message("context.done")
    await until(lambda: len(spans(memory, "context")) == 3)
    (offer,) = spans(memory, "POST /v1/rtc/offer")
    assert spans(memory, "context")[-1].parent == offer.context
    for span in spans(memory, "context"):  # `started` is the engine's event
        assert trace_of(span) == TRACE
        assert "started" in [event.name for event in span.events]


async def test_a_connection_is_a_span_with_its_contexts_in_the_client_s_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch) as (running, memory):
        async with wire(running.ws_url, additional_headers=PARENT) as peer:
            session_id = (await peer.until("session.created"))["session_id"]
            await peer.say("one", "Hello there.")
            await peer.until("context.done", "one")
            await peer.send("text.append", context_id="two", text="never ends")
            await peer.until("context.started", "two")
            await peer.send("context.cancel", context_id="two")
            await peer.until("context.done", "two")
        await until(lambda: len(memory.get_finished_spans()) == 3)
        one, two = spans(memory, "context")
        (session,) = spans(memory, "WEBSOCKET /v1/tts/stream")
    assert {trace_of(span) for span in (one, two, session)} == {TRACE}
    assert f"{present(session.parent).span_id:016x}" == "00f067aa0ba902b7"
    assert one.parent == two.parent == session.context
    happened = sorted(one.events, key=lambda event: event.timestamp)
    names = [event.name for event in happened]
    assert names[-1] == "first_audio"
    assert "started" in names  # a slot may be there before the text is read
    assert [name for name in names if name != "started"] == ["received", "text", "submitted", "first_audio"]
    assert [event.name for event in two.events][-1] == "cancelled"
    told = {name.removeprefix("agent_tts."): value for name, value in present(one.attributes).items()}
    assert told.keys() == {
        *("carrier", "session_id", "context_no", "queue_ms", "reason", "audio_ms", "ttfa_ms", "rtf", "cut")
    }
    assert (told["carrier"], told["session_id"], told["context_no"]) == ("websocket", session_id, 1)
    assert told["reason"] == "end"


async def test_every_span_of_a_front_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch, 3) as (running, memory):
        async with httpx.AsyncClient() as client:
            await client.post(f"{running.url}/v1/audio/speech", json=SAMPLE)
        found = memory.get_finished_spans()
    assert len(found) == 2
    assert {span.attributes and span.attributes["agent_tts.front"] for span in found} == {3}


async def test_a_request_is_a_span_named_by_its_route(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch) as (running, memory), running.http() as client:
        await client.post("/v1/audio/speech", json=SAMPLE, headers=PARENT)
        await client.get("/v1/models/who-is-this")
        await client.get("/v1/who-is-this")
        await client.get("/health")
        found = {span.name: span for span in memory.get_finished_spans()}
    assert found.keys() == {"context", "POST /v1/audio/speech", "GET /v1/models/{model:path}", "http"}
    request, context = found["POST /v1/audio/speech"], found["context"]
    assert (trace_of(request), trace_of(context), context.parent) == (TRACE, TRACE, request.context)
    assert request.attributes == {"http.response.status_code": 200, "http.route": "/v1/audio/speech"}
    assert "started" in [event.name for event in context.events]


async def test_a_context_that_fails_is_an_error_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch, tone={"scripted_faults": True}) as (running, memory):
        context = await context_of(running, memory, instructions="fault:raise@1")
    assert not context.status.is_ok
    assert present(context.attributes)["agent_tts.code"] == "internal"


# ---------------------------------------------------------------- to a collector


async def test_a_collector_gets_all_spans_by_the_node_s_end() -> None:
    with serving(Collector(), "collector") as server:
        async with running_node(telemetry={"endpoint": f"{server.url}/"}) as running:
            async with running.http() as client:
                assert (await client.post("/v1/audio/speech", json=SAMPLE)).status_code == 200
    assert {path for path, *_ in server.received} == {"/v1/traces"}
    resources = [spans for _, request, _ in server.received for spans in request.resource_spans]
    names = {span.name for resource in resources for scope in resource.scope_spans for span in scope.spans}
    assert names == {"context", "POST /v1/audio/speech"}
    told = {item.key: item.value.string_value for item in resources[0].resource.attributes}
    assert told["service.name"] == "agent-tts"


async def test_a_missing_collector_causes_no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards: spans are sent in a thread; `close` waits for at most `CLOSE_S`."""
    async with asyncio.timeout(10):
        async with running_node(telemetry={"endpoint": "http://127.0.0.1:9"}) as running:
            async with running.http() as client:
                answer = await client.post("/v1/audio/speech", json=SAMPLE)
                assert answer.status_code == 200


async def test_the_engine_s_stages_are_events_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch, telemetry={"stages": True}) as (running, memory):
        context = await context_of(running, memory)
    happened = sorted(context.events, key=lambda event: event.timestamp)
    names = [event.name for event in happened if event.name != "started"]
    engine = {field.name for field in fields(Stages)[1:]}
    assert (names[:2], names[-1]) == (["received", "text"], "first_audio")
    assert sorted(names[2:-1]) == sorted({"submitted", *engine})


# ---------------------------------------------------------------- off


def test_when_off_nothing_is_imported() -> None:
    assert spans_of(Telemetry(), {}) is None
    assert spans_of(Telemetry(endpoint="http://c"), {"OTEL_SDK_DISABLED": "true"}) is None
    program = (
        "import sys\nfrom agent_tts.serve.app import create_app\nfrom agent_tts.config.settings import Settings\n"
        "create_app(Settings(engine='tone'))\n"
        "print([m for m in sys.modules if m.startswith(('opentelemetry.sdk', 'agent_tts.serve.telemetry.spans'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


async def test_the_standard_variables_turn_it_on() -> None:
    made = present(spans_of(Telemetry(), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}))
    await made.close()


def test_without_the_package_the_setting_is_refused_and_the_variable_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform may set the variable for all its containers: it must not stop the node."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with logged() as said:
        with pytest.raises(SettingsError, match=r"pip install '\.\[otel\]'"):
            spans_of(Telemetry(endpoint="http://c"), {})
        assert spans_of(Telemetry(), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}) is None
    assert ".[otel]" in said[0]
