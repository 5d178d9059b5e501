from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from agent_tts.engine.espeak.engine import NO_SAMPLES, ClauseResampler
from tests.examples import examples

SOURCE, TARGET = 22_050, 24_000
NOISE = (np.random.default_rng(1).normal(size=9_000) * 6_000).astype(np.int16)


def resample(*pieces: NDArray[np.int16]) -> NDArray[np.int16]:
    resampler = ClauseResampler(SOURCE)
    return np.frombuffer(b"".join(map(resampler.push, pieces)) + resampler.push(NO_SAMPLES, last=True), "<i2")


@pytest.mark.parametrize(("hz", "most"), [(60, 4), (440, 4), (3_000, 4), (7_000, 4), (10_000, 40)])
def test_a_tone_keeps_its_frequency_and_its_time(hz: int, most: int) -> None:
    tone = np.sin(2 * np.pi * hz * np.arange(SOURCE) / SOURCE) * 20_000
    expected = np.sin(2 * np.pi * hz * np.arange(TARGET) / TARGET) * 20_000
    error = (resample(tone.astype(np.int16)) - expected)[1_000:-1_000]
    assert np.abs(error).max() < most


@given(cuts=st.lists(st.integers(0, len(NOISE)), min_size=1, max_size=20), end=st.integers(0, len(NOISE)))
@examples(40)
def test_samples_do_not_depend_on_how_the_input_is_cut_and_at_most_42_ms_are_held_back(
    cuts: list[int], end: int
) -> None:
    whole, pieces = resample(NOISE[:end]), np.split(NOISE[:end], sorted(min(cut, end) for cut in cuts))
    assert abs(len(whole) - end * TARGET / SOURCE) < 1
    assert np.array_equal(resample(*pieces), whole)
    resampler = ClauseResampler(SOURCE)
    made = sum(len(resampler.push(piece)) for piece in pieces) // 2
    assert made > end * TARGET / SOURCE - 0.042 * TARGET


def test_overshoot_is_clipped() -> None:
    square = np.where(np.arange(3_000) // 30 % 2, 32_767, -32_768).astype(np.int16)
    output = resample(square)
    assert (output.max(), output.min()) == (32_767, -32_768)
    assert (np.sign(output[40:2_900:33]) != 0).all()
