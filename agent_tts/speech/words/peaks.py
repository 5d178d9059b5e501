"""How loud audio is, every 10 ms: measured for the frames of many requests at once, because a call costs more than a
frame. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agent_tts.engine_info import FRAME_BYTES, SAMPLE_RATE

BLOCK_MS = 10
BLOCK = SAMPLE_RATE * BLOCK_MS // 1_000  # samples
_BLOCK_BYTES = 2 * BLOCK
FRAME_PEAKS_BYTES = 2 * FRAME_BYTES // _BLOCK_BYTES
_MAX_FRAMES = 64  # in one call: more do not fit the processor's cache
_STARTS = np.arange(0, _MAX_FRAMES * FRAME_BYTES // 2, BLOCK)


def peaks(pcm: bytes) -> bytes:
    """The peak of each whole block of pcm_s16le at 24 kHz, as int16 of this machine."""
    size = FRAME_BYTES * _MAX_FRAMES
    return b"".join(_peaks(pcm[start : start + size]) for start in range(0, len(pcm), size))


def peaks_of_each(pieces: Sequence[bytes]) -> list[bytes]:
    """`peaks` of each of several pieces, most of which are of whole frames."""
    found = peaks(b"".join([pcm for pcm in pieces if not len(pcm) % FRAME_BYTES]))
    each: list[bytes] = []
    start = 0
    for pcm in pieces:
        frames, rest = divmod(len(pcm), FRAME_BYTES)
        if rest:
            each.append(peaks(pcm))
        else:
            end = start + frames * FRAME_PEAKS_BYTES
            each.append(found[start:end])
            start = end
    return each


def _peaks(pcm: bytes) -> bytes:
    blocks = len(pcm) // _BLOCK_BYTES
    if not blocks:
        return b""
    # abs(-32 768) overflows and stays negative, which is harmless: neighbouring samples are loud too.
    samples = np.abs(np.frombuffer(pcm, "<i2", blocks * BLOCK))
    loudest: bytes = np.maximum.reduceat(samples, _STARTS[:blocks]).astype(np.int16, copy=False).tobytes()
    return loudest
