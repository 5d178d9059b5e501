"""From samples to what a cloned voice is made of, in a process of its own: the front has no torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from agent_tts.errors import Internal, SettingsError
from agent_tts.processes import run_module

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TIMEOUT_S = 120.0
MAX_OUTPUT_BYTES = 4 << 20  # ten minutes of codes take a quarter of a megabyte


async def encode(
    waveform: NDArray[np.float32], checkpoints: Iterable[Path], *, reference: bool
) -> dict[str, NDArray[Any]]:
    """float32[n], 24 kHz mono, -> the arrays of a voice of the library. Cancelling it is safe: no process is left.

    Args:
        checkpoints: folders of the type `base`: each makes a vector of its own.
        reference: whether to make codes, too, of the clip and half a second of silence.
    Raises:
        SettingsError: a checkpoint cannot be used; the message says why.
        Internal: it failed, or took too long.
    """
    what = "reference" if reference else "vector"
    try:
        done = await run_module(
            "agent_tts.voices.encode_child",
            *(what, *map(str, checkpoints)),
            data=waveform.astype("<f4").tobytes(),
            output_bytes=MAX_OUTPUT_BYTES,
            timeout_s=TIMEOUT_S,
        )
    except TimeoutError:
        raise Internal(f"making the voice took more than {TIMEOUT_S:g} s") from None
    if done.code != 0:
        refusal, last = f"{SettingsError.__name__}: ", done.errors.rpartition("\n")[2]
        if last.startswith(refusal):
            raise SettingsError(last.removeprefix(refusal))
        logger.error("the voice encoder failed with exit code {}: {}", done.code, done.errors)
        raise Internal("a fault of this node; it has been logged")
    from safetensors.numpy import load

    return load(done.output)
