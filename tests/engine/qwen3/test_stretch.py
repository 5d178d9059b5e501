"""Time stretching: another speed, the same pitch, the exact length."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from numpy.typing import NDArray

from agent_tts.engine.qwen3.delivery import TimeStretch
from tests.support import dominant_hz

FRAMES = 25


def tone(frames: int = FRAMES) -> bytes:
    samples: NDArray[np.float64] = 9_000 * np.sin(np.arange(1_920 * frames) * (2 * np.pi * 220 / 24_000))
    return samples.astype("<i2").tobytes()


def stretched(stretch: TimeStretch, pcm: bytes) -> bytes:
    pieces = [stretch.push(pcm[start : start + 3_840]) for start in range(0, len(pcm), 3_840)]
    return b"".join(pieces) + stretch.finish()


@pytest.mark.parametrize("speed", [0.25, 0.5, 0.8, 1.25, 2.0, 4.0])
def test_length_and_pitch(speed: float) -> None:
    """The length is exact where the end is silent."""
    out = stretched(TimeStretch(speed), tone() + bytes(3_840))
    assert len(out) // 2 == round((FRAMES + 1) * 1_920 / speed)
    assert dominant_hz(out) == pytest.approx(220, rel=0.02)


@pytest.mark.parametrize("frames", [3, 8, 20])
@pytest.mark.parametrize("speed", [0.4, 0.8, 1.1, 1.5, 2.0, 3.0])
def test_the_last_samples_are_heard(speed: float, frames: int) -> None:
    """The audio ends with a burst of 5 ms, for which it may be longer by a part of the filter's."""
    audio = np.random.default_rng(0).normal(0, 500, 1_920 * frames)
    audio[-120:] *= 18
    out = np.frombuffer(stretched(TimeStretch(speed), audio.astype("<i2").tobytes()), "<i2")
    assert np.abs(out[-2_400:].astype(int)).max() > 0.25 * np.abs(audio[-120:]).max()
    assert 0 <= len(out) - round(len(audio) / speed) < 1_200


def test_audio_is_output_while_input_arrives() -> None:
    stretch = TimeStretch(1.5)
    ready = 0
    for number in range(1, FRAMES):
        ready += len(stretch.push(tone(1))) // 2
        assert ready >= 1_920 * (number - 1) / 1.5 - 0.02 * 24_000


def test_it_can_be_reused_after_finish() -> None:
    stretch = TimeStretch(0.7)
    assert stretched(stretch, tone()) == stretched(stretch, tone())
    assert stretch.finish() == b""


def test_a_piece_shorter_than_a_window_is_heard() -> None:
    assert 100 <= len(stretched(TimeStretch(2.0), tone(1)[:200])) <= 200


def test_it_starts_no_thread() -> None:
    before = threading.active_count()
    stretched(TimeStretch(1.5), tone())
    assert threading.active_count() == before
