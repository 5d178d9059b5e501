"""A linear layer with what stands before and after it: norm, bias, gate, residual.

Steps are short of bandwidth, not of arithmetic: a few rows times a matrix that is read once. So one kernel reads its
part of the matrix while the layer before still runs, and does the rest on the way. Every rounding of the separate torch
operations is kept; only the order of the sums inside a dot product is the kernel's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from agent_tts.model.kernels.launch import overlap, power_of_2, wait

VECTOR_ROWS = 2  # up to so many, rows are multiplied one by one; above, by the tensor cores
NORM_ROWS = 16  # up to so many, every program norms the rows itself


@triton.jit
def _normed(x, weight, squares, eps, SIZE: tl.constexpr):
    """RMSNorm of float32 values, given the sum of their squares, with its two roundings."""
    scaled = (x * tl.rsqrt(squares / SIZE + eps)).to(weight.dtype)
    return (scaled.to(tl.float32) * weight.to(tl.float32)).to(weight.dtype)


@triton.jit
def _finish(out, acc, up, bias, residual, at, n, ok, GATED: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr):
    """What comes after the products, rounding as the separate operations do."""
    kind = out.dtype.element_ty
    if BIAS:
        acc += tl.load(bias + n, mask=ok).to(tl.float32)
    acc = acc.to(kind).to(tl.float32)
    if GATED:
        gate = (acc / (1 + tl.exp(-acc))).to(kind).to(tl.float32)
        acc = (gate * up.to(kind).to(tl.float32)).to(kind).to(tl.float32)
    if RESIDUAL:
        acc += tl.load(residual + at, mask=ok).to(tl.float32)
    tl.store(out + at, acc.to(kind), mask=ok)


@triton.jit
def _rows_times_matrix(
    x,  # [M, K]
    weight,  # [N, K], or [2 N, K] if GATED: gate, then up
    norm,  # [K]
    bias,  # [N]
    residual,  # [M, N]
    out,  # [M, N]
    eps,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,  # all of K if NORM
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program gives BLOCK_N outputs of every row; a warp reads whole rows of the matrix."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    ok_n = n < N
    rows = weight + n[:, None] * K
    ok = ok_n[:, None] & (k < K)[None, :]
    first = tl.load(rows + k[None, :], mask=ok, other=0)
    if GATED:
        first_up = tl.load(rows + N * K + k[None, :], mask=ok, other=0)
    if NORM:
        scale = tl.load(norm + k, mask=k < K, other=0)
    wait(OVERLAP)
    for m in tl.static_range(M):
        acc = tl.zeros((BLOCK_N,), tl.float32)
        up = tl.zeros((BLOCK_N,), tl.float32)
        for start in tl.static_range(0, K, BLOCK_K):
            at = start + k
            row = tl.load(x + m * K + at, mask=at < K, other=0).to(tl.float32)
            if NORM:
                row = _normed(row, scale, tl.sum(row * row), eps, K).to(tl.float32)
            ok = ok_n[:, None] & (at < K)[None, :]
            tile = first if start == 0 else tl.load(rows + at[None, :], mask=ok, other=0)
            acc += tl.sum(tile.to(tl.float32) * row[None, :], 1)
            if GATED:
                tile = first_up if start == 0 else tl.load(rows + N * K + at[None, :], mask=ok, other=0)
                up += tl.sum(tile.to(tl.float32) * row[None, :], 1)
        _finish(out, acc, up, bias, residual, m * N + n, n, ok_n, GATED, BIAS, RESIDUAL)


@triton.jit
def _tiles_times_matrix(
    x,  # [M, K]
    weight,  # [N, K], or [2 N, K] if GATED: gate, then up
    norm,  # [K]
    bias,  # [N]
    residual,  # [M, N]
    out,  # [M, N]
    eps,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program gives a tile of BLOCK_M rows and BLOCK_N outputs, by the tensor cores."""
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    ok_m, ok_n = m < M, n < N
    wait(OVERLAP)
    squares = tl.zeros((BLOCK_M,), tl.float32)
    if NORM:
        for start in range(0, K, BLOCK_K):
            at = start + k
            tile = tl.load(x + m[:, None] * K + at[None, :], mask=ok_m[:, None] & (at < K)[None, :], other=0)
            tile = tile.to(tl.float32)
            squares += tl.sum(tile * tile, 1)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        at = start + k
        ok_k = at < K
        tile = tl.load(x + m[:, None] * K + at[None, :], mask=ok_m[:, None] & ok_k[None, :], other=0)
        if NORM:
            scale = tl.load(norm + at, mask=ok_k, other=0)
            tile = _normed(tile.to(tl.float32), scale[None, :], squares[:, None], eps, K)
        columns = weight + n[None, :] * K + at[:, None]
        ok = ok_n[None, :] & ok_k[:, None]
        acc = tl.dot(tile, tl.load(columns, mask=ok, other=0), acc, input_precision="ieee")
        if GATED:
            up = tl.dot(tile, tl.load(columns + N * K, mask=ok, other=0), up, input_precision="ieee")
    ok = ok_m[:, None] & ok_n[None, :]
    at = m[:, None] * N + n[None, :]
    _finish(out, acc, up, bias, residual, at, n[None, :], ok, GATED, BIAS, RESIDUAL)


