"""Where speech begins in a piece of audio."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_MS = 10
AUDIBLE_PEAK = 104  # of int16: -50 dBFS


def audible_at(samples: NDArray[np.integer[Any]], rate: int) -> int | None:
    """The start of the first 10 ms, in samples, that have a sample above -50 dBFS; None if there are none.

    Args:
        samples: int16[n], mono. The 10 ms are counted from the first.
        rate: in Hz.
    """
    loud = np.abs(samples.astype(np.int32)) > AUDIBLE_PEAK
    block = rate * BLOCK_MS // 1_000
    return int(loud.argmax()) // block * block if loud.any() else None


def skipped(samples: NDArray[np.integer[Any]], rate: int, keep_ms: int | None) -> int:
    """How many samples of leading silence are left out so that `keep_ms` are left; all samples if none is audible.

    None keeps all. As `audible_at` otherwise.
    """
    if keep_ms is None:
        return 0
    at = audible_at(samples, rate)
    return len(samples) if at is None else max(0, at - rate * keep_ms // 1_000)
