"""The audio that a client received, and the expected sentences."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from tests.recogniser import recognise

# The espeak voice that the recogniser, trained on human speech, recognises best.
VOICE = "en-us+f2"

FIRST, SECOND, NEXT = "The weather is nice today.", "Please open the window.", "Music makes everybody happy."
LONG = "One two three four five six seven eight nine ten. " * 4

# Amplitude up to which a sample is silent; the longest silence is the one between two sentences.
SILENCE = 100


def check_spoken(pcm: bytes, *sentences: str, rate: int = 24_000) -> None:
    """Assert that the audio is exactly these sentences, one or two."""
    parts = [pcm] if len(sentences) == 1 else halves(pcm)
    said = [recognise(part, rate) for part in parts]
    assert said == [sentence.lower().rstrip(".") for sentence in sentences]


def halves(pcm: bytes) -> list[bytes]:
    """The audio before and after its longest inner silence."""
    samples: NDArray[np.int16] = np.frombuffer(pcm, "<i2")
    loud = np.abs(samples.astype(np.int32)) > SILENCE
    runs = [(is_loud, len(list(run))) for is_loud, run in groupby(loud)]
    begin, best = 0, (0, 0)  # (length, middle)
    for index, (is_loud, length) in enumerate(runs):
        if not is_loud and 0 < index < len(runs) - 1:
            best = max(best, (length, begin + length // 2))
        begin += length
    return [pcm[: 2 * best[1]], pcm[2 * best[1] :]]
