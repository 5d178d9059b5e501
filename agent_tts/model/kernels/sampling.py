"""A draw for every row in one kernel: temperature, top-k, top-p, Gumbel noise, the likeliest.

The rules and the noise of `sampling.draw`. Instead of sorting, it searches the threshold among integers in the order of
the logits: the k-th largest logit for top-k, and for top-p the smallest that leaves enough probability. Sums and maxima
are of 32-bit integers, for which a warp has one instruction.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from agent_tts.model.kernels.launch import launch, overlap, power_of_2, wait
from agent_tts.model.kernels.linear import Hidden, normed
from agent_tts.model.layers import RMSNorm
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
def noise_of(seed, frame, codebook, code, temperature):
    """Gumbel noise of these codes, float32; 0 at temperature 0.

    Ahead of a `wait`: it is the branch that keeps the compiler from moving the logarithms behind it.
    """
    noise = tl.zeros(code.shape, tl.float32)
    if temperature != 0:
        start = _mix(seed + (frame * _FRAME_STRIDE + codebook + 1) * _GAMMA)
        noise = (_shift(_mix(start + (code + 1).to(tl.int64) * _GAMMA), 41).to(tl.float32) + 0.5) / 8388608
        noise = -tl.log(-tl.log(noise))
    return noise


@triton.jit
def _ordered(x):
    """int32 in the order of floats; -0.0 counts as 0.0, as it does for floats."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _kth(key, k, least):
    """The k-th largest of integers: int32[BLOCK], of which `least` is one that is not larger.

    Or another number that leaves the same k. The search starts between the largest and one that many are not below: the
    least of the maxima of groups, of which each has one such integer.
    """
    GROUPS: tl.constexpr = min(key.shape[0], 128)
    maxima = tl.max(tl.reshape(key, [GROUPS, key.shape[0] // GROUPS], can_reorder=True), 1)
    high = tl.max(maxima, 0)
    low = tl.where(k <= GROUPS, tl.min(maxima, 0), least)
    while low < high:
        third = ((high - low).to(tl.uint32, bitcast=True) // 3).to(tl.int32, bitcast=True)
        first, second = low + third + 1, high - third
        counts = tl.sum((key >= first).to(tl.int32) + ((key >= second).to(tl.int32) << 16), 0)
        of_first, of_second = counts & 0xFFFF, counts >> 16
        passed_first, passed_second = of_first >= k, of_second >= k
        low = tl.where(passed_second, second, tl.where(passed_first, first, low))
        high = tl.where(passed_second, high, tl.where(passed_first, second, first) - 1)
        high = tl.where((of_first == k) | (of_second == k), low, high)
    return low


@triton.jit
def drawn(x, ok, noise, temperature, top_k, top_p, SIZE: tl.constexpr, BITS: tl.constexpr):
    """The code drawn of logits: float32[BLOCK], -inf where not `ok`, of which the upper BITS may be set."""
    if temperature != 0:
        LEAST: tl.constexpr = -(1 << (BITS - 1))
        key = tl.where(ok, _ordered(x) >> (32 - BITS), LEAST)
        least = tl.full((), LEAST, tl.int32)
        x = x / temperature
        if (top_k > 0) & (top_k < SIZE):
            least = _kth(key, top_k.to(tl.int32), least)
            x = tl.where(key >= least, x, float("-inf"))
        if top_p < 1:
            power = tl.exp(x - tl.max(x, 0))
            outside = (1 - top_p) * tl.sum(power, 0)
            high = tl.max(key, 0)
            while least < high:  # for the largest integer with too little probability below it
                half = ((high - least).to(tl.uint32, bitcast=True) // 2).to(tl.int32, bitcast=True)
                middle = high - half
                enough = tl.sum(tl.where(key < middle, power, 0), 0) <= outside
                least = tl.where(enough, middle, least)
                high = tl.where(enough, high, middle - 1)
            x = tl.where(key >= least, x, float("-inf"))
        x += noise
    rank = _ordered(x)
    code = tl.where(rank == tl.max(rank, 0), tl.arange(0, x.shape[0]), SIZE - 1)
    return tl.minimum(tl.min(code, 0), SIZE - 1)  # a code also of logits that are not numbers


@triton.jit(do_not_specialize=["codebook", "column"])
def _draw(
    logits,  # [B, SIZE]
    rows,  # int64[B], of the parameters; None: 0 to B - 1
    temperatures,  # float32[rows]
    top_ks,  # int64[rows]
    top_ps,  # float32[rows]
    seeds,  # int64[rows]
    frames,  # int64[rows]
    out,  # int64[B, STRIDE], of which one column is written
    column,
    table,  # [SIZE, WIDTH], or None: nothing follows
    following,  # [B, WIDTH]: of the table, at the codes drawn
    norm,  # [WIDTH]: the weight of the norm of these; or None
    after_norm,  # [B, WIDTH]: what that norm gives
    eps,
    codebook,
    STRIDE: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDE: tl.constexpr,  # power of 2
    OVERLAP: tl.constexpr,
):
    at = tl.program_id(0)
    row = at if rows is None else tl.load(rows + at)
    code = tl.arange(0, BLOCK)
    ok = code < SIZE
    temperature, top_k, top_p = tl.load(temperatures + row), tl.load(top_ks + row), tl.load(top_ps + row)
    noise = noise_of(tl.load(seeds + row), tl.load(frames + row), codebook, code, temperature)
    place = tl.arange(0, WIDE)
    inside = place < WIDTH
    scale = None if norm is None else tl.load(norm + place, mask=inside, other=0)
    wait(OVERLAP)
    raw = tl.load(logits + at * SIZE + code, mask=ok, other=float("-inf"))
    BITS: tl.constexpr = raw.dtype.primitive_bitwidth
    one = drawn(raw.to(tl.float32), ok, noise, temperature, top_k, top_p, SIZE, BITS)
    tl.store(out + at * STRIDE + column, one.to(tl.int64))
    if table is not None:
        vector = tl.load(table + one * WIDTH + place, mask=inside, other=0)
        tl.store(following + at * WIDTH + place, vector, mask=inside)
        if scale is not None:
            wide = vector.to(tl.float32)
            result = normed(wide, scale, tl.sum(wide * wide), eps, WIDTH)
            tl.store(after_norm + at * WIDTH + place, result, mask=inside)


def draw(logits: Tensor, how: Warp, seed: Tensor, frame: Tensor, codebook: int) -> Tensor:
    """`sampling.draw`: [B, V] -> int64[B]."""
    out = seed.new_empty(len(logits), 1)
    draw_following(logits, how, seed, frame, codebook, None, out, 0, None)
    return out[:, 0]


def draw_following(
    logits: Tensor,
    how: Warp,
    seed: Tensor,
    frame: Tensor,
    codebook: int,
    rows: Tensor | None,
    out: Tensor,
    column: int,
    table: Tensor | None,
    norm: RMSNorm | None = None,
) -> Hidden:
    """`sampling.draw` for rows int64[B], or all, into a column of int64[B, n]; gives the vectors of the codes.

    These are of the table [V, H]: [B, H], with what the norm makes of them, if there is one; without a table, nothing
    of use.
    """
    size, width = logits.shape[1], 1 if table is None else table.shape[1]
    following = logits.new_empty(0) if table is None else table.new_empty(len(logits), width)
    after_norm = None if table is None or norm is None else torch.empty_like(following)
    launch(
        _draw, (len(logits),),
        logits=logits, rows=rows, temperatures=how.temperature, top_ks=how.top_k, top_ps=how.top_p, seeds=seed,
        frames=frame, out=out, column=column, table=table, following=following, codebook=codebook,
        norm=None if after_norm is None or norm is None else norm.weight, after_norm=after_norm,
        eps=0.0 if norm is None else norm.eps,
        STRIDE=out.shape[1], SIZE=size, BLOCK=power_of_2(size), WIDTH=width, WIDE=power_of_2(width),
        num_warps=4, **overlap(logits.device),
    )  # fmt: skip
    return Hidden(following, normed=after_norm)
