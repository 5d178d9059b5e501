"""A linear layer of talker and predictor with what precedes and follows it: norm, bias, gate, residual.

Steps are bound by bandwidth: a few rows times a matrix that is read once. So a kernel reads a part of the matrix while
the previous layer still runs. Every rounding of the separate torch operations is kept; only the order of the sums
in a dot product differs. The codec's layers round only their result, so `kernels.codec.linear` is another kernel.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from agent_tts.model.kernels.launch import has_warpgroups, launch, overlap, power_of_2, prefer_shared, wait
from agent_tts.model.kernels.tiles import (
    Tile,
    e4m3_tile,
    few_rows_tile,
    interleaved_tile,
    linear_tile,
    many_rows_tile,
)
from agent_tts.model.layers import RMSNorm
from agent_tts.model.quantised import Quantised

_MOST_TILES = 4_096


@triton.jit
def normed(x, weight, squares, eps, SIZE: tl.constexpr):
    """RMSNorm of float32 values, given the sum of their squares, with its two roundings."""
    scaled = (x * tl.rsqrt(squares / SIZE + eps)).to(weight.dtype)
    return (scaled.to(tl.float32) * weight.to(tl.float32)).to(weight.dtype)


@triton.jit
def _finish(out, acc, up, bias, residual, at, ok, GATED: tl.constexpr):
    """Bias, gate and residual, each if there is one, rounded as by the separate operations; gives what it stores."""
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
    return acc.to(kind).to(tl.float32)


@triton.jit
def _interleaved(row):
    """Inputs [K] in the order of `Quantised.interleaved`."""
    parts = tl.reshape(row, [row.shape[0] // 128, 8, 2, 4, 2])
    return tl.reshape(tl.permute(parts, (0, 3, 1, 2, 4)), row.shape)


@triton.jit
def _in_order(row):
    """What `_interleaved` was given."""
    parts = tl.reshape(row, [row.shape[0] // 128, 4, 8, 2, 2])
    return tl.reshape(tl.permute(parts, (0, 2, 3, 1, 4)), row.shape)


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
    INTERLEAVED: tl.constexpr,
    EVICTION: tl.constexpr,  # of the weights from the second-level cache
    EARLY: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program computes BLOCK_N outputs of every row, and reads all their weights ahead."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    ok_n, ok_k = n < N, k < K
    weights = weight + n[:, None] * K + k[None, :]
    ok = ok_n[:, None] & ok_k[None, :]
    tile = tl.load(weights, mask=ok, other=0.0, eviction_policy=EVICTION)
    if GATED:
        tile_up = tl.load(weights + N * K, mask=ok, other=0.0, eviction_policy=EVICTION)
    if scale is not None:
        by = tl.load(scale + n, mask=ok_n)
        if GATED:
            up_by = tl.load(scale + N + n, mask=ok_n)
    if norm is not None:
        norm_weight = tl.load(norm + k, mask=ok_k, other=0).to(tl.float32)
    biases = None if bias is None else tl.load(bias + n, mask=ok_n)
    wait(OVERLAP, EARLY)
    for m in tl.static_range(M):
        row = tl.load(x + m * K + k, mask=ok_k, other=0).to(tl.float32)
        added = None if residual is None else tl.load(residual + m * N + n, mask=ok_n)
        if norm is not None:
            squares = tl.sum(row * row)
            row *= norm_weight
        if INTERLEAVED:
            row = _interleaved(row)
        acc = tl.sum(tile.to(tl.float32) * row[None, :], 1)
        up = tl.sum(tile_up.to(tl.float32) * row[None, :], 1) if GATED else acc
        if norm is not None:
            factor = tl.rsqrt(squares / K + eps)
            acc *= factor
            up *= factor
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
def _multiply(row, tile, acc, TURNED: tl.constexpr):
    """acc + the product of a tile of rows and one of weights."""
    tile = tile.to(row.dtype)
    if TURNED:
        return tl.dot(tile, row, acc, input_precision="ieee")
    else:
        return tl.dot(row, tile, acc, input_precision="ieee")


@triton.jit
def _tiles_times_matrix(
    x,  # [M, K]
    squares,  # float32[PARTS, M]: sums of squares, by the root of whose mean each row is divided; or None
    weight,  # [N, K], or [2 N, K] if GATED: gate, then up; in the dtype of x, or in e4m3
    scale,  # float32[N], or [2 N] if GATED: of the rows of a weight in e4m3; otherwise None
    bias,  # [N], or None
    residual,  # [M, N], or None
    out,  # [M, N]
    next_norm,  # [N]: the weight of the norm of the result; or None
    next_x,  # [M, N]: the result times that weight
    next_squares,  # float32[programs along N, M]: sums of squares of the result
    parts,  # float32[tiles, SPLITS, 2 if GATED, BLOCK_M BLOCK_N]: sums over a split
    counters,  # int32[tiles]: splits done; zero before and after
    eps,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    AHEAD: tl.constexpr,
    SPLITS: tl.constexpr,
    TURNED: tl.constexpr,
    GATED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program gives a tile of BLOCK_M rows and BLOCK_N outputs, by the tensor cores, over its split of K.

    If the sum has one step, its weights are read ahead; else the second-level cache reads those of AHEAD inputs. The
    last of a tile's splits puts them together, always in the same order. The tile is transposed if TURNED.
    """
    split = tl.program_id(2)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    SPAN: tl.constexpr = K // SPLITS
    tl.static_assert(K % SPLITS == 0 and SPAN % BLOCK_K == 0, "a step of the sum is whole")
    first = split * SPAN + tl.arange(0, BLOCK_K)
    OUTPUTS: tl.constexpr = 0 if TURNED else 1  # the axis of the outputs; the other is that of the rows
    HEIGHT: tl.constexpr = BLOCK_N if TURNED else BLOCK_M
    WIDTH: tl.constexpr = BLOCK_M if TURNED else BLOCK_N
    if OVERLAP and AHEAD:
        LINE: tl.constexpr = 128 // (weight.dtype.element_ty.primitive_bitwidth // 8)
        lines = weight + (n % N)[:, None] * K + split * SPAN + tl.arange(0, AHEAD // LINE)[None, :] * LINE
        _prefetch(lines)
        if GATED:
            _prefetch(lines + N * K)
    m, n = tl.expand_dims(m, OUTPUTS), tl.expand_dims(n, 1 - OUTPUTS)
    ok_m, ok_n = m < M, n < N
    rows, columns = x + m * K + tl.expand_dims(first, 1 - OUTPUTS), weight + n * K + tl.expand_dims(first, OUTPUTS)
    ok, to = ok_m & ok_n, m * N + n
    if BLOCK_K == SPAN:
        tile = tl.load(columns, mask=ok_n, other=0.0)
        if GATED:
            tile_up = tl.load(columns + N * K, mask=ok_n, other=0.0)
    if scale is not None:
        by = tl.load(scale + n, mask=ok_n)
        if GATED:
            up_by = tl.load(scale + N + n, mask=ok_n)
    biases = None if bias is None else tl.load(bias + n, mask=ok_n)
    norm = None if next_norm is None else tl.load(next_norm + n, mask=ok_n).to(tl.float32)
    wait(OVERLAP)
    added = None if residual is None else tl.load(residual + to, mask=ok)
    if squares is not None:
        part = tl.expand_dims(tl.arange(0, PARTS), 1 - OUTPUTS)
        squared = tl.load(squares + part * M + m, mask=ok_m & (part < PARTS), other=0)
    acc = tl.zeros((HEIGHT, WIDTH), tl.float32)
    up = tl.zeros((HEIGHT, WIDTH), tl.float32)
    if BLOCK_K == SPAN:
        row = tl.load(rows, mask=ok_m, other=0)
        acc = _multiply(row, tile, acc, TURNED)
        if GATED:
            up = _multiply(row, tile_up, up, TURNED)
    else:
        for start in range(0, SPAN, BLOCK_K):
            row = tl.load(rows + start, mask=ok_m, other=0)
            acc = _multiply(row, tl.load(columns + start, mask=ok_n, other=0.0), acc, TURNED)
            if GATED:
                up = _multiply(row, tl.load(columns + N * K + start, mask=ok_n, other=0.0), up, TURNED)
    if squares is not None:
        factor = tl.rsqrt(tl.sum(squared, OUTPUTS, keep_dims=True) / K + eps)
        acc *= factor
        up *= factor
    if scale is not None:
        acc *= by
        if GATED:
            up *= up_by
    last = True
    if SPLITS > 1:
        AREA: tl.constexpr = BLOCK_M * BLOCK_N
        SUMS: tl.constexpr = AREA * (2 if GATED else 1)
        place = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        mine = parts + place * SPLITS * SUMS + tl.arange(0, HEIGHT)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        tl.store(mine + split * SUMS, acc)
        if GATED:
            tl.store(mine + split * SUMS + AREA, up)
        tl.debug_barrier()  # the whole program has written before its leader counts
        last = tl.atomic_add(counters + place, 1, sem="acq_rel") == SPLITS - 1
        if last:
            tl.store(counters + place, 0)
            acc = tl.zeros((HEIGHT, WIDTH), tl.float32)
            up = tl.zeros((HEIGHT, WIDTH), tl.float32)
            for other in tl.static_range(SPLITS):
                # Past the first-level cache, which does not see what other processors write.
                acc += tl.load(mine + other * SUMS, cache_modifier=".cg")
                if GATED:
                    up += tl.load(mine + other * SUMS + AREA, cache_modifier=".cg")
    if last:
        result = _finish(out, acc, up, biases, added, to, ok, GATED)
        if next_norm is not None:
            result = tl.where(ok, result, 0)
            tl.store(next_x + to, (result * norm).to(next_x.dtype.element_ty), mask=ok)
            sums = tl.sum(result * result, OUTPUTS, keep_dims=True)
            tl.store(next_squares + tl.program_id(0) * M + m, sums, mask=ok_m)


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
    tl.store(out + at, normed(row, scale, tl.sum(row * row), eps, SIZE), mask=ok)


@triton.jit
def _widen_rows(
    values, scale, out, SIZE: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr, OVERLAP: tl.constexpr
):
    row, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = at < SIZE
    value, by = tl.load(values + row * SIZE + at, mask=ok, other=0.0), tl.load(scale + row)
    value = (value.to(tl.float32) * by).to(out.dtype.element_ty)
    if INTERLEAVED:
        value = _in_order(value)
    wait(OVERLAP)
    tl.store(out + row * SIZE + at, value, mask=ok)


def widened(matrix: Quantised, dtype: torch.dtype) -> Tensor:
    """`Quantised.dequantised` for a product of many rows. Only what waits may read it: no kernel reads it ahead."""
    count, size = matrix.values.shape
    out = torch.empty_like(matrix.values, dtype=dtype)
    launch(
        _widen_rows, (count, triton.cdiv(size, 2048)),
        values=matrix.values, scale=matrix.scale, out=out, SIZE=size, BLOCK=2048, INTERLEAVED=matrix.is_interleaved,
        **overlap(out.device),
    )  # fmt: skip
    return out


def rms_norm(x: Tensor, norm: RMSNorm) -> Tensor:
    """The norm of [M, K]."""
    out = torch.empty_like(x)
    size = x.shape[1]
    launch(
        _norm_rows, (len(x),),
        x=x, weight=norm.weight, out=out, eps=norm.eps, SIZE=size, BLOCK=power_of_2(size), **overlap(x.device),
    )  # fmt: skip
    return out


class Hidden(NamedTuple):
    """Rows between two layers, and what the kernel that wrote them may leave for the norm that follows."""

    x: Tensor  # [M, K]
    weighted: Tensor | None = None  # [M, K]: x times the norm's weight
    squares: Tensor | None = None  # float32[parts, M]: sums of the squares of x
    normed: Tensor | None = None  # [M, K]: the result of that norm

    def last(self, rows: int) -> Hidden:
        """The last of the rows."""
        return self if rows == len(self.x) else Hidden(self.x[-rows:])


def linear(
    x: Tensor | Hidden,
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

    The matrix is [N, K], or [2 N, K] if `gated`; the result may be in the place of the residual [M, N]. If `early`, the
    next kernel may start before this one has waited, where that has one row or two or an early tile: see `launch.wait`.
    """
    return _linear(x, matrix, norm, bias, residual, None, tile, gated=gated, early=early).x


def linear_before(
    x: Tensor,
    matrix: Tensor | Quantised,
    residual: Hidden,
    norm: RMSNorm,
    *,
    cached: bool = False,
    tile: Tile | None = None,
) -> Hidden:
    """residual + product, with what the norm that follows needs if that costs nothing.

    Where one row or two have their weights in registers, the second-level cache keeps those that are `cached`.
    """
    return _linear(x, matrix, None, None, residual.x, norm, tile, cached=cached)


def _linear(
    given: Tensor | Hidden,
    matrix: Tensor | Quantised,
    norm: RMSNorm | None,
    bias: Tensor | None,
    residual: Tensor | None,
    following: RMSNorm | None,
    tile: Tile | None,
    *,
    gated: bool = False,
    early: bool = True,
    cached: bool = False,
) -> Hidden:
    weight, scale, is_interleaved = (
        (matrix.values, matrix.scale, matrix.is_interleaved) if isinstance(matrix, Quantised) else (matrix, None, False)
    )
    x, weighted, squares, ready = given if isinstance(given, Hidden) else Hidden(given)
    if norm is not None and ready is not None:
        x, norm = ready, None
    count, inputs = x.shape
    outputs = len(weight) // 2 if gated else len(weight)
    tile = tile or _tile_of(matrix, bias, x.device, (count, outputs, inputs, gated))
    in_product = tile is not None and (tile.rows == 0 or squares is not None)
    if norm is not None and not in_product:
        x, norm = rms_norm(x, norm), None
    if tile is None:
        weight = matrix if isinstance(matrix, Tensor) else widened(matrix, x.dtype)
        return Hidden(_by_cublas(x, weight, bias, residual, gated))
    out = x.new_empty(count, outputs)
    across, down = triton.cdiv(outputs, tile.outputs), triton.cdiv(count, max(1, tile.rows))
    shared = {
        "residual": residual, "out": out, "M": count, "N": outputs, "K": inputs, "BLOCK_K": tile.inputs,
        "GATED": gated, "eps": norm.eps if norm else 0.0, "num_warps": tile.warps, **overlap(x.device),
    }  # fmt: skip
    by_all = {
        "weight": weight, "scale": scale, "bias": bias, "BLOCK_N": tile.outputs, "num_stages": tile.stages,
    }  # fmt: skip
    if tile.held:
        from agent_tts.model.kernels import few_rows  # older versions of triton cannot import it

        made = launch(
            few_rows.kernel, (across,), x=x, weight=weight, norm=norm and norm.weight, BLOCK_N=tile.outputs,
            WARPS=tile.warps, EARLY=early, **shared,
        )  # fmt: skip
        if made is not None:
            prefer_shared(made.function)
        return Hidden(out)
    if tile.rows == 0:
        by_row = {
            "norm": norm and norm.weight, "INTERLEAVED": is_interleaved, "EARLY": early,
            "EVICTION": "evict_last" if cached else "evict_first",
        }  # fmt: skip
        launch(_rows_times_matrix, (across,), x=x, **by_row, **shared, **by_all)
        return Hidden(out)
    if norm is None:
        squares = None
    else:
        assert weighted is not None
        x = weighted
    left = Hidden(out)
    if following is not None and across == power_of_2(across):
        left = Hidden(out, torch.empty_like(out), x.new_empty(across, count, dtype=torch.float32))
    area = across * down * tile.rows * tile.outputs * (2 if gated else 1)
    shared |= {
        "squares": squares, "PARTS": 0 if squares is None else len(squares),
        "next_norm": None if left.squares is None or following is None else following.weight,
        "next_x": left.weighted, "next_squares": left.squares,
        "parts": x.new_empty(area * tile.splits if tile.splits > 1 else 0, dtype=torch.float32),
        "counters": split_counters(x.device), "BLOCK_M": tile.rows, "SPLITS": tile.splits,
    }  # fmt: skip
    grid = across, down, tile.splits
    if tile.loaders:
        from agent_tts.model.kernels import many_rows  # older versions of triton cannot import it

        launch(
            many_rows.kernel, grid, **many_rows.operands(x, weight, scale, tile), EARLY=early and tile.early, **shared
        )  # fmt: skip
    else:
        launch(_tiles_times_matrix, grid, x=x, AHEAD=tile.ahead, TURNED=tile.turned, **shared, **by_all)
    return left


def _tile_of(
    matrix: Tensor | Quantised, bias: Tensor | None, device: torch.device, shape: tuple[int, int, int, bool]
) -> Tile | None:
    """None is cuBLAS."""
    if isinstance(matrix, Quantised):
        return (interleaved_tile if matrix.is_interleaved else e4m3_tile)(*shape)
    tile = linear_tile(*shape)
    if bias is not None or not has_warpgroups(device):
        return tile
    if tile is not None and tile.rows == 0:
        return few_rows_tile(*shape[1:]) or tile
    return many_rows_tile(*shape) or tile


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
