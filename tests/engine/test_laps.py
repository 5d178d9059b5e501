"""Stages of a start."""

from __future__ import annotations

import time

import pytest

from agent_tts.engine.laps import Laps


def test_each_stage_is_told_with_its_own_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 11.5, 11.5, 20.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    laps = Laps()
    for stage in ("weights", "kernels", "capture"):
        laps.end(stage)
    assert str(laps) == "weights 1.5 s, kernels 0.0 s, capture 8.5 s"
