"""Draws a code for every row at once; the parameters of the rows are tensors, so nothing waits for the device.

The processors and their order are those of Hugging Face's `generate`, on float32 logits. The noise is a function of
(seed, frame, codebook, code) alone, so a request draws the same codes in any batch and with any pauses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NEVER = float("-inf")  # the logit of a code that must not be drawn

# SplitMix64 (Steele, Lea, Flood 2014) in wrapping 64-bit integers.
GAMMA = 0x9E3779B97F4A7C15 - 2**64
MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
MIX_2 = 0x94D049BB133111EB - 2**64
FRAME_STRIDE = 64  # counters of a frame: more than it has codebooks

SAMPLING_INTS, SAMPLING_FLOATS = 4, 5  # numbers of a `SamplingParams`


@dataclass(frozen=True, slots=True)
class Warp:
    temperature: Tensor  # float32[B]
    top_k: Tensor  # int64[B]
    top_p: Tensor  # float32[B]


@dataclass(frozen=True, slots=True)
class SamplingRows:
    seed: Tensor  # int64[B], the low 64 bits in two's complement
    repetition_penalty: Tensor  # float32[B]
    min_frames: Tensor  # int64[B]
    talker: Warp
    predictor: Warp

    @staticmethod
    def of(counts: Tensor, sampling_params: Tensor) -> SamplingRows:
        """Views of what `SamplingParams.numbers` gives, a column for each row: int64[4, B] and float32[5, B]."""
        seed, min_frames, top_k, predictor_top_k = counts
        penalty, temperature, top_p, predictor_temperature, predictor_top_p = sampling_params
        talker = Warp(temperature, top_k, top_p)
        return SamplingRows(
            seed, penalty, min_frames, talker, Warp(predictor_temperature, predictor_top_k, predictor_top_p)
        )


def penalise(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Repetition penalty: float32[B, V], bool[B, V] codes already drawn, float32[B]."""
    penalty = penalty[:, None]
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def forbid(logits: Tensor, codes: Tensor) -> Tensor:
    """Takes codes out of the draw: bool[V] or bool[B, V]."""
    return logits.masked_fill(codes, NEVER)


def warp(logits: Tensor, how: Warp) -> Tensor:
    """Temperature, then top-k, then top-p; a row at temperature 0 keeps the order of its logits."""
    greedy = how.temperature == 0
    logits = logits / torch.where(greedy, 1.0, how.temperature)[:, None]
    ordered, order = logits.sort(dim=-1)  # ascending: top-k and top-p both cut the front

    size = logits.shape[-1]
    kept = torch.where(how.top_k > 0, how.top_k.clamp(max=size), size)
    threshold = ordered.gather(-1, (size - kept)[:, None])
    logits, ordered = forbid(logits, logits < threshold), forbid(ordered, ordered < threshold)

    outside = ordered.softmax(dim=-1).cumsum(dim=-1) <= (1 - how.top_p)[:, None]
    outside &= (how.top_p < 1)[:, None]
    outside[:, -1] = False  # the likeliest stays, whatever top-p says
    return forbid(logits, torch.zeros_like(outside).scatter(-1, order, outside))


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * MIX_1
    x = (x ^ _shift(x, 27)) * MIX_2
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # of int64, as if it were unsigned


def uniform(seed: Tensor, frame: Tensor, codebook: int, size: int) -> Tensor:
    """Uniform noise strictly between 0 and 1: int64[B] seeds and frames -> float32[B, size]."""
    draw = _mix(seed + (frame * FRAME_STRIDE + codebook + 1) * GAMMA)
    code = torch.arange(1, size + 1, device=seed.device)
    bits = _shift(_mix(draw[:, None] + code * GAMMA), 41)  # 23 bits: with the half below, exact in float32
    return (bits.float() + 0.5) / 2**23


def draw(logits: Tensor, how: Warp, seed: Tensor, frame: Tensor, codebook: int) -> Tensor:
    """One code a row: float32[B, V] -> int64[B]. The likeliest at temperature 0, else a draw by the Gumbel-max rule."""
    warped = warp(logits, how)
    noise = -torch.log(-torch.log(uniform(seed, frame, codebook, logits.shape[-1])))
    noise = torch.where((how.temperature == 0)[:, None], 0.0, noise)
    return (warped + noise).argmax(dim=-1)
