"""What the LoRA adapters of the rows add to a product, in two kernels: the values of `adapters.AdaptedLinear`.

The low-rank matrices of all adapters lie side by side. A step of 64 rows with 8 adapters of rank 16 reads 4 % of the
bytes of the layer's weights besides; programs whose rows have no adapter end at once.
"""

from __future__ import annotations

from math import gcd

import triton
import triton.language as tl
from torch import Tensor, float32

from agent_tts.model.adapters import LowRank
from agent_tts.model.kernels.launch import launch, overlap, power_of_2, wait

_MOST_ROWS = 64  # of a program
_SPLITS, _INPUTS = 4, 128  # programs that share the inputs, and how many each adds at a time
_COLUMNS, _READ = 16, 64  # columns that a program computes, and that it adds at a time
_OUTPUTS = 128


@triton.jit
def _into_columns(
    x,  # [M, K]
    down,  # [GROUPS R, K]
    places,  # int64[M]: the adapter of each row; -1: none
    parts,  # float32[SPLITS, M, GROUPS R]: sums over a split of K
    M,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,  # GROUPS R
    R: tl.constexpr,  # columns of all adapters
    RANK: tl.constexpr,  # columns of one
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program gives BLOCK_C columns of BLOCK_M rows over its split of K, if they are of an adapter of such a row."""
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(2)
    ok_m, ok_c = m < M, column < COLUMNS
    SPAN: tl.constexpr = (K + SPLITS * BLOCK_K - 1) // (SPLITS * BLOCK_K) * BLOCK_K
    begin = split * SPAN
    wait(OVERLAP)
    place = tl.load(places + m, mask=ok_m, other=-1).to(tl.int32)
    own = (place[:, None] == (column % R // RANK)[None, :]) & ok_c[None, :]
    if tl.max(tl.max(own.to(tl.int32), 1), 0) > 0:
        acc = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
        for start in range(begin, tl.minimum(begin + SPAN, K), BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            ok_k = k < K
            rows = tl.load(x + m[:, None] * K + k[None, :], mask=ok_m[:, None] & ok_k[None, :], other=0)
            weights = tl.load(down + column[None, :] * K + k[:, None], mask=ok_c[None, :] & ok_k[:, None], other=0)
            acc = tl.dot(rows, weights, acc, input_precision="ieee")
        at = (split * M + m[:, None]) * COLUMNS + column[None, :]
        tl.store(parts + at, acc, mask=ok_m[:, None] & ok_c[None, :])


@triton.jit
def _out_of_columns(
    parts,  # float32[SPLITS, M, GROUPS R]
    up,  # [N, R]
    places,  # int64[M]
    residual,  # [M, N], added last; None: nothing is
    out,  # [M, N]: is added to
    M,
    N: tl.constexpr,
    SECOND: tl.constexpr,  # the first outputs of the second and of the third group
    THIRD: tl.constexpr,
    COLUMNS: tl.constexpr,
    R: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    SPLITS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program adds to BLOCK_N outputs, which are of one group, of BLOCK_M rows."""
    first = tl.program_id(0) * BLOCK_N
    n = first + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    ok_m = m < M
    group = (first >= SECOND).to(tl.int32) + (first >= THIRD).to(tl.int32)
    wait(OVERLAP)
    place = tl.load(places + m, mask=ok_m, other=-1).to(tl.int32)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if tl.max(place, 0) >= 0:
        for start in range(0, R, BLOCK_C):
            column = start + tl.arange(0, BLOCK_C)
            # Of other columns nothing has been written.
            own = (place[:, None] == (column // RANK)[None, :]) & (column < R)[None, :]
            low = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
            for split in tl.static_range(SPLITS):
                at = (split * M + m[:, None]) * COLUMNS + (group * R + column)[None, :]
                low += tl.load(parts + at, mask=own, other=0)
            weights = tl.load(up + n[None, :] * R + column[:, None], mask=(column < R)[:, None], other=0)
            acc = tl.dot(low.to(weights.dtype), weights, acc, input_precision="ieee")
    kind = out.dtype.element_ty
    at = m[:, None] * N + n[None, :]
    changed = (place >= 0)[:, None] & (n >= 0)[None, :]
    if residual is not None:
        changed = ok_m[:, None] & (n >= 0)[None, :]
    result = (tl.load(out + at, mask=changed, other=0).to(tl.float32) + acc.to(kind).to(tl.float32)).to(kind)
    if residual is not None:
        result = (result.to(tl.float32) + tl.load(residual + at, mask=changed, other=0).to(tl.float32)).to(kind)
    tl.store(out + at, result, mask=changed)


def add_low_rank(
    x: Tensor, out: Tensor, residual: Tensor | None = None, *, low: LowRank, rank: int, places: Tensor
) -> Tensor:
    """Adds to `out` what the rows' adapters add to it, and gives it.

    The residual is added here and not with the product: the sum of both is large, and rounded once.

    Args:
        x: contiguous [M, inputs].
        out: [M, N], its product with parallel layers.
        residual: [M, N], added to all rows.
        low: of at most three layers.
        rank: columns of an adapter.
        places: int64[M], the adapter of each row; -1 is none.
    """
    down, up, groups = low
    count, inputs = x.shape
    columns, outputs = len(down), out.shape[1]
    everyone = columns // len(groups)
    second, third, *_ = *(sum(groups[: place + 1]) for place in range(len(groups))), outputs, outputs
    height = max(16, min(_MOST_ROWS, power_of_2(count)))
    width = gcd(_OUTPUTS, *groups)
    down_tiles = triton.cdiv(count, height)
    parts = x.new_empty(_SPLITS, count, columns, dtype=float32)
    shared = {
        "places": places, "parts": parts, "M": count, "COLUMNS": columns, "R": everyone, "RANK": rank,
        "BLOCK_M": height, "SPLITS": _SPLITS, **overlap(x.device),
    }  # fmt: skip
    launch(
        _into_columns, (triton.cdiv(columns, _COLUMNS), down_tiles, _SPLITS),
        x=x, down=down, K=inputs, BLOCK_C=_COLUMNS, BLOCK_K=_INPUTS, num_warps=4, num_stages=4, **shared,
    )  # fmt: skip
    launch(
        _out_of_columns, (outputs // width, down_tiles),
        up=up, residual=residual, out=out, N=outputs, SECOND=second, THIRD=third, BLOCK_N=width, BLOCK_C=_READ,
        num_warps=4, num_stages=2, **shared,
    )  # fmt: skip
    return out
