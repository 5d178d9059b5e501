"""A linear layer of talker and predictor with what precedes and follows it: norm, bias, gate, residual.

Steps are bound by bandwidth: a few rows times a matrix that is read once. So a kernel reads a part of the matrix while
the previous layer still runs. Every rounding of the separate torch operations is kept; only the order of the sums
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
from agent_tts.model.kernels.tiles import Tile, e4m3_tile, linear_tile
from agent_tts.model.layers import RMSNorm
from agent_tts.model.quantised import Quantised

NORM_ROWS = 1  # of at most so many rows every program computes the norm itself
_MOST_TILES = 4_096


@triton.jit
def _normed(x, weight, squares, eps, SIZE: tl.constexpr):
    """RMSNorm of float32 values, given the sum of their squares, with its two roundings."""
    scaled = (x * tl.rsqrt(squares / SIZE + eps)).to(weight.dtype)
    return (scaled.to(tl.float32) * weight.to(tl.float32)).to(weight.dtype)


@triton.jit
def _finish(out, acc, up, bias, residual, at, ok, GATED: tl.constexpr):
    """Bias, gate and residual, each if there is one, rounded as by the separate operations."""
    kind = out.dtype.element_ty
    if bias is not None:
        acc += bias.to(tl.float32)
    acc = acc.to(kind).to(tl.float32)
    if GATED:
        gate = (acc / (1 + tl.exp(-acc))).to(kind).to(tl.float32)
        acc = (gate * up.to(kind).to(tl.float32)).to(kind).to(tl.float32)
    if residual is not None:
        acc += residual.to(tl.float32)
    tl.store(out + at, acc.to(kind), mask=ok)


@triton.jit
def _rows_times_matrix(
    x,  # [M, K]
    weight,  # [N, K], or [2 N, K] if GATED: gate, then up; in the dtype of x, or in e4m3
    scale,  # float32[N], or [2 N] if GATED: of the rows of a weight in e4m3; otherwise None
    norm,  # [K], or None
    bias,  # [N], or None
    residual,  # [M, N], or None
    out,  # [M, N]
    eps,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,  # all of K
    GATED: tl.constexpr,
    EARLY: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program computes BLOCK_N outputs of every row, and reads all their weights ahead."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    ok_n, ok_k = n < N, k < K
    weights = weight + n[:, None] * K + k[None, :]
    ok = ok_n[:, None] & ok_k[None, :]
    tile = tl.load(weights, mask=ok, other=0.0)
    if GATED:
        tile_up = tl.load(weights + N * K, mask=ok, other=0.0)
    if scale is not None:
        by = tl.load(scale + n, mask=ok_n)
        if GATED:
            up_by = tl.load(scale + N + n, mask=ok_n)
    if norm is not None:
        norm_weight = tl.load(norm + k, mask=ok_k, other=0)
    biases = None if bias is None else tl.load(bias + n, mask=ok_n)
    wait(OVERLAP, EARLY)
    for m in tl.static_range(M):
        row = tl.load(x + m * K + k, mask=ok_k, other=0).to(tl.float32)
        added = None if residual is None else tl.load(residual + m * N + n, mask=ok_n)
        if norm is not None:
            row = _normed(row, norm_weight, tl.sum(row * row), eps, K).to(tl.float32)
        acc = tl.sum(tile.to(tl.float32) * row[None, :], 1)
        up = tl.sum(tile_up.to(tl.float32) * row[None, :], 1) if GATED else acc
        if scale is not None:
            acc *= by
            if GATED:
                up *= up_by
        _finish(out, acc, up, biases, added, m * N + n, ok_n, GATED)


@triton.jit
def _prefetch(pointers):
    """Brings these lines of memory into the second-level cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _tiles_times_matrix(
    x,  # [M, K]
    weight,  # [N, K], or [2 N, K] if GATED: gate, then up; in the dtype of x, or in e4m3
    scale,  # float32[N], or [2 N] if GATED: of the rows of a weight in e4m3; otherwise None
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
    AHEAD: tl.constexpr,
    SPLITS: tl.constexpr,
    GATED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program gives a tile of BLOCK_M rows and BLOCK_N outputs, by the tensor cores, over its split of K.

    If the sum has one step, its weights are read ahead; else the second-level cache reads those of AHEAD inputs. The
    last of a tile's splits puts them together, always in the same order.
    """
    split = tl.program_id(2)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    SPAN: tl.constexpr = K // SPLITS
    tl.static_assert(K % SPLITS == 0 and SPAN % BLOCK_K == 0, "a step of the sum is whole")
    first = split * SPAN + tl.arange(0, BLOCK_K)
    ok_m, ok_n = (m < M)[:, None], (n < N)[None, :]
    rows, columns = x + m[:, None] * K + first[None, :], weight + n[None, :] * K + first[:, None]
    ok, to = ok_m & ok_n, m[:, None] * N + n[None, :]
    if BLOCK_K == SPAN:
        tile = tl.load(columns, mask=ok_n, other=0.0)
        if GATED:
            tile_up = tl.load(columns + N * K, mask=ok_n, other=0.0)
    elif OVERLAP and AHEAD:
        LINE: tl.constexpr = 128 // (weight.dtype.element_ty.primitive_bitwidth // 8)
        lines = weight + (n % N)[:, None] * K + split * SPAN + tl.arange(0, AHEAD // LINE)[None, :] * LINE
        _prefetch(lines)
        if GATED:
            _prefetch(lines + N * K)
    if scale is not None:
        by = tl.load(scale + n[None, :], mask=ok_n)
        if GATED:
            up_by = tl.load(scale + N + n[None, :], mask=ok_n)
    biases = None if bias is None else tl.load(bias + n[None, :], mask=ok_n)
    wait(OVERLAP)
    added = None if residual is None else tl.load(residual + to, mask=ok)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if BLOCK_K == SPAN:
        row = tl.load(rows, mask=ok_m, other=0)
        acc = tl.dot(row, tile.to(row.dtype), acc, input_precision="ieee")
        if GATED:
            up = tl.dot(row, tile_up.to(row.dtype), up, input_precision="ieee")
    else:
        for start in range(0, SPAN, BLOCK_K):
            row = tl.load(rows + start, mask=ok_m, other=0)
            tile = tl.load(columns + start, mask=ok_n, other=0.0).to(row.dtype)
            acc = tl.dot(row, tile, acc, input_precision="ieee")
            if GATED:
                tile_up = tl.load(columns + N * K + start, mask=ok_n, other=0.0).to(row.dtype)
                up = tl.dot(row, tile_up, up, input_precision="ieee")
    if scale is not None:
        acc *= by
        if GATED:
            up *= up_by
    if SPLITS == 1:
        _finish(out, acc, up, biases, added, to, ok, GATED)
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
            _finish(out, acc, up, biases, added, to, ok, GATED)


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
    matrix: Tensor | Quantised,
    *,
    norm: RMSNorm | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    early: bool = True,
    tile: Tile | None = None,
) -> Tensor:
    """norm, product, bias, silu(first half) * second half if `gated`, + residual: contiguous [M, K] -> [M, N].

    The matrix is [N, K], or [2 N, K] if `gated`; the result may be in the place of the residual [M, N]. Of one row, the
    next kernel may start before this one has waited, if `early`: see `launch.wait`.
    """
    weight, scale = (matrix.values, matrix.scale) if isinstance(matrix, Quantised) else (matrix, None)
    count, inputs = x.shape
    outputs = len(weight) // 2 if gated else len(weight)
    if norm is not None and count > NORM_ROWS:
        x, norm = rms_norm(x, norm), None
    tile = tile or (linear_tile if scale is None else e4m3_tile)(count, outputs, inputs, gated)
    if tile is None:
        return _by_cublas(x, weight, bias, residual, gated)
    out = x.new_empty(count, outputs)
    across, down = triton.cdiv(outputs, tile.outputs), triton.cdiv(count, max(1, tile.rows))
    shared = {
        "x": x, "weight": weight, "scale": scale, "bias": bias, "residual": residual, "out": out,
        "M": count, "N": outputs, "K": inputs, "BLOCK_N": tile.outputs, "BLOCK_K": tile.inputs,
        "GATED": gated, "num_warps": tile.warps, "num_stages": tile.stages, **overlap(x.device),
    }  # fmt: skip
    if tile.rows == 0:
        launch(
            _rows_times_matrix, (across,),
            norm=norm and norm.weight, eps=norm.eps if norm else 0.0, EARLY=early and count == 1, **shared,
        )  # fmt: skip
    else:
        area = across * down * tile.rows * tile.outputs * (2 if gated else 1)
        launch(
            _tiles_times_matrix, (across, down, tile.splits),
            parts=x.new_empty(area * tile.splits if tile.splits > 1 else 0, dtype=torch.float32),
            counters=split_counters(x.device), BLOCK_M=tile.rows, AHEAD=tile.ahead, SPLITS=tile.splits, **shared,
        )  # fmt: skip
    return out


def _by_cublas(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, gated: bool) -> Tensor:
    """For many rows. The residual is added in place and before the only rounding, which is more exact."""
    if gated:
        return gate(F.linear(x, weight, bias))
    if residual is None:
        return F.linear(x, weight, bias)
    return residual.addmm_(x, weight.T)


def gate(both: Tensor) -> Tensor:
    """silu(first half) * second half: [M, 2 N] -> [M, N]."""
    count, size = len(both), both.shape[1] // 2
    out = both.new_empty(count, size)
    launch(_gate_rows, (triton.cdiv(size, 1024), count), x=both, out=out, SIZE=size, BLOCK=1024, **overlap(both.device))
    return out


@cache
def split_counters(device: torch.device) -> Tensor:
    """Zeros, in which splits count and which they reset. Kernels use them one after the other."""
    return torch.zeros(_MOST_TILES, device=device, dtype=torch.int32)
