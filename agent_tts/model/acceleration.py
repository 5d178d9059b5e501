"""Which way the steps of a loaded model run: the one place that chooses."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from agent_tts.model.speech import SpeechModel


def can_fuse(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether there are fused kernels for a frame model: on a GPU, in bfloat16, with triton."""
    return device.type == "cuda" and dtype == torch.bfloat16 and find_spec("triton") is not None


def accelerate(model: SpeechModel) -> bool:
    """Puts fused kernels in the place of modules where they can run; says whether.

    Joins the weights of the frame model in place; the codec's kernels keep a copy of theirs, 0.2 GB.
    """
    weight = model.frame.talker.codec_head.weight
    if not can_fuse(weight.device, weight.dtype):
        return False
    put_kernels(model)
    return True


def put_kernels(model: SpeechModel) -> None:
    """The same, whatever the device: on the meta device, for a rehearsal."""
    from agent_tts.model.fused import fuse

    fuse(model.frame)
    if next(model.codec.parameters()).dtype != torch.float32:  # its tiles are for half precision
        from agent_tts.model.codec_fast import FastCodec

        model.decode = FastCodec(model.codec).step
