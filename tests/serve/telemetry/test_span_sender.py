"""The span sender with an exporter that is slow, broken or stuck."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from agent_tts.serve.telemetry import spans as telemetry
from agent_tts.serve.telemetry.spans import SpanSender
from tests.support import logged, wait_for


class Exporter(SpanExporter):
    """Runs `act`, then keeps the spans."""

    def __init__(self, act: Callable[[], SpanExportResult] = lambda: SpanExportResult.SUCCESS) -> None:
        self.act = act
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self.act()
        self.spans += spans
        return result


def spans(count: int) -> list[ReadableSpan]:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    made = [tracer.start_span(str(number)) for number in range(count)]
    return [span for span in made if isinstance(span, ReadableSpan)]


def test_shutdown_sends_waiting_spans_in_order() -> None:
    exporter = Exporter()
    sender = SpanSender(exporter, close_s=5)
    for span in spans(telemetry.MAX_BATCH + 1):
        sender.on_end(span)
    sender.shutdown()
    assert [span.name for span in exporter.spans] == [str(number) for number in range(telemetry.MAX_BATCH + 1)]


def test_spans_beyond_the_bound_are_dropped_and_a_stuck_exporter_causes_no_delay() -> None:
    stuck = threading.Event()
    exporter = Exporter(lambda: SpanExportResult.SUCCESS if stuck.wait(30) else SpanExportResult.FAILURE)
    sender = SpanSender(exporter, close_s=0.2)
    for span in spans(telemetry.MAX_WAITING + 10):
        sender.on_end(span)
    sender.shutdown()
    assert sender._thread.is_alive()  # it is still with the exporter
    stuck.set()
    sender._thread.join(5)
    assert len(exporter.spans) <= telemetry.MAX_WAITING


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_failure_is_logged_once_and_retried(monkeypatch: pytest.MonkeyPatch, is_broken: bool) -> None:
    def fail() -> SpanExportResult:
        tries.append(1)
        if is_broken:
            raise RuntimeError("a broken library")
        return SpanExportResult.FAILURE

    monkeypatch.setattr(telemetry, "EVERY_S", 0.01)
    tries: list[int] = []
    with logged() as said:
        sender = SpanSender(Exporter(fail), close_s=5)
        for number, span in enumerate(spans(3), 1):
            sender.on_end(span)
            wait_for(lambda: len(tries) >= number)  # noqa: B023
        sender.shutdown()
    assert len(tries) == 3
    assert len(said) == 1
    assert ("RuntimeError" if is_broken else "telemetry.endpoint") in said[0]


def test_an_exception_of_the_exporter_does_not_stop_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> SpanExportResult:
        exporter.act = lambda: SpanExportResult.SUCCESS
        raise RuntimeError("a broken library")

    monkeypatch.setattr(telemetry, "EVERY_S", 0.01)
    exporter = Exporter(fail)
    with logged() as said:
        sender = SpanSender(exporter, close_s=5)
        first, second = spans(2)
        sender.on_end(first)
        wait_for(lambda: bool(said))
        sender.on_end(second)
        sender.shutdown()
    assert [span.name for span in exporter.spans] == ["1"]
    assert said == ["telemetry: sending spans failed: RuntimeError\n"]
