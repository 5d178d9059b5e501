"""A linear layer of talker and predictor with what precedes and follows it: norm, bias, gate, residual.

Steps are bound by bandwidth: a few rows times a matrix that is read once. So a kernel reads its part of the matrix
while the previous layer still runs. Every rounding of the separate torch operations is kept; only the order of the sums
in a dot product differs. The codec's layers round only their result, so `kernels.codec.linear` is another kernel.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from agent_tts.model.kernels.launch import launch, overlap, power_of_2, wait
from agent_tts.model.kernels.tiles import Tile, linear_tile
from agent_tts.model.layers import RMSNorm

NORM_ROWS = 1  # of at most so many rows every program computes the norm itself
_MOST_TILES = 4_096


@triton.jit
def _normed(x, weight, squares, eps, SIZE: tl.constexpr):
    """RMSNorm of float32 values, given the sum of their squares, with its two roundings."""
    scaled = (x * tl.rsqrt(squares / SIZE + eps)).to(weight.dtype)
    return (scaled.to(tl.float32) * weight.to(tl.float32)).to(weight.dtype)


@triton.jit
def _finish(out, acc, up, bias, residual, at, n, ok, GATED: tl.constexpr):
    """Bias, gate and residual, each if there is one, rounded as by the separate operations."""
    kind = out.dtype.element_ty
    if bias is not None:
        acc += tl.load(bias + n, mask=ok).to(tl.float32)
    acc = acc.to(kind).to(tl.float32)
    if GATED:
        gate = (acc / (1 + tl.exp(-acc))).to(kind).to(tl.float32)
        acc = (gate * up.to(kind).to(tl.float32)).to(kind).to(tl.float32)
    if residual is not None:
        acc += tl.load(residual + at, mask=ok).to(tl.float32)
    tl.store(out + at, acc.to(kind), mask=ok)


@triton.jit
def _rows_times_matrix(
    x,  # [M, K]
    weight,  # [N, K], or [2 N, K] if GATED: gate, then up
    norm,  # [K], or None
    bias,  # [N], or None
    residual,  # [M, N], or None
    out,  # [M, N]
    eps,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,  # all of K if there is a norm
    GATED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program computes BLOCK_N outputs of every row; a warp reads whole rows of the matrix."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    ok_n = n < N
    rows = weight + n[:, None] * K
    ok = ok_n[:, None] & (k < K)[None, :]
    first = tl.load(rows + k[None, :], mask=ok, other=0)
    if GATED:
        first_up = tl.load(rows + N * K + k[None, :], mask=ok, other=0)
    if norm is not None:
        scale = tl.load(norm + k, mask=k < K, other=0)
    wait(OVERLAP)
    for m in tl.static_range(M):
        acc = tl.zeros((BLOCK_N,), tl.float32)
        up = tl.zeros((BLOCK_N,), tl.float32)
        for start in tl.static_range(0, K, BLOCK_K):
            at = start + k
            row = tl.load(x + m * K + at, mask=at < K, other=0).to(tl.float32)
            if norm is not None:
                row = _normed(row, scale, tl.sum(row * row), eps, K).to(tl.float32)
            ok = ok_n[:, None] & (at < K)[None, :]
            tile = first if start == 0 else tl.load(rows + at[None, :], mask=ok, other=0)
            acc += tl.sum(tile.to(tl.float32) * row[None, :], 1)
            if GATED:
                tile = first_up if start == 0 else tl.load(rows + N * K + at[None, :], mask=ok, other=0)
                up += tl.sum(tile.to(tl.float32) * row[None, :], 1)
        _finish(out, acc, up, bias, residual, m * N + n, n, ok_n, GATED)


@triton.jit
def _tiles_times_matrix(
    x,  # [M, K]
    weight,  # [N, K], or [2 N, K] if GATED: gate, then up
    bias,  # [N], or None
    residual,  # [M, N], or None
    out,  # [M, N]
    parts,  # float32[tiles, SPLITS, 2 if GATED, BLOCK_M, BLOCK_N]: sums over a split
    counters,  # int32[tiles]: splits done; zero before and after
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    GATED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program gives a tile of BLOCK_M rows and BLOCK_N outputs, by the tensor cores, over its split of K.

    The last of a tile's splits puts them together, always in the same order.
    """
    split = tl.program_id(2)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    ok_m, ok_n = m < M, n < N
    SPAN: tl.constexpr = (K // BLOCK_K + SPLITS - 1) // SPLITS * BLOCK_K
    begin = split * SPAN
    wait(OVERLAP)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(begin, tl.minimum(begin + SPAN, K), BLOCK_K):
        at = start + k
        tile = tl.load(x + m[:, None] * K + at[None, :], mask=ok_m[:, None], other=0)
        columns = weight + n[None, :] * K + at[:, None]
        acc = tl.dot(tile, tl.load(columns, mask=ok_n[None, :], other=0), acc, input_precision="ieee")
        if GATED:
            up = tl.dot(tile, tl.load(columns + N * K, mask=ok_n[None, :], other=0), up, input_precision="ieee")
    ok = ok_m[:, None] & ok_n[None, :]
    at = m[:, None] * N + n[None, :]
    if SPLITS == 1:
        _finish(out, acc, up, bias, residual, at, n[None, :], ok, GATED)
    else:
        AREA: tl.constexpr = BLOCK_M * BLOCK_N
        WIDTH: tl.constexpr = AREA * (2 if GATED else 1)
        place = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        within = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        mine = parts + place * SPLITS * WIDTH + within
        tl.store(mine + split * WIDTH, acc)
        if GATED:
            tl.store(mine + split * WIDTH + AREA, up)
        tl.debug_barrier()  # the whole program has written before its leader counts
        if tl.atomic_add(counters + place, 1, sem="acq_rel") == SPLITS - 1:
            tl.store(counters + place, 0)
            acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for other in tl.static_range(SPLITS):
                # Past the first-level cache, which does not see what other processors write.
                acc += tl.load(mine + other * WIDTH, cache_modifier=".cg")
                if GATED:
                    up += tl.load(mine + other * WIDTH + AREA, cache_modifier=".cg")
            _finish(out, acc, up, bias, residual, at, n[None, :], ok, GATED)


@triton.jit
def _gate_rows(x, out, SIZE: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    """silu(first half) * second half: [M, 2 SIZE] -> [M, SIZE]."""
    row, at = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = at < SIZE
    wait(OVERLAP)
    gate = tl.load(x + row * 2 * SIZE + at, mask=ok, other=0).to(tl.float32)
    up = tl.load(x + row * 2 * SIZE + SIZE + at, mask=ok, other=0)
    gate = (gate / (1 + tl.exp(-gate))).to(up.dtype).to(tl.float32)
    tl.store(out + row * SIZE + at, (gate * up.to(tl.float32)).to(up.dtype), mask=ok)


@triton.jit
def _norm_rows(x, weight, out, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    at = tl.arange(0, BLOCK)
    ok = at < SIZE
    scale = tl.load(weight + at, mask=ok, other=0)
    wait(OVERLAP)
    at += tl.program_id(0) * SIZE
    row = tl.load(x + at, mask=ok, other=0).to(tl.float32)
    tl.store(out + at, _normed(row, scale, tl.sum(row * row), eps, SIZE), mask=ok)


def rms_norm(x: Tensor, norm: RMSNorm) -> Tensor:
    """The norm of [M, K]."""
    out = torch.empty_like(x)
    size = x.shape[1]
    launch(
        _norm_rows, (len(x),),
        x=x, weight=norm.weight, out=out, eps=norm.eps, SIZE=size, BLOCK=power_of_2(size), **overlap(x.device),
    )  # fmt: skip
    return out


def linear(
    x: Tensor,
    weight: Tensor,
    *,
    norm: RMSNorm | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    tile: Tile | None = None,
) -> Tensor:
    """norm, product, bias, silu(first half) * second half if `gated`, + residual: contiguous [M, K] -> [M, N].

    The weight is [N, K], or [2 N, K] if `gated`; the result may be in the place of the residual [M, N].
    """
    count, inputs = x.shape
    outputs = len(weight) // 2 if gated else len(weight)
    if norm is not None and count > NORM_ROWS:
        x, norm = rms_norm(x, norm), None
    tile = tile or linear_tile(count, outputs, inputs, gated)
    if tile is None:
        return _by_cublas(x, weight, bias, residual, gated)
    out = x.new_empty(count, outputs)
    across, down = triton.cdiv(outputs, tile.outputs), triton.cdiv(count, max(1, tile.rows))
    shared = {
        "x": x, "weight": weight, "bias": bias, "residual": residual, "out": out,
        "M": count, "N": outputs, "K": inputs, "BLOCK_N": tile.outputs,
        "GATED": gated, "num_warps": tile.warps, "num_stages": tile.stages, **overlap(x.device),
    }  # fmt: skip
    if tile.rows == 0:
        launch(
            _rows_times_matrix, (across,),
            norm=norm and norm.weight, eps=norm.eps if norm else 0.0,
            BLOCK_K=power_of_2(inputs) if norm else tile.inputs, **shared,
        )  # fmt: skip
    else:
        area = across * down * tile.rows * tile.outputs * (2 if gated else 1)
        launch(
            _tiles_times_matrix, (across, down, tile.splits),
            parts=x.new_empty(area * tile.splits if tile.splits > 1 else 0, dtype=torch.float32),
            counters=_counters(x.device), BLOCK_M=tile.rows, BLOCK_K=tile.inputs, SPLITS=tile.splits, **shared,
        )  # fmt: skip
    return out


def _by_cublas(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, gated: bool) -> Tensor:
    """For many rows. The residual is added in place and before the only rounding, which is more exact."""
    if gated:
        both = F.linear(x, weight, bias)
        size = len(weight) // 2
        out = x.new_empty(len(x), size)
        launch(
            _gate_rows, (triton.cdiv(size, 1024), len(x)), x=both, out=out, SIZE=size, BLOCK=1024, **overlap(x.device)
        )
        return out
    if residual is None:
        return F.linear(x, weight, bias)
    return residual.addmm_(x, weight.T)


@cache
def _counters(device: torch.device) -> Tensor:
    """Zeros, in which splits count and which they reset. Kernels use them one after the other."""
    return torch.zeros(_MOST_TILES, device=device, dtype=torch.int32)
