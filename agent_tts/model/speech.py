"""One frame of speech as one function: from the rows that run to their codes, samples and masks. Can be captured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from agent_tts.model.codec import Codec, CodecState
from agent_tts.model.frame import Frame, FrameModel
from agent_tts.model.frame_state import FrameState
from agent_tts.model.kernels.architectures import OLDEST, of_nvidia
from agent_tts.model.talker import PromptPositions
from agent_tts.model.watermark import Watermark

PEAK = 32_767  # of int16


@dataclass(frozen=True, slots=True)
class SpeechState:
    """All that the rows keep."""

    frame: FrameState
    codec: CodecState
    watermark: CodecState | None = None  # None without a watermark

    def restart(self, rows: Tensor) -> None:
        """Puts the sound of rows, int64[n], back to the start of a stream."""
        self.codec.reset(rows)
        if self.watermark is not None:
            self.watermark.reset(rows)


@dataclass(frozen=True, slots=True)
class SpeechFrame(Frame):
    """80 ms of every row; where it is `finite`, its samples are finite, too."""

    pcm: Tensor  # int16[B, 1920]; zeros unless `spoke`


class SpeechModel:
    """A frame model, its codec, and the watermark of its sound, if there is one, as one."""

    def __init__(self, frame: FrameModel, codec: Codec, watermark: Watermark | None = None) -> None:
        self.frame = frame
        self.codec = codec
        self.watermark = watermark
        # As Codec.step; `accelerate` may put a faster one here.
        self.decode: Callable[[CodecState, Tensor, Tensor, Tensor | None], Tensor] = codec.step
        # As Watermark.step, likewise. None without a watermark.
        self.mark = watermark.step if watermark else None

    def init_state(self, rows: int, max_model_len: int, blocks: int | None = None) -> SpeechState:
        """Empty rows; see `FrameModel.init_state`."""
        weight = next(self.codec.parameters())
        frame = self.frame.init_state(rows, max_model_len, blocks)
        parts = [part.init_state(rows, weight.device, weight.dtype) for part in (self.codec, self.watermark) if part]
        return SpeechState(frame, *parts)

    @torch.inference_mode()
    def step(
        self, state: SpeechState, run: Tensor, rows: Tensor | None = None, prompts: PromptPositions | None = None
    ) -> SpeechFrame:
        """One frame for the rows of a mask bool[B], with samples; see `FrameModel.step`."""
        frame = self.frame.step(state.frame, run, rows=rows, prompts=prompts)
        sound = self.decode(state.codec, frame.codes, frame.spoke, rows)
        if self.mark is not None and state.watermark is not None:
            sound = sound + self.mark(state.watermark, sound, frame.spoke, rows)
        finite = frame.finite & sound.isfinite().all(-1)
        pcm = (sound.nan_to_num().clamp(-1, 1) * PEAK).round().to(torch.int16)
        return SpeechFrame(frame.codes, frame.spoke, finite, frame.ended, frame.starved, frame.full, pcm)


def can_fuse(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether fused kernels can run a frame model."""
    return why_not_fused(device, dtype) is None


def why_not_fused(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why PyTorch's modules run a frame model, not fused kernels. None where these can.

    A GPU of AMD is a `cuda` device to PyTorch, with a capability that means another thing. A GPU that is not here is
    taken for one of NVIDIA that can.
    """
    if device.type != "cuda":
        return f"fused kernels run on a GPU of NVIDIA, not on {device.type}"
    if torch.version.hip is not None:
        return "fused kernels run on a GPU of NVIDIA, not by HIP"
    if torch.cuda.is_available():
        known = of_nvidia(torch.cuda.get_device_capability(device))
        if (known.capability or 0) < OLDEST:
            return f"fused kernels need a GPU from sm_{OLDEST} on, not {known.name}"
    if dtype != torch.bfloat16:
        return f"fused kernels compute in bfloat16, not {str(dtype).removeprefix('torch.')}"
    return None if find_spec("triton") else "triton is not installed"


def accelerate(model: SpeechModel) -> bool:
    """Replaces modules by fused kernels where these can run; whether they can. The codec's copy its weights."""
    weight = model.frame.talker.codec_head.weight
    if can_fuse(weight.device, weight.dtype):
        put_kernels(model)
        return True
    return False


def put_kernels(model: SpeechModel) -> None:
    """As `accelerate`, on any device: on the meta device, to compile the kernels ahead."""
    from agent_tts.model.fused import fuse

    fuse(model.frame)
    if next(model.codec.parameters()).dtype != torch.float32:  # the codec's tiles are for 16-bit numbers
        from agent_tts.model.codec_fast import FastCodec

        model.decode = FastCodec(model.codec).step
        if model.watermark is not None:
            from agent_tts.model.watermark_fast import FastWatermark

            model.mark = FastWatermark(model.watermark).step
