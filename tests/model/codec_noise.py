"""A codec with random weights, and the distance of a computation of it from float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import torch
from torch import Tensor

from agent_tts.bench.checkpoint import SIZES, codec_config, distribution
from agent_tts.model.codec import Codec, CodecState
from agent_tts.model.config import CodecConfig
from agent_tts.model.weights import build

# Signature of `Codec.step`: state, codes int64[rows, 16] and run bool[rows] -> float32[rows, 1920].
Step = Callable[[CodecState, Tensor, Tensor], Tensor]


def synthetic_codec(device: torch.device, dtype: torch.dtype) -> Codec:
    """A codec of the released size with random weights that keep activations of order one."""
    entries = codec_config(SIZES["1.7B"])["decoder_config"]
    codec = build(Codec, CodecConfig(**{field.name: entries[field.name] for field in fields(CodecConfig)}))
    generator = torch.Generator(device).manual_seed(0)
    for ours, theirs in codec.checkpoint_names().items():
        owner, _, name = ours.rpartition(".")
        shape = tuple(codec.get_parameter(ours).shape)
        values = torch.empty(shape, device=device).normal_(*distribution(theirs, shape), generator=generator)
        setattr(codec.get_submodule(owner), name, torch.nn.Parameter(values.to(dtype), requires_grad=False))
    return codec.to(device)


def signal_to_noise(exact: Codec, other: Codec, step: Step, dtype: torch.dtype) -> float:
    """SNR in dB of the waveform against `exact`, a float32 codec, frame by frame."""
    rows = 2
    device = next(exact.parameters()).device
    reference, state = exact.init_state(rows, device, torch.float32), other.init_state(rows, device, dtype)
    run = torch.ones(rows, dtype=torch.bool, device=device)
    signal = noise = torch.zeros((), dtype=torch.float64, device=device)
    generator = torch.Generator(device).manual_seed(1)
    for codes in torch.randint(0, 2048, (90, rows, 16), generator=generator, device=device):
        expected = exact.step(reference, codes, run).double()
        signal = signal + expected.square().sum()
        noise = noise + (step(state, codes, run).double() - expected).square().sum()
    return float(10 * torch.log10(signal / noise))
