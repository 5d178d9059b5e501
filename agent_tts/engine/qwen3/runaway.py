"""Detects speech without an end: a few requests in a thousand never draw the end of speech."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Speech takes about 3 frames a token; a digit or a symbol that is spelled out some 15, a long pause another 25.
CAP_FRAMES = 50
CAP_FRAMES_PER_TOKEN = 15

SILENT_PEAK = 33  # of int16: -60 dB
SILENT_FRAMES = 50  # 4 s: no pause in speech is as long
LOOP_FRAMES = 50  # 4 s of frames that are equal, code for code, to those of one and the same time before
LOOP_PERIODS = 16  # frames of the longest loop that is detected


class RunawayDetector:
    """Tells for every row when its speech has run away."""

    def __init__(self, rows: int, codebooks: int) -> None:
        # int16[rows, periods, codebooks]: the last frames of each row; frame t is at t % periods.
        self._last = np.full((rows, LOOP_PERIODS, codebooks), -1, np.int16)
        # int64[rows, periods]: how many frames in a row were equal to the one `period` frames before.
        self._repeats = np.zeros((rows, LOOP_PERIODS), np.int64)
        # int64[rows]: silent frames in a row, and frames so far.
        self._silent = np.zeros(rows, np.int64)
        self._frames = np.zeros(rows, np.int64)

    def reset(self, row: int) -> None:
        """The row begins a segment."""
        self._last[row] = -1
        self._repeats[row] = self._silent[row] = self._frames[row] = 0

    def see(
        self, rows: Sequence[int], codes: NDArray[np.integer], pcm: NDArray[np.int16], tokens: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Add a frame to each of n different rows; bool[n]: which of them have run away.

        Args:
            codes: [n, codebooks].
            pcm: int16[n, samples].
            tokens: how many tokens of its text each row has been given.
        """
        index = np.asarray(rows, np.int64)
        now = self._frames[index]
        # Column p is the frame p + 1 frames ago.
        ago = (now[:, None] - 1 - np.arange(LOOP_PERIODS)) % LOOP_PERIODS
        equal = (self._last[index[:, None], ago] == codes[:, None]).all(-1)
        self._repeats[index] = np.where(equal, self._repeats[index] + 1, 0)
        self._last[index, now % LOOP_PERIODS] = codes
        silent = np.abs(pcm.astype(np.int32)).max(-1) < SILENT_PEAK
        self._silent[index] = np.where(silent, self._silent[index] + 1, 0)
        self._frames[index] = now + 1
        over: NDArray[np.bool_] = (
            (self._frames[index] >= CAP_FRAMES + CAP_FRAMES_PER_TOKEN * np.asarray(tokens, np.int64))
            | (self._silent[index] >= SILENT_FRAMES)
            | (self._repeats[index] >= LOOP_FRAMES).any(-1)
        )
        return over
