"""Finds gaps in speech by loudness. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from agent_tts.events import SAMPLE_RATE

BLOCK = SAMPLE_RATE // 100  # samples of 10 ms
BLOCK_BYTES = 2 * BLOCK
BLOCK_MS = 10

# Silence is below this share of the loudest peak so far (-30 dB). A gap lasts at least GAP_MS, longer than the closure
# of a "p" or a "t".
QUIET = 0.03
LOUD = 200  # peak of 32 767; anything softer is silence
GAP_MS = 100


class Gap(NamedTuple):
    """Silence between two sounds, in ms of the audio."""

    start_ms: float
    end_ms: float


class Silences:
    """pcm_s16le at 24 kHz in, the gaps in it out."""

    def __init__(self) -> None:
        self._samples = 0
        self._loudest = LOUD
        # Where the last sound ended; None before the first.
        self.sounded_until_ms: float | None = None

    @property
    def heard_ms(self) -> float:
        """Length of the audio so far."""
        return self._samples * 1_000 / SAMPLE_RATE

    @property
    def silent(self) -> bool:
        """Whether there was no sound in the last `GAP_MS`, or none at all."""
        return self.sounded_until_ms is None or self.heard_ms - self.sounded_until_ms >= GAP_MS

    def hear(self, pcm: bytes) -> list[Gap]:
        """Take the next piece; returns the gaps that end in it. The first gap starts at 0 and may have any length."""
        begin_ms, until_ms = self.heard_ms, self.sounded_until_ms
        self._samples += len(pcm) // 2
        blocks = np.frombuffer(pcm, "<i2")[: len(pcm) // BLOCK_BYTES * BLOCK].reshape(-1, BLOCK)
        # abs(-32 768) overflows and stays negative, which is harmless: neighbouring samples are loud too.
        peaks = np.maximum.reduce(np.abs(blocks), axis=1).tolist()
        self._loudest = max(self._loudest, *peaks) if peaks else self._loudest
        quiet = max(LOUD, QUIET * self._loudest)
        gaps: list[Gap] = []
        for number, peak in enumerate(peaks):
            if peak >= quiet:
                at_ms = begin_ms + number * BLOCK_MS
                if until_ms is None or at_ms - until_ms >= GAP_MS:
                    gaps.append(Gap(until_ms or 0.0, at_ms))
                until_ms = at_ms + BLOCK_MS
        self.sounded_until_ms = until_ms
        return gaps
