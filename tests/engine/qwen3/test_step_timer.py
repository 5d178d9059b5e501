"""When the next step is begun: as the one under way ends, as far as has been seen."""

from __future__ import annotations

import pytest

from agent_tts.engine.qwen3.engine import GROW, SHRINK, WAKE_S, StepTimer


def ran(timer: StepTimer, begin: float, end: float, *, waited: bool = True, kind: int = 8) -> None:
    timer.launched(kind, begin, 0.0)
    timer.done(end, waited=waited)


def test_what_has_never_run_is_not_waited_for() -> None:
    timer = StepTimer()
    timer.launched(8, 1.0, 0.0)
    assert timer.wait_s(1.0) == 0


def test_a_step_takes_as_long_as_the_last_of_its_kind() -> None:
    timer = StepTimer()
    ran(timer, 1.0, 1.010)
    ran(timer, 2.0, 2.004, kind=1)
    timer.launched(8, 3.0, 0.0)
    assert timer.wait_s(3.0) == pytest.approx(0.010 - WAKE_S)
    assert timer.wait_s(3.009) == pytest.approx(0.001 - WAKE_S)
    assert timer.wait_s(3.1) == 0


def test_a_step_behind_another_begins_when_that_is_done() -> None:
    timer = StepTimer()
    ran(timer, 1.0, 1.010)
    timer.launched(8, 2.0, 0.0)
    timer.launched(8, 2.009, 0.0)
    timer.done(2.012, waited=True)
    assert timer.wait_s(2.012) == pytest.approx(0.012 - WAKE_S)  # as long as the one that was just done
    timer.done(2.020, waited=True)
    timer.launched(8, 3.0, 0.0)
    assert timer.wait_s(3.0) == pytest.approx(0.008 - WAKE_S)


def test_an_estimate_that_is_too_long_shrinks_until_somebody_has_to_wait() -> None:
    timer = StepTimer()
    ran(timer, 1.0, 1.010)
    ran(timer, 2.0, 2.010, waited=False)
    timer.launched(8, 3.0, 0.0)
    assert timer.wait_s(3.0) == pytest.approx(0.010 * SHRINK - WAKE_S)


def test_the_hosts_own_time_is_left_for_it() -> None:
    timer = StepTimer()
    for begin in range(100):
        timer.launched(8, float(begin), 0.002)
        timer.done(begin + 0.010, waited=True)
    timer.launched(8, 200.0, 0.002)
    assert timer.wait_s(200.0) == pytest.approx(0.010 - 0.002 - WAKE_S, abs=1e-4)


def test_one_slow_step_does_not_slow_down_the_next_ones() -> None:
    """Something else on the GPU, once."""
    timer = StepTimer()
    ran(timer, 1.0, 1.010)
    ran(timer, 2.0, 2.5)
    timer.launched(8, 3.0, 0.0)
    assert timer.wait_s(3.0) == pytest.approx(0.010 * GROW - WAKE_S)