@triton.jit
def _norm_rows(x, weight, out, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    at = tl.arange(0, BLOCK)
    ok = at < SIZE
    scale = tl.load(weight + at, mask=ok, other=0)
    wait(OVERLAP)
    at += tl.program_id(0) * SIZE
    row = tl.load(x + at, mask=ok, other=0).to(tl.float32)
    tl.store(out + at, _normed(row, scale, tl.sum(row * row), eps, SIZE), mask=ok)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`layers.RMSNorm` of [M, K]."""
    out = torch.empty_like(x)
    size = x.shape[1]
    _norm_rows[(len(x),)](x, weight, out, eps, size, power_of_2(size), **overlap(x.device))
    return out


@dataclass(frozen=True, slots=True)
class Norm:
    """What the rows go through before they are multiplied."""

    weight: Tensor  # [K]
    eps: float


@dataclass(frozen=True, slots=True)
class Tile:
    """How the work is cut."""

    rows: int  # 0: one by one
    outputs: int
    inputs: int
    warps: int
    stages: int = 4


def tile_for(rows: int, outputs: int, inputs: int, gated: bool, normed: bool) -> Tile:
    """The fastest of those measured on an H200."""
    if rows <= VECTOR_ROWS:
        whole = power_of_2(inputs)
        return Tile(0, 4 if gated or inputs > 2048 else 8, whole if normed else min(whole, 2048), 4)
    wide = outputs >= 4096
    if rows <= NORM_ROWS:
        return Tile(16, 32 if wide else 16, 128, 4)
    return Tile(min(power_of_2(rows), 64), 32 if wide and not gated else 16, 128, 4)


def linear(
    x: Tensor,
    weight: Tensor,
    *,
    norm: Norm | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    tile: Tile | None = None,
) -> Tensor:
    """norm, product, bias, silu(first half) * second half if `gated`, + residual: [M, K] -> [M, N].

    Args:
        x: contiguous, like everything here.
        weight: [N, K], or [2 N, K] if `gated`.
        residual: [M, N].
    """
    count, inputs = x.shape
    outputs = len(weight) // 2 if gated else len(weight)
    if norm is not None and count > NORM_ROWS:
        x, norm = rms_norm(x, norm.weight, norm.eps), None
    tile = tile or tile_for(count, outputs, inputs, gated, norm is not None)
    out = x.new_empty(count, outputs)
    operands = (x, weight, norm and norm.weight, bias, residual, out, norm.eps if norm else 0.0, count, outputs, inputs)
    flags = {"NORM": norm is not None, "GATED": gated, "BIAS": bias is not None, "RESIDUAL": residual is not None}
    options = flags | {"num_warps": tile.warps, "num_stages": tile.stages} | overlap(x.device)
    across = triton.cdiv(outputs, tile.outputs)
    if tile.rows == 0:
        _rows_times_matrix[(across,)](*operands, tile.outputs, tile.inputs, **options)
    else:
        down = triton.cdiv(count, tile.rows)
        _tiles_times_matrix[(across, down)](*operands, tile.rows, tile.outputs, tile.inputs, **options)
    return out


def linear_reference(
    x: Tensor,
    weight: Tensor,
    *,
    norm: Norm | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    """`linear` in torch's operations, as the modules of `layers` do it."""
    if norm is not None:
        wide = x.float()
        x = norm.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)).to(x.dtype)
    out = F.linear(x, weight, bias)
    if gated:
        gate, up = out.chunk(2, dim=-1)
        out = F.silu(gate) * up
    return out if residual is None else residual + out
