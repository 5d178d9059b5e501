"""Time for clips: the processes that decode and encode them have a low priority."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def decoders_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a loaded machine."""
    monkeypatch.setattr("agent_tts.voices.enroll.DECODE_TIMEOUT_S", 300.0)
