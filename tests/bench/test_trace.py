"""Stages of a request as `bench trace` tells them."""

from __future__ import annotations

import pytest

from agent_tts.bench import trace
from agent_tts.bench.scenario import CallSample

ENDS = [end for _, end in trace.STAGES[:-1]]  # the last is the client's


def call(trace_id: str, took_s: float, error: str | None = None) -> CallSample:
    sample = CallSample("websocket", "heard_out", 0, 1.0)
    sample.trace_id, sample.sent_at, sample.first_audio_at, sample.error = trace_id, 1.0, 1.0 + took_s, error
    return sample


def test_stages_sum_up_to_the_time_to_first_audio_and_calls_without_all_points_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    points = {end: 1.001 + 0.001 * place for place, end in enumerate(ENDS)}
    partly = {end: points[end] for end in ENDS[:5]}
    calls = [call("a", 0.020), call("b", 0.020), call("unknown", 0.020), call("a", 0.020, "at_capacity")]
    run = trace.figures("1/s", calls, {"a": points, "b": partly})
    assert (run["requests"], run["untraced"]) == (4, 3)
    p50 = [stage["p50"] for stage in run["stages"].values()]
    assert p50[:-1] == [1.0] * len(ENDS)
    assert sum(p50) == pytest.approx(run["ttfa_ms"]["p50"]) == pytest.approx(20.0)
    trace.show("title", run, width=80)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:11].strip() for line in lines[2:]] == [*(name for name, _ in trace.STAGES), "first audio"]
    assert "█" in lines[2]
