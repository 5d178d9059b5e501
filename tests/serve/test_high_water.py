from __future__ import annotations

from agent_tts.serve.node import HighWater


def test_newcomers_come_back_when_the_load_is_clearly_below_the_mark() -> None:
    water = HighWater()
    assert [water.over(used, 0.8) for used in (0, 0.79, 0.8, 0.79, 0.76, 0.74, 0.79, 1.5)] == [
        False, False, True, True, True, False, False, True,
    ]  # fmt: skip


def test_without_a_mark_a_node_is_never_too_full() -> None:
    assert not HighWater().over(3.0, 1.0)
