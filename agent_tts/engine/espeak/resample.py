"""A stateful polyphase resampler in numpy: PyAV's are filter graphs with threads each, too many for all slots."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

TAPS = 32  # input samples per output sample
PASSBAND = 0.93  # of the lower of the two Nyquist frequencies
KAISER_BETA = 9.0
# Blocks in one product: a constant, because BLAS rounds differently for other shapes; small, so that BLAS starts no
# threads.
ROWS = 8


class Resampler:
    """Resamples from `source` to `target` Hz, without delay and without a seam between pieces."""

    def __init__(self, source: int, target: int) -> None:
        # float32[step_in + TAPS, step_out]: input block @ matrix = output block.
        self._matrix = _matrix(source, target)
        self._step = self._matrix.shape[0] - TAPS
        # float32: input that is still needed, at first the silence before the first sample.
        self._input = np.zeros(TAPS // 2 - 1, np.float32)
        # Output samples owed for the input so far, times `step_in`.
        self._owed = 0

    def push(self, samples: NDArray[np.int16]) -> bytes:
        """int16[n] in, pcm_s16le out; less than a block (some milliseconds) is held back."""
        self._owed += len(samples) * self._matrix.shape[1]
        self._input = np.concatenate((self._input, samples.astype(np.float32)))
        return self._blocks((len(self._input) - TAPS) // self._step)

    def finish(self) -> bytes:
        """What was held back: output and input are then equally long. Nothing may be pushed afterwards."""
        owed = math.ceil(self._owed / self._step)
        blocks = math.ceil(owed / self._matrix.shape[1])
        self._input = np.concatenate((self._input, np.zeros(blocks * self._step + TAPS, np.float32)))
        return self._blocks(blocks)[: 2 * owed]

    def _blocks(self, count: int) -> bytes:
        if count <= 0:
            return b""
        whole = -(-count // ROWS) * ROWS
        padding = np.zeros((whole - count) * self._step, np.float32)
        rows = sliding_window_view(np.concatenate((self._input, padding)), len(self._matrix))[:: self._step]
        products = [rows[first : first + ROWS] @ self._matrix for first in range(0, whole, ROWS)]
        output = np.rint(np.concatenate(products)[:count]).ravel()
        self._input = self._input[count * self._step :]
        self._owed -= count * self._step * self._matrix.shape[1]
        return np.clip(output, -32_768, 32_767).astype("<i2").tobytes()


@lru_cache(maxsize=4)
def _matrix(source: int, target: int) -> NDArray[np.float32]:
    """A windowed sinc for each of the `step_out` positions of an output sample between input samples."""
    common = math.gcd(source, target)
    step_in, step_out = source // common, target // common
    matrix = np.zeros((step_in + TAPS, step_out))
    cutoff = PASSBAND * min(1.0, target / source)
    for column in range(step_out):
        whole, part = divmod(column * step_in, step_out)
        distance = np.arange(TAPS) - (TAPS // 2 - 1) - part / step_out  # in input samples
        window = np.i0(KAISER_BETA * np.sqrt(np.clip(1 - (distance / (TAPS / 2)) ** 2, 0, 1)))
        taps = np.sinc(cutoff * distance) * window
        matrix[whole : whole + TAPS, column] = taps / taps.sum()
    return matrix.astype(np.float32)
