"""One request on the listener's side: its commands to the engine."""

from __future__ import annotations

import pytest

from agent_tts.engine_info import FRAME_BYTES
from agent_tts.messages import Audio, Credit, EngineCommand
from agent_tts.speech.engine_request import EngineRequest


@pytest.mark.parametrize(("window", "grant"), [(2, 1), (15, 1), (16, 2), (50, 6)])
def test_credit_is_granted_in_eighths_of_the_window(window: int, grant: int) -> None:
    """Ungranted credit leaves the engine most of its window. Fails if whole windows are granted."""
    sent: list[EngineCommand] = []
    speech = EngineRequest(7, sent.append, window)
    for taken in range(1, 3 * window + 1):
        speech.deliver(Audio(7, bytes(FRAME_BYTES)))
        assert isinstance(speech.poll(), Audio)
        granted = sum(command.frames for command in sent if isinstance(command, Credit))
        assert 0 <= taken - granted <= window // 8
    assert sent == [Credit(7, grant)] * (3 * window // grant)


def test_credit_is_counted_in_frames() -> None:
    sent: list[EngineCommand] = []
    speech = EngineRequest(7, sent.append, 16)
    for frames in (1, 4, 0.5, 4):
        speech.deliver(Audio(7, bytes(int(frames * FRAME_BYTES))))
        speech.poll()
    assert sent == [Credit(7, 5), Credit(7, 5)]


def test_a_stopped_request_grants_no_more_credit() -> None:
    sent: list[EngineCommand] = []
    speech = EngineRequest(7, sent.append, 2)
    speech.deliver(Audio(7, bytes(FRAME_BYTES)))
    assert speech.has_events
    speech.stop()
    speech.deliver(Audio(7, bytes(FRAME_BYTES)))
    assert not speech.has_events
    assert speech.poll() is None
    assert not any(isinstance(command, Credit) for command in sent)
    assert speech.samples == FRAME_BYTES
