from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.engine_info import FRAME_BYTES
from agent_tts.speech.words.peaks import BLOCK, peaks, peaks_of_each
from tests.examples import examples


def noise(size: int, seed: int = 0) -> bytes:
    """pcm_s16le of `size` bytes."""
    return np.random.default_rng(seed).integers(-32_768, 32_767, size // 2).astype("<i2").tobytes()


def test_each_whole_block_has_its_peak() -> None:
    pcm = noise(FRAME_BYTES + 2 * BLOCK + 14)
    samples = np.abs(np.frombuffer(pcm, "<i2").astype(np.int32))
    wanted = [samples[start : start + BLOCK].max() for start in range(0, 9 * BLOCK, BLOCK)]
    assert memoryview(peaks(pcm)).cast("h").tolist() == wanted


@examples(200)
@given(st.lists(st.sampled_from([FRAME_BYTES, FRAME_BYTES, FRAME_BYTES, 0, 2, 960, 3_838]), max_size=150))
def test_pieces_measured_together_are_as_measured_alone(sizes: list[int]) -> None:
    pieces = [noise(size, seed) for seed, size in enumerate(sizes)]
    assert peaks_of_each(pieces) == [peaks(pcm) for pcm in pieces]
