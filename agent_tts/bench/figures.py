"""Figures of scenarios, by their names in JSON files. Percentiles are of the samples of all processes together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from agent_tts.bench.runner import ScenarioResult
from agent_tts.bench.scenario import CallSample, Scenario
from agent_tts.bench.statistics import mean_at_once, most_at_once, percentiles
from agent_tts.events import FRAME_MS


def call_figures(
    calls: Sequence[CallSample], everything: Sequence[CallSample], begin: float, end: float
) -> dict[str, Any]:
    """Figures of some calls; and how many of all were going on at once between two times."""
    good = [call for call in calls if call.ttfa_ms is not None]
    spans = [(call.begin, call.ended_at) for call in everything if call.ended_at is not None]
    return {
        "errors": dict(Counter(call.error for call in calls if call.error is not None)),
        "ttfa_ms": percentiles(first_audio_ms(calls), 50, 95, 99, 100),
        "underruns": sum(bool(call.gap_times) for call in good),
        "underrun_s": round(sum(call.gaps_s for call in good), 3),
        "peak_in_flight": most_at_once(spans, begin, end),
        "mean_in_flight": round(mean_at_once(spans, begin, end), 2) if end > begin else 0.0,
    }


def measured_calls(result: ScenarioResult) -> list[CallSample]:
    """Calls that were to begin during the measurement."""
    begin, end = result.window
    return [sample for sample in result.samples if begin <= sample.begin < end]


def first_audio_ms(calls: Sequence[CallSample]) -> list[float]:
    """Every time to first audio of some calls."""
    return [ms for call in calls if (ms := call.ttfa_ms) is not None]


def serve_figures(scenario: Scenario, result: ScenarioResult) -> dict[str, Any]:
    """`bench serve`: of the requests that were to begin during the measurement.

    Throughput and requests at once are of all that was going on meanwhile, whenever it began.
    """
    calls = measured_calls(result)
    good = [call for call in calls if call.ttfa_ms is not None]
    audio_s_per_s = round(sum(sample.measured_audio_s for sample in result.samples) / scenario.duration_s, 2)
    return {
        "load": scenario.name,
        "requests": len(calls),
        **call_figures(calls, result.samples, *result.window),
        "silent": sum(call.error is None and call.first_audio_at is None for call in calls),
        "audio_s_per_s": audio_s_per_s,
        "request_audio_s": percentiles([call.audio_s for call in good], 0, 50, 100),
        # How late requests were sent, the time to connect included.
        "send_lag_ms": percentiles([(call.sent_at - call.begin) * 1_000 for call in calls if call.sent_at], 50, 99),
        **result.processes,
        "front_us_per_frame": us_per_frame(result.processes["cpu_percent"].get("front"), audio_s_per_s),
    }


def us_per_frame(percent: float | None, audio_s_per_s: float) -> float | None:
    """CPU time for 80 ms of audio, in µs, of a process that uses this share of a core; None without audio."""
    if percent is None or not audio_s_per_s:
        return None
    return round(percent / 100 * FRAME_MS * 1_000 / audio_s_per_s, 1)


def stream_figures(scenario: Scenario, result: ScenarioResult) -> dict[str, Any]:
    """`bench streams`."""
    samples, start = result.samples, result.window[0] - scenario.warmup_s
    gaps_at_s = [when - start for sample in samples for when in sample.gap_times]
    ended = [sample.error or sample.reason for sample in samples]
    return {
        "streams": len(samples),
        "silent": sum(sample.first_audio_at is None for sample in samples),
        "ended": dict(Counter(reason for reason in ended if reason is not None)),
        "underruns": sum(bool(sample.gap_times) for sample in samples),
        "gaps": len(gaps_at_s),
        "gaps_at_s": percentiles(gaps_at_s, 0, 50, 100, digits=1),
        "gaps_s": round(sum(sample.gaps_s for sample in samples), 3),
        # How long before its play time a chunk came: the 1st percentile is what a listener can count on.
        "margin_ms": percentiles([ms for sample in samples for ms in sample.margins_ms], 50, 1, 0, digits=1),
        **result.processes,
    }


def is_clean(figures: dict[str, Any]) -> bool:
    """Whether every stream spoke without a gap."""
    return not (figures["underruns"] or figures["silent"] or figures["ended"])


def rtc_figures(scenario: Scenario, result: ScenarioResult) -> dict[str, Any]:
    """`bench rtc`."""
    samples = result.samples
    late_ms = [ms for sample in samples for ms in sample.late_ms]
    return {
        "peers": len(samples),
        "packets": len(late_ms),
        "lost": sum(sample.lost for sample in samples),
        "silent": sum(not sample.late_ms for sample in samples),
        "lateness_ms": percentiles(late_ms, 50, 99, 100),
        "worst_p99_ms": max((ms for sample in samples if (ms := sample.late_p99_ms) is not None), default=None),
        "errors": dict(Counter(sample.error for sample in samples if sample.error is not None)),
        **result.processes,
    }


def session_figures(samples: Sequence[CallSample]) -> dict[str, Any]:
    """`bench load` and `bench soak`: of all sessions."""
    begin, end = (pick((sample.begin for sample in samples), default=0.0) for pick in (min, max))
    late_ms = [ms for sample in samples if (ms := sample.late_p99_ms) is not None]
    return {
        "visits": len(samples),
        **call_figures(samples, samples, begin, end),
        "not_one_end": sum(not sample.ended_once for sample in samples),
        "lost_packets": sum(sample.lost for sample in samples),
        "late_ms": percentiles(late_ms, 50, 100),
    }
