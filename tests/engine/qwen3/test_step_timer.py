"""The wait before the next step, estimated from the durations of earlier steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agent_tts.engine.base import StepTimes
from agent_tts.engine.qwen3.engine import GROW, SHRINK, WAKE_S, StepTimer, _Frames


def ran(timer: StepTimer, begin: float, end: float, *, waited: bool = True, kind: int = 8) -> None:
    timer.launched(kind, begin, 0.0)
    timer.done(end, waited=waited)


def test_a_step_is_estimated_by_the_last_of_its_kind() -> None:
    timer = StepTimer()
    ran(timer, 1.0, 1.010)
    ran(timer, 2.0, 2.004, kind=1)
    timer.launched(8, 3.0, 0.0)
    assert timer.wait_s(3.0) == pytest.approx(0.010 - WAKE_S)
    assert timer.wait_s(3.009) == pytest.approx(0.001 - WAKE_S)
    assert timer.wait_s(3.1) == 0


def test_a_queued_step_begins_when_the_one_before_it_ends() -> None:
    timer = StepTimer()
    ran(timer, 1.0, 1.010)
    timer.launched(8, 2.0, 0.0)
    timer.launched(8, 2.009, 0.0)
    timer.done(2.012, waited=True)
    assert timer.wait_s(2.012) == pytest.approx(0.012 - WAKE_S)  # the duration of the step that just ended
    timer.done(2.020, waited=True)
    timer.launched(8, 3.0, 0.0)
    assert timer.wait_s(3.0) == pytest.approx(0.008 - WAKE_S)


@pytest.mark.parametrize(
    ("before", "wait_s"),
    [
        pytest.param([], 0, id="it is the first of its kind"),
        pytest.param([(1.0, 1.010, True), (2.0, 2.010, False)], 0.010 * SHRINK - WAKE_S, id="steps end earlier"),
        # Such as another program that uses the GPU once.
        pytest.param([(1.0, 1.010, True), (2.0, 2.5, True)], 0.010 * GROW - WAKE_S, id="one was slow"),
    ],
)
def test_an_estimate_follows_the_steps_before(before: list[tuple[float, float, bool]], wait_s: float) -> None:
    timer = StepTimer()
    for begin, end, waited in before:
        ran(timer, begin, end, waited=waited)
    timer.launched(8, 3.0, 0.0)
    assert timer.wait_s(3.0) == pytest.approx(wait_s)


def test_the_wait_leaves_the_host_time_for_its_work() -> None:
    timer = StepTimer()
    for begin in range(100):
        timer.launched(8, float(begin), 0.002)
        timer.done(begin + 0.010, waited=True)
    timer.launched(8, 200.0, 0.002)
    assert timer.wait_s(200.0) == pytest.approx(0.010 - 0.002 - WAKE_S, abs=1e-4)


def test_a_timed_step_that_was_queued_is_computed_behind_the_one_before_it() -> None:
    """It takes 10 ms on the device, whose step before ended at 2.012."""
    launched: Any = SimpleNamespace(device_s=lambda: 0.010)
    model: Any = SimpleNamespace(queues=True)
    queued = _Frames(model, [], launched, 2.000, 2.001, 2.002)
    before = StepTimes(1.990, 1.991, 1.992, 2.012, 2.013)
    assert queued.times(2.030, before).computed == pytest.approx(2.022)
    assert queued.times(2.030, None).computed == pytest.approx(2.012)
    assert queued.times(2.015, before).computed == 2.015  # not behind the reading
