"""A draw for every row in one kernel: temperature, top-k, top-p, Gumbel noise, the likeliest.

The rules and the noise of `sampling.draw`. Instead of sorting, it searches the threshold bit by bit over integers in
the order of the logits: the k-th largest logit for top-k, and for top-p the smallest that leaves enough probability.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from agent_tts.model.kernels.launch import launch, overlap, power_of_2, wait
from agent_tts.model.sampling import FRAME_STRIDE, GAMMA, MIX_1, MIX_2, Warp

_GAMMA, _MIX_1, _MIX_2 = tl.constexpr(GAMMA), tl.constexpr(MIX_1), tl.constexpr(MIX_2)
_FRAME_STRIDE = tl.constexpr(FRAME_STRIDE)


@triton.jit
def _shift(x, BITS: tl.constexpr):
    return (x >> BITS) & ((1 << (64 - BITS)) - 1)


@triton.jit
def _mix(x):
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


@triton.jit
def _draw(
    logits,  # [B, SIZE]
    temperatures,  # float32[B]
    top_ks,  # int64[B]
    top_ps,  # float32[B]
    seeds,  # int64[B]
    frames,  # int64[B]
    out,  # int64[B]
    codebook,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    row = tl.program_id(0)
    code = tl.arange(0, BLOCK)
    ok = code < SIZE
    temperature, top_k, top_p = tl.load(temperatures + row), tl.load(top_ks + row), tl.load(top_ps + row)
    start = _mix(tl.load(seeds + row) + (tl.load(frames + row) * _FRAME_STRIDE + codebook + 1) * _GAMMA)
    noise = (_shift(_mix(start + (code + 1).to(tl.int64) * _GAMMA), 41).to(tl.float32) + 0.5) / 8388608
    noise = -tl.log(-tl.log(noise))
    wait(OVERLAP)
    raw = tl.load(logits + row * SIZE + code, mask=ok, other=float("-inf"))
    x = raw.to(tl.float32)
    if temperature != 0:
        # Integers in the order of the floats, from 0; -0.0 counts as 0.0, as it does for floats.
        BITS: tl.constexpr = raw.dtype.primitive_bitwidth
        bits = (x + 0.0).to(tl.int32, bitcast=True) >> (32 - BITS)
        HALF: tl.constexpr = 1 << (BITS - 1)
        key = (tl.where(bits < 0, bits ^ (HALF - 1), bits)).to(tl.int64) + HALF
        key = tl.where(ok, key, -1)
        x = x / temperature
        if (top_k > 0) & (top_k < SIZE):
            threshold = tl.zeros((), tl.int64)
            for step in range(0, BITS, 2):  # two bits a time: three counts in one sum
                unit = tl.full((), 1, tl.int64) << (BITS - 2 - step)
                counts = (key >= threshold + unit).to(tl.int64)
                counts += (key >= threshold + 2 * unit).to(tl.int64) << 20
                counts += (key >= threshold + 3 * unit).to(tl.int64) << 40
                counts = tl.sum(counts, 0)
                passed = ((counts & 0xFFFFF) >= top_k).to(tl.int64)
                passed += (((counts >> 20) & 0xFFFFF) >= top_k).to(tl.int64)
                passed += ((counts >> 40) >= top_k).to(tl.int64)
                threshold += passed * unit
            x = tl.where(key >= threshold, x, float("-inf"))
        if top_p < 1:
            power = tl.exp(x - tl.max(x, 0))
            outside = (1 - top_p) * tl.sum(power, 0)
            below = tl.zeros((), tl.int64)  # the largest integer with too little probability at and below it
            for step in range(BITS):
                unit = tl.full((), 1, tl.int64) << (BITS - 1 - step)
                below += tl.where(tl.sum(tl.where(key < below + unit, power, 0), 0) <= outside, unit, 0)
            x = tl.where((key >= below) | (key == tl.max(key, 0)), x, float("-inf"))
        x += noise
    tl.store(out + row, tl.argmax(x, 0).to(tl.int64))


def draw(logits: Tensor, how: Warp, seed: Tensor, frame: Tensor, codebook: int) -> Tensor:
    """`sampling.draw`: [B, V] -> int64[B]."""
    out = seed.new_empty(len(logits))
    size = logits.shape[1]
    launch(
        _draw, (len(logits),),
        logits=logits, temperatures=how.temperature, top_ks=how.top_k, top_ps=how.top_p, seeds=seed, frames=frame,
        out=out, codebook=codebook, SIZE=size, BLOCK=power_of_2(size), num_warps=8, **overlap(logits.device),
    )  # fmt: skip
    return out
