"""What a client was sent to play, and what it should be."""

from __future__ import annotations

import asyncio
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from tests.hearing import heard

# Of espeak's voices the one that the recogniser, trained on people, understands best.
VOICE = "en-us+f2"

FIRST, SECOND, NEXT = "The weather is nice today.", "Please open the window.", "Music makes everybody happy."
LONG = "One two three four five six seven eight nine ten. " * 4

# Below this it is silence, as between two sentences; within a sentence there is less of it than that.
SILENCE = 100


async def check_spoken(pcm: bytes, *sentences: str, rate: int = 24_000) -> None:
    """The audio is these sentences, one or two, and nothing else."""
    parts = [pcm] if len(sentences) == 1 else halves(pcm)
    said = await asyncio.gather(*(heard(part, rate) for part in parts))
    assert said == [sentence.lower().rstrip(".") for sentence in sentences]


def halves(pcm: bytes) -> list[bytes]:
    """The audio before and after its longest silence within."""
    samples: NDArray[np.int16] = np.frombuffer(pcm, "<i2")
    loud = np.abs(samples.astype(np.int32)) > SILENCE
    runs = [(is_loud, len(list(run))) for is_loud, run in groupby(loud)]
    begin, best = 0, (0, 0)  # (length, middle)
    for index, (is_loud, length) in enumerate(runs):
        if not is_loud and 0 < index < len(runs) - 1:
            best = max(best, (length, begin + length // 2))
        begin += length
    return [pcm[: 2 * best[1]], pcm[2 * best[1] :]]
