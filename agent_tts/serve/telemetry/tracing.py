"""Whether a node sends spans to an OpenTelemetry collector. OpenTelemetry is imported only where it does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from loguru import logger

from agent_tts.config.settings import Telemetry
from agent_tts.errors import SettingsError, to_install

if TYPE_CHECKING:
    from agent_tts.serve.telemetry.spans import Spans

# OpenTelemetry's variables for the collector's address. Its SDK reads the others: headers, timeouts, sampling, name.
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_INSTALL = to_install("otel")


def spans_of(telemetry: Telemetry, environ: Mapping[str, str] = os.environ, front: int | None = None) -> Spans | None:
    """The maker of the spans of a node, or of one of its several fronts by its number; None where telemetry is off.

    Raises `SettingsError` without OpenTelemetry.
    """
    variable = next((name for name in _ENDPOINTS if environ.get(name)), None)
    if (telemetry.endpoint is None and variable is None) or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        from agent_tts.serve.telemetry.spans import CLOSE_S, Spans, SpanSender
    except ImportError:
        if telemetry.endpoint is not None:
            raise SettingsError(f"telemetry.endpoint needs OpenTelemetry: {_INSTALL}") from None
        logger.warning("{} is set, but OpenTelemetry is not installed: {}", variable, _INSTALL)
        return None
    endpoint = None if telemetry.endpoint is None else f"{telemetry.endpoint.rstrip('/')}/v1/traces"
    timeout_s = None if environ.get("OTEL_EXPORTER_OTLP_TIMEOUT") else CLOSE_S
    return Spans(SpanSender(OTLPSpanExporter(endpoint, timeout=timeout_s), CLOSE_S), front)
