"""An untrusted audio file -> samples, decoded in a restricted child process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loguru import logger

from agent_tts.errors import Internal, InvalidRequest
from agent_tts.events import SAMPLE_RATE
from agent_tts.processes import run_module
from agent_tts.voices.decode_child import MAX_CHANNELS, MAX_RATE, MIN_RATE, Refusal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MIN_S = 1.0
SILENCE = 1e-3  # a peak of -60 dB; full scale is 1
TIMEOUT_S = 10.0

_FORMATS = "WAV, FLAC, MP3, Ogg (Opus, Vorbis), MP4 or M4A (AAC), WebM"
_REFUSALS = {
    Refusal.FORMAT: f"it has to be {_FORMATS}",
    Refusal.TRACK: f"it has to hold a mono or stereo audio track of {MIN_RATE} to {MAX_RATE} Hz, as {_FORMATS}",
    Refusal.DAMAGED: f"it is damaged, or not of the format that its header names; it has to be {_FORMATS}",
    Refusal.LIMITS: "it cannot be decoded within the limits of memory and time",
}


async def decode(clip: bytes, *, max_s: float) -> NDArray[np.float32]:
    """The bytes of an audio file -> float32[n], 24 kHz mono, -1..1. Cancelling it is safe: no process is left.

    Args:
        clip: untrusted; the caller bounds its size.
        max_s: longest audio; decoding stops there.
    Raises:
        InvalidRequest: the clip is not allowed; the message says what is.
    """
    import numpy as np

    # One extra sample: the rate of a clip need not divide 24 kHz.
    most = 1 + 4 * MAX_CHANNELS * (round(max_s * SAMPLE_RATE) + 1)
    try:
        done = await run_module(
            "agent_tts.voices.decode_child", str(max_s), data=clip, output_bytes=most, timeout_s=TIMEOUT_S
        )
    except TimeoutError:
        raise _refused(_REFUSALS[Refusal.LIMITS]) from None
    if done.code == Refusal.TOO_LONG:
        raise _refused(f"it has to be {MIN_S:g} to {max_s:g} seconds long; it is longer")
    if done.code in _REFUSALS:
        logger.debug("clip refused: {} {}", Refusal(done.code).name, done.errors)
        raise _refused(_REFUSALS[Refusal(done.code)])
    if done.code < 0:
        logger.warning("the clip decoder was ended by signal {}", -done.code)
        raise _refused(_REFUSALS[Refusal.LIMITS])
    if done.code != 0:
        logger.error("the clip decoder failed with exit code {}: {}", done.code, done.errors)
        raise Internal("a fault of this node; see its log")
    channels = done.output[0]
    waveform: NDArray[np.float32] = np.frombuffer(done.output, "<f4", offset=1).reshape(-1, channels).mean(axis=1)
    if len(waveform) < MIN_S * SAMPLE_RATE:
        raise _refused(f"it has to be {MIN_S:g} to {max_s:g} seconds long; it is shorter")
    if not np.isfinite(waveform).all():
        raise _refused("it has samples that are not finite numbers")
    if np.abs(waveform).max() < SILENCE:
        raise _refused("it is silent")
    return waveform.clip(-1, 1)


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(f"audio_sample: {why}", "audio_sample")
