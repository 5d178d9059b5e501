"""Rows that run away are detected."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from agent_tts.engine.qwen3.runaway import (
    CAP_FRAMES,
    CAP_FRAMES_PER_TOKEN,
    LOOP_FRAMES,
    LOOP_PERIODS,
    SILENT_FRAMES,
    SILENT_PEAK,
    RunawayDetector,
)

LOUD = np.full((1, 1_920), SILENT_PEAK, np.int16)
SILENT = LOUD - 1
MANY = 10_000  # tokens: far from the cap


def frames(count: int, seed: int = 0) -> NDArray[np.int64]:
    """Codes [count, 16] of frames that have nothing in common."""
    return np.random.default_rng(seed).integers(0, 2_048, (count, 16))


def until_over(
    detector: RunawayDetector, codes: NDArray[np.int64], pcm: NDArray[np.int16] = LOUD, tokens: int = MANY
) -> int | None:
    """The number of frames until row 0 runs away; None if it never does."""
    for number, frame in enumerate(codes, 1):
        if detector.see([0], frame[None], pcm, [tokens])[0]:
            return number
    return None


@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_speech_too_long_for_its_text_is_cut(tokens: int) -> None:
    assert until_over(RunawayDetector(1, 16), frames(500), tokens=tokens) == CAP_FRAMES + CAP_FRAMES_PER_TOKEN * tokens


def test_silence_may_last_as_long_as_a_pause() -> None:
    detector = RunawayDetector(1, 16)
    assert until_over(detector, frames(SILENT_FRAMES - 1), SILENT) is None
    assert until_over(detector, frames(1, 1), LOUD) is None
    assert until_over(detector, frames(500, 2), SILENT) == SILENT_FRAMES


@pytest.mark.parametrize("period", [1, 2, 7, LOOP_PERIODS])
def test_a_loop_of_frames_is_detected(period: int) -> None:
    loop = np.tile(frames(period), (200, 1))
    assert until_over(RunawayDetector(1, 16), loop) == period + LOOP_FRAMES


def test_frames_that_differ_in_one_code_are_not_a_loop() -> None:
    codes = np.tile(frames(1), (200, 1))
    codes[:, 15] = np.arange(200)
    assert until_over(RunawayDetector(1, 16), codes) is None


def test_rows_are_judged_separately_and_can_be_reset() -> None:
    detector = RunawayDetector(3, 16)
    loop = frames(1)[0]
    for other in frames(LOOP_FRAMES, 3):
        over = detector.see([2, 0], np.stack([loop, other]), np.repeat(LOUD, 2, 0), [MANY, MANY])
        assert not over.any()
    assert detector.see([0, 2], np.stack([frames(1, 9)[0], loop]), np.repeat(LOUD, 2, 0), [MANY] * 2).tolist() == [
        False,
        True,
    ]
    detector.reset(2)
    assert not detector.see([2], loop[None], LOUD, [MANY])[0]


def test_the_loudest_negative_sample_is_loud() -> None:
    assert until_over(RunawayDetector(1, 16), frames(SILENT_FRAMES), np.full((1, 1_920), -32_768, np.int16)) is None
