"""Chooses between torch modules and fused kernels for the steps of a loaded model."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from agent_tts.model.speech import SpeechModel


def can_fuse(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether fused kernels can run a frame model: on a GPU, in bfloat16, with triton."""
    return device.type == "cuda" and dtype == torch.bfloat16 and find_spec("triton") is not None


def accelerate(model: SpeechModel) -> bool:
    """Replaces modules by fused kernels where these can run; whether they can.

    Concatenates weights of the frame model in place; the codec's kernels keep a copy of theirs, 0.2 GB.
    """
    weight = model.frame.talker.codec_head.weight
    if not can_fuse(weight.device, weight.dtype):
        return False
    put_kernels(model)
    return True


def put_kernels(model: SpeechModel) -> None:
    """As `accelerate`, on any device: on the meta device, to compile the kernels ahead."""
    from agent_tts.model.fused import fuse

    fuse(model.frame)
    if next(model.codec.parameters()).dtype != torch.float32:  # the codec's tiles are for 16-bit numbers
        from agent_tts.model.codec_fast import FastCodec

        model.decode = FastCodec(model.codec).step
