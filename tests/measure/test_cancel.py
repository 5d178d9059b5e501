"""Cancels on a real node: another context proves that the slot is free."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_tts.errors import SpeechError
from tests.cli.process import environment, measure
from tests.measure.cancel import EVENTS, CancelPlan, measure_cancels
from tests.support import running_node

PATIENT = {"queue_s": 30.0}


async def test_a_waiting_context_gets_the_slot_of_a_cancelled_one() -> None:
    async with running_node(slots=4, queue=1, timeouts=PATIENT) as node:
        figures, times = await measure_cancels(node.ws_url, None, CancelPlan(4, 12, per_connection=2))
    assert {event: len(times[event]) for event in EVENTS} == dict.fromkeys(EVENTS, 12)
    assert all(0 < ms < 5_000 for event in EVENTS for ms in times[event])
    assert all(started <= first for started, first in zip(times["started"], times["first_audio"], strict=True))
    assert figures["audio_after_cancelled_bytes"] == 0
    assert figures["cancelled_ms"]["p50"] <= figures["first_audio_ms"]["p50"]
    assert figures["client_lag_ms"]["p99"] is not None


async def test_a_node_with_a_free_slot_is_an_error() -> None:
    async with running_node(slots=5, timeouts=PATIENT) as node:
        with pytest.raises(SpeechError, match="not all slots of the node speak: is 4 the number of them"):
            await measure_cancels(node.ws_url, None, CancelPlan(4, 3))


async def test_a_node_with_fewer_slots_is_an_error() -> None:
    async with running_node(slots=3, queue=0) as node:
        with pytest.raises(SpeechError, match="ended before it was cancelled: at_capacity"):
            await measure_cancels(node.ws_url, None, CancelPlan(4, 3))


async def test_a_node_without_a_queue_is_an_error() -> None:
    async with running_node(slots=2, queue=0, timeouts=PATIENT) as node:
        with pytest.raises(SpeechError, match=r"was refused \(at_capacity\): raise timeouts.queue_s"):
            await measure_cancels(node.ws_url, None, CancelPlan(2, 3))


def test_the_command_reports_when_the_slot_is_free(tmp_path: Path) -> None:
    files = ("--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png"))
    result = measure("cancel", "--streams", "4", "--cancels", "5", *files, env=environment(COLUMNS="160"))
    assert result.returncode == 0, result.stderr
    assert b"slot is the waiting one's" in result.stdout
    (figures,) = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert figures["started_ms"]["p99"] > 0
    assert (tmp_path / "out.png").stat().st_size > 10_000
