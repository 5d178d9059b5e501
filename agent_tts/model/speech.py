"""One frame of speech as one function: from the rows that run to their codes, samples and masks. Can be captured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from agent_tts.model.adapters import AdapterBank
from agent_tts.model.codec import Codec, CodecState
from agent_tts.model.config import PEAK
from agent_tts.model.frame import Frame, FrameModel
from agent_tts.model.frame_state import FrameState
from agent_tts.model.kernels.architectures import OLDEST, OLDEST_E4M3, of_nvidia
from agent_tts.model.quantised import NOTHING, EightBits
from agent_tts.model.talker import PromptPositions
from agent_tts.model.watermark import Watermark


@dataclass(frozen=True, slots=True)
class SpeechState:
    frame: FrameState
    codec: CodecState
    watermark: CodecState | None = None  # None without a watermark

    def restart(self, rows: Tensor) -> None:
        """Puts the sound of rows, int64[n], back to the start of a stream."""
        self.codec.reset(rows)
        if self.watermark is not None:
            self.watermark.reset(rows)


def pack(frame: Frame, sound: Tensor) -> Tensor:
    """What the host needs of 80 ms of every row, for one copy: int16[B, K + 1922].

    K codes; 1920 samples of the sound [B, 1920], zeros unless the row spoke; whether it ended; whether it is finite.
    Where a row is finite, its samples were, too.
    """
    finite = frame.finite & sound.isfinite().all(-1)
    pcm = (sound.nan_to_num().clamp(-1, 1) * PEAK).round().to(torch.int16)
    masks = torch.stack((frame.ended, finite), dim=1)
    return torch.cat((frame.codes.to(torch.int16), pcm, masks.to(torch.int16)), dim=1)


class SpeechModel:
    """A frame model, its codec, and the watermark of its sound, if there is one, as one."""

    def __init__(self, frame: FrameModel, codec: Codec, watermark: Watermark | None = None) -> None:
        self.frame = frame
        self.codec = codec
        self.watermark = watermark
        # What does as Codec.step does; `accelerate` may put a faster one here, and in the next two.
        self.decode: Callable[[CodecState, Tensor, Tensor, Tensor | None], Tensor] = codec.step
        # What does as Watermark.step does. None without a watermark.
        self.mark = watermark.step if watermark else None
        self.pack: Callable[[Frame, Tensor], Tensor] = pack  # what does as `pack` does

    def init_state(self, rows: int, max_model_len: int, blocks: int | None = None) -> SpeechState:
        """Empty rows; see `FrameModel.init_state`."""
        weight = next(self.codec.parameters())
        frame = self.frame.init_state(rows, max_model_len, blocks)
        parts = [part.init_state(rows, weight.device, weight.dtype) for part in (self.codec, self.watermark) if part]
        return SpeechState(frame, *parts)

    @torch.inference_mode()
    def step(
        self, state: SpeechState, run: Tensor, rows: Tensor | None = None, prompts: PromptPositions | None = None
    ) -> Tensor:
        """One frame for the rows of a mask bool[B], with samples, as `pack` gives it; see `FrameModel.step`."""
        frame = self.frame.step(state.frame, run, rows=rows, prompts=prompts)
        sound = self.decode(state.codec, frame.codes, frame.spoke, rows)
        if self.mark is not None and state.watermark is not None:
            sound = sound + self.mark(state.watermark, sound, frame.spoke, rows)
        return self.pack(frame, sound)


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


def why_not_e4m3(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why nothing can be in e4m3. None where it can. Modules would convert a matrix, or a cache, at each use."""
    if why := why_not_fused(device, dtype):
        return why
    if torch.cuda.is_available():
        known = of_nvidia(torch.cuda.get_device_capability(device))
        if (known.capability or 0) < OLDEST_E4M3:
            return f"a GPU from sm_{OLDEST_E4M3} on converts such numbers, not {known.name}"
    return None


def accelerate(model: SpeechModel, adapters: AdapterBank | None = None, eight: EightBits = NOTHING) -> bool:
    """Replaces modules by fused kernels where these can run; whether they can. The codec's copy its weights."""
    weight = model.frame.talker.codec_head.weight
    if why_not_fused(weight.device, weight.dtype):
        return False
    put_kernels(model, adapters, eight)
    return True


def prepare_kernels() -> None:
    """Import what `put_kernels` does, and have triton sign its own files, as before the first launch: half a second."""
    from agent_tts.model import codec_fast, fused  # noqa: F401

    with suppress(ImportError):  # private to triton
        from triton.runtime.cache import triton_key

        triton_key()


def put_kernels(model: SpeechModel, adapters: AdapterBank | None = None, eight: EightBits = NOTHING) -> None:
    """As `accelerate`, on any device: on the meta device, to compile the kernels ahead."""
    from agent_tts.model.fused import fuse
    from agent_tts.model.kernels.frame import pack

    fuse(model.frame, adapters, eight)
    model.pack = pack
    if next(model.codec.parameters()).dtype != torch.float32:  # the codec's tiles are for 16-bit numbers
        from agent_tts.model.codec_fast import FastCodec, FastWatermark

        model.decode = FastCodec(model.codec).step
        if model.watermark is not None:
            model.mark = FastWatermark(model.watermark).step
