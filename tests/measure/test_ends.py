"""What a listener of `tests.measure.ends` hears, and what the tool says."""

from __future__ import annotations

import json

import numpy as np
import pytest

from agent_tts import messages
from tests.measure import ends
from tests.measure.test_tools import tool
from tests.model.tiny import checkpoint


def audio(ms: int, level: int) -> messages.Audio:
    return messages.Audio(0, np.full(24 * ms, level, "<i2").tobytes())


def test_a_gap_is_silence_and_waits_between_what_is_audible() -> None:
    listener = ends.Listener()
    listener.take(audio(80, 1_000), 0.1)
    listener.take(audio(480, 50), 0.12)
    listener.take(audio(80, 50), 0.7)  # 40 ms late
    listener.take(messages.Flushed(0, ""), 0.71)
    listener.take(audio(80, -1_000), 0.72)
    assert (listener.first, listener.wait, listener.gap) == pytest.approx((0.1, 0.04, 0.6), abs=1e-4)
    assert listener.audio == pytest.approx(0.72)
    assert listener.left == pytest.approx([0.07])


@pytest.mark.slow
def test_each_fault_has_a_row_in_a_short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "LIMIT_S", 0.2)
    done = tool("ends", str(checkpoint("custom_voice")), "--slots", "1", "--device", "cpu")
    assert done.exit_code == 0
    where, *rows = done.stdout.splitlines()
    assert {"command", "device", "machine"} == json.loads(where).keys()
    assert [row.split(" x ")[0].strip() for row in rows] == [*ends.FAULTS]
    assert "not done after 0.2 s" in rows[-1]
