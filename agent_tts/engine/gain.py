"""Loudness of samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

KNEE = 0.7  # of full scale


def amplify(samples: NDArray[np.int16], volume: float) -> NDArray[np.float32]:
    """`volume` times as loud, in the range of int16. Where that is louder, it bends above the knee and never clips."""
    scaled = samples * np.float32(volume)
    if volume > 1:
        knee, room = KNEE * 32_767, (1 - KNEE) * 32_767
        over = np.abs(scaled) - knee
        scaled = np.where(over > 0, np.sign(scaled) * (knee + room * np.tanh(over / room)), scaled)
    return scaled
