"""Whether an audio file is synthetic speech: by the comment of a node, and by its watermark."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic import BaseModel, Field

from agent_tts.errors import Internal
from agent_tts.sound.provenance import has_mark
from agent_tts.voices.enroll import decode, output_of, run_child

DETECT_TIMEOUT_S = 120.0
MAX_ANSWER_BYTES = 4_096
MARKED = 0.5  # of the audio carries a watermark: the clip has one


class FoundWatermark(BaseModel):
    share: float = Field(ge=0, le=1, description="how much of the audio carries the watermark")
    message: int = Field(description="its 16 bits, random where there is no watermark")


class Detection(BaseModel):
    """What shows that a file is synthetic. Nothing found proves nothing: a comment can be removed."""

    synthetic: bool = Field(description="a comment or a watermark was found")
    comment: bool = Field(description="the file says in a comment that a node made it")
    watermark: FoundWatermark | None = Field(description="null: this node looks for none")


async def detect(clip: bytes, folder: Path | None, *, max_s: float) -> Detection:
    """Look for marks in the bytes of an untrusted audio file. Cancelling it is safe.

    Args:
        folder: with AudioSeal's detector; None looks for no watermark, and does not decode the file.
        max_s: the longest file that is decoded.
    Raises:
        InvalidRequest, AtCapacity: see `decode`.
        SettingsError: the detector cannot be used.
        Internal: it failed or took too long.
    """
    comment = await asyncio.to_thread(has_mark, clip)
    found = None if folder is None else await _watermark(clip, folder, max_s)
    is_marked = found is not None and found.share > MARKED
    return Detection(synthetic=comment or is_marked, comment=comment, watermark=found)


async def _watermark(clip: bytes, folder: Path, max_s: float) -> FoundWatermark:
    waveform = await decode(clip, max_s=max_s)
    data = waveform.astype("<f4").tobytes()
    limits = {"output_bytes": MAX_ANSWER_BYTES, "timeout_s": DETECT_TIMEOUT_S}
    try:
        done = await run_child("model_child", "watermark", str(folder), data=data, **limits)
    except TimeoutError:
        raise Internal(f"looking for a watermark took more than {DETECT_TIMEOUT_S:g} s") from None
    return FoundWatermark.model_validate_json(output_of(done, "the detector"))
