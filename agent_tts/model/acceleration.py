"""Which way the steps of a loaded model run: the one place that chooses."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from agent_tts.model.speech import SpeechModel


def accelerate(model: SpeechModel) -> bool:
    """Puts fused kernels in the place of modules where they can run (a GPU, bfloat16, triton); says whether.

    Joins the weights of the frame model in place; the codec's kernels keep a copy of theirs, 0.2 GB.
    """
    weight = model.frame.talker.codec_head.weight
    if weight.device.type != "cuda" or weight.dtype != torch.bfloat16 or find_spec("triton") is None:
        return False
    from agent_tts.model.codec_fast import FastCodec
    from agent_tts.model.fused import fuse

    fuse(model.frame)
    model.decode = FastCodec(model.codec).step
    return True
