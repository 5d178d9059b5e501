"""Hands finished spans to an exporter, in a thread of its own that never blocks the event loop.

OpenTelemetry's batch processor restarts its thread in every forked process. uvloop forks to spawn the engine process,
which would hang.
"""

from __future__ import annotations

import contextlib
import queue
import threading

from loguru import logger
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter

MAX_WAITING = 2_048  # spans; more are dropped
MAX_BATCH = 512  # spans of one export
EVERY_S = 2.0  # between exports


class SpanSender(SpanProcessor):
    """Owns the exporter, the queue before it, and the thread between them.

    Args:
        exporter: may block until its own deadline; only this thread calls it.
        close_s: time to send the last spans.
    """

    def __init__(self, exporter: SpanExporter, close_s: float) -> None:
        self._exporter = exporter
        self._close_s = close_s
        self._waiting: queue.Queue[ReadableSpan] = queue.Queue(MAX_WAITING)
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
        failed = False
        while not self._closing.wait(EVERY_S):
            failed = self._export(failed)
        while not self._waiting.empty():
            if self._export(failed):
                break

    def _export(self, failed_before: bool) -> bool:
        """Send a batch; returns whether that failed. Only the first failure in a row is logged."""
        batch: list[ReadableSpan] = []
        while len(batch) < MAX_BATCH and not self._waiting.empty():
            batch.append(self._waiting.get_nowait())
        if not batch:
            return failed_before
        try:
            sent = self._exporter.export(batch).name == "SUCCESS"
        except Exception as error:  # noqa: BLE001 - the edge of a thread: the next batch may be sent
            if not failed_before:
                logger.warning("telemetry: sending spans failed: {}", type(error).__name__)
            return True
        if not sent and not failed_before:
            logger.warning("telemetry: the collector does not accept spans: check telemetry.endpoint")
        return not sent
