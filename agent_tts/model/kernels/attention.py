"""Attention of one new position a row: norm of q and k, rope, writing and reading the cache in one kernel.

The cache of a row is read to its length, which only the device knows. Several programs read a long row; the last to
finish combines their parts, always in the same order. For the layout of the cache see `layers.Cache`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from agent_tts.model.kernels.launch import launch, overlap, power_of_2, wait
from agent_tts.model.kernels.tiles import is_early

_TILE = 64  # positions that a program of few rows reads at a time
_MERGED = 8  # parts of a row that are put together at a time
TOGETHER = 1_024  # positions of a program that reads what the kernel before it writes


@triton.jit
def _halves(values, DIM: tl.constexpr):
    """Both halves of DIM values."""
    half = tl.arange(0, DIM // 2)
    return tl.load(values + half), tl.load(values + DIM // 2 + half)


@triton.jit
def _turned(x, heads, norm, angles, eps, DIM: tl.constexpr):
    """Norm and rope of these heads: both halves, [heads, DIM / 2], rounded as the modules round."""
    HALF: tl.constexpr = DIM // 2
    norm_low, norm_high = norm
    cos, sin = angles
    kind = cos.dtype
    d = tl.arange(0, HALF)
    at = heads[:, None] * DIM + d[None, :]
    low, high = tl.load(x + at).to(tl.float32), tl.load(x + at + HALF).to(tl.float32)
    scale = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / DIM + eps)[:, None]
    low = (low * scale).to(kind).to(tl.float32) * norm_low.to(tl.float32)[None, :]
    high = (high * scale).to(kind).to(tl.float32) * norm_high.to(tl.float32)[None, :]
    low, high = low.to(kind).to(tl.float32), high.to(kind).to(tl.float32)
    c, s = cos.to(tl.float32)[None, :], sin.to(tl.float32)[None, :]
    new_low = (low * c).to(kind).to(tl.float32) + (-high * s).to(kind).to(tl.float32)
    new_high = (high * c).to(kind).to(tl.float32) + (low * s).to(kind).to(tl.float32)
    return new_low.to(kind), new_high.to(kind)


@triton.jit
def _places(blocks, positions, end, block_stride, stride, SIZE: tl.constexpr):
    """Offsets of positions in the cache, in elements; any value from `end` on."""
    block = tl.load(blocks + positions // SIZE, mask=positions < end, other=0)
    return block * block_stride + (positions % SIZE) * stride


@triton.jit
def _read(keys, values, at, ok, kind, DIM: tl.constexpr):
    """Both halves of the keys, and the values, at these offsets, as `kind`; `at` and `ok` are [positions, 1]."""
    d, half = tl.arange(0, DIM), tl.arange(0, DIM // 2)
    low = tl.load(keys + at + half[None, :], mask=ok, other=0.0)
    high = tl.load(keys + at + DIM // 2 + half[None, :], mask=ok, other=0.0)
    return low.to(kind), high.to(kind), tl.load(values + at + d[None, :], mask=ok, other=0.0).to(kind)


@triton.jit
def _keep(x, to, keys, values, norm, angles, eps, pair, HEADS: tl.constexpr, PAIRS: tl.constexpr, DIM: tl.constexpr):
    """Writes key and value of a new position at offset `to` [1, 1]; gives both halves of the key, and the value."""
    d, half = tl.arange(0, DIM), tl.arange(0, DIM // 2)
    low, high = _turned(x, HEADS + pair + tl.arange(0, 1), norm, angles, eps, DIM)
    value = tl.load(x + (HEADS + PAIRS + pair) * DIM + d)[None, :]
    tl.store(keys + to + half[None, :], low)
    tl.store(keys + to + DIM // 2 + half[None, :], high)
    tl.store(values + to + d[None, :], value)
    return low, high, value


@triton.jit
def _write(
    qkv,  # [B, (HEADS + 2 PAIRS) DIM]: queries, keys, values
    k_norm,  # [DIM]
    rope,  # [S, 2, DIM / 2]: cosine and sine
    positions,  # int64[B]; the padding position is not written
    keys,  # [blocks, SIZE, PAIRS, DIM], in the dtype of qkv, or in e4m3
    values,
    block_table,  # int64[B, BLOCKS]
    eps,
    padding_position,
    block_stride,  # elements from block to block
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    DIM: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    row, pair = tl.program_id(0), tl.program_id(1)
    position = tl.load(positions + row)
    if position >= padding_position:
        wait(OVERLAP)
        return
    angles, k_scale = _halves(rope + position * DIM, DIM), _halves(k_norm, DIM)
    blocks, new = block_table + row * BLOCKS, position + tl.arange(0, 1)
    to = pair * DIM + _places(blocks, new, padding_position, block_stride, PAIRS * DIM, SIZE)
    wait(OVERLAP)
    x = qkv + row * (HEADS + 2 * PAIRS) * DIM
    _keep(x, to[:, None], keys, values, k_scale, angles, eps, pair, HEADS, PAIRS, DIM)


@triton.jit
def _begin(
    x, heads, q_scale, k_scale, angles, eps, scale, last, place_of_new, keys, values, pair,
    HEADS: tl.constexpr, PAIRS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """The queries, and top, total and acc of `_attend` over the new position alone, which the last split writes."""
    q_low, q_high = _turned(x, heads, q_scale, angles, eps, DIM)
    top = tl.full((16,), float("-inf"), tl.float32)
    total = tl.zeros((16,), tl.float32)
    acc = tl.zeros((16, DIM), tl.float32)
    if last:
        new_low, new_high, new_value = _keep(
            x, place_of_new[:, None], keys, values, k_scale, angles, eps, pair, HEADS, PAIRS, DIM
        )
        top = tl.sum(q_low.to(tl.float32) * new_low.to(tl.float32), 1)
        top = (top + tl.sum(q_high.to(tl.float32) * new_high.to(tl.float32), 1)) * scale
        total += 1
        acc += new_value.to(tl.float32)
    return q_low, q_high, top, total, acc


@triton.jit
def _attend(
    qkv,  # [B, (HEADS + 2 PAIRS) DIM]: queries, keys, values
    q_norm,  # [DIM]
    k_norm,  # [DIM]
    rope,  # [S, 2, DIM / 2]: cosine and sine
    positions,  # int64[B]; the padding position for a row that pauses
    keys,  # [blocks, SIZE, PAIRS, DIM], in the dtype of qkv, or in e4m3
    values,
    block_table,  # int64[B, BLOCKS]
    out,  # [B, HEADS DIM]
    parts,  # float32[B, PAIRS, splits, GROUP, DIM]: sums over a split, not yet divided
    tops,  # float32[B, PAIRS, splits, GROUP, 2]: the split's largest logit, and the sum of the powers
    counters,  # int32[B, PAIRS]: splits done; zero before and after
    eps,
    padding_position,
    block_stride,  # elements from block to block
    scale,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    DIM: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
    SPLIT: tl.constexpr,  # positions
    SPLITS: tl.constexpr,  # as many as the longest row has
    TILE: tl.constexpr,
    MERGED: tl.constexpr,  # parts that are put together at a time
    QUEUED: tl.constexpr,  # tiles are read ahead; a tile lies in a block
    AHEAD: tl.constexpr,  # the first tiles are, before the previous kernel has ended
    OVERLAP: tl.constexpr,
):
    row, pair, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = HEADS // PAIRS
    position = tl.load(positions + row)
    length = tl.where(position < padding_position, position, 0)  # positions before this one
    begin = split * SPLIT
    last = split == length // SPLIT  # it has the new position, and perhaps none before it
    if (position >= padding_position) | ((begin >= length) & ~last):
        if split == 0:  # one program of a row has to wait; a place that another one holds is missing elsewhere
            wait(OVERLAP)
        return
    kind: tl.constexpr = qkv.dtype.element_ty
    # Hopper converts e4m3 to bfloat16 by way of float16, and from there 16 numbers a clock.
    dots: tl.constexpr = tl.float16 if keys.dtype.element_ty == tl.float8e4nv and kind == tl.bfloat16 else kind
    d, tile = tl.arange(0, DIM), tl.arange(0, TILE)
    angles, q_scale, k_scale = _halves(rope + position * DIM, DIM), _halves(q_norm, DIM), _halves(k_norm, DIM)
    cache, blocks, new = pair * DIM, block_table + row * BLOCKS, position + tl.arange(0, 1)
    place_of_new = cache + _places(blocks, new, padding_position, block_stride, PAIRS * DIM, SIZE)
    end = tl.minimum(begin + SPLIT, length)
    if SPLIT == TILE:  # read while the previous kernel still runs
        at = cache + _places(blocks, begin + tile, end, block_stride, PAIRS * DIM, SIZE)
        k_low, k_high, value = _read(keys, values, at[:, None], (begin + tile < end)[:, None], dots, DIM)
    if QUEUED:
        block = tl.load(blocks + begin // SIZE)
    x = qkv + row * (HEADS + 2 * PAIRS) * DIM
    # The tensor cores take 16 queries: the group, repeated.
    group = tl.arange(0, 16)
    heads = pair * GROUP + group % GROUP
    top = tl.full((16,), float("-inf"), tl.float32)
    total = tl.zeros((16,), tl.float32)
    acc = tl.zeros((16, DIM), tl.float32)
    q_low = tl.zeros((16, DIM // 2), kind)
    q_high = tl.zeros((16, DIM // 2), kind)
    if not AHEAD:
        wait(OVERLAP)
        q_low, q_high, top, total, acc = _begin(
            x, heads, q_scale, k_scale, angles, eps, scale, last, place_of_new, keys, values, pair, HEADS, PAIRS, DIM
        )
    for start in range(begin, tl.maximum(end, begin + 1) if AHEAD else end, TILE):
        p = start + tile
        if QUEUED:  # a load behind another one in the same step would not be in flight with it
            at = cache + block * block_stride + (start % SIZE + tile) * (PAIRS * DIM)
            block = tl.load(blocks + (start + TILE) // SIZE, mask=start + TILE < end, other=0)
        elif SPLIT != TILE:
            at = cache + _places(blocks, p, end, block_stride, PAIRS * DIM, SIZE)
        if SPLIT != TILE:
            k_low, k_high, value = _read(keys, values, at[:, None], (p < end)[:, None], dots, DIM)
        if AHEAD and start == begin:
            wait(OVERLAP)
            q_low, q_high, top, total, acc = _begin(
                x, heads, q_scale, k_scale, angles, eps, scale, last, place_of_new, keys, values, pair,
                HEADS, PAIRS, DIM,
            )  # fmt: skip
        logits = tl.dot(q_low.to(dots), k_low.T, input_precision="ieee")
        logits = tl.dot(q_high.to(dots), k_high.T, logits, input_precision="ieee") * scale
        logits = tl.where((p < end)[None, :], logits, float("-inf"))
        highest = tl.maximum(top, tl.max(logits, 1))
        fade = tl.exp(top - highest)
        power = tl.exp(logits - highest[:, None])
        total = total * fade + tl.sum(power, 1)
        acc = tl.dot(power.to(dots), value, acc * fade[:, None], input_precision="ieee")
        top = highest

    mine = group < GROUP
    to = out + (row * HEADS + heads)[:, None] * DIM + d[None, :]
    if length < SPLIT:
        tl.store(to, (acc / total[:, None]).to(kind), mask=mine[:, None])
    else:
        place = row * PAIRS + pair
        slot = (place * SPLITS + split) * GROUP + group
        tl.store(parts + slot[:, None] * DIM + d[None, :], acc, mask=mine[:, None])
        tl.store(tops + slot * 2, top, mask=mine)
        tl.store(tops + slot * 2 + 1, total, mask=mine)
        tl.debug_barrier()  # all threads have written before the counter is raised
        used = length // SPLIT + 1
        if tl.atomic_add(counters + place, 1, sem="acq_rel") == used - 1:
            tl.store(counters + place, 0)
            member = tl.arange(0, GROUP)
            high = tl.full((GROUP,), float("-inf"), tl.float32)
            whole = tl.zeros((GROUP,), tl.float32)
            mixed = tl.zeros((GROUP, DIM), tl.float32)
            for start in range(0, used, MERGED):
                other = start + tl.arange(0, MERGED)
                its, there = (place * SPLITS + other)[:, None] * GROUP + member[None, :], (other < used)[:, None]
                # Bypasses the first-level cache, which misses writes of other processors.
                its_top = tl.load(tops + its * 2, mask=there, other=float("-inf"), cache_modifier=".cg")
                its_total = tl.load(tops + its * 2 + 1, mask=there, other=0, cache_modifier=".cg")
                sums = parts + its[:, :, None] * DIM + d[None, None, :]
                part = tl.load(sums, mask=there[:, :, None], other=0, cache_modifier=".cg")
                new_high = tl.maximum(high, tl.max(its_top, 0))
                lower, weight = tl.exp(high - new_high), tl.exp(its_top - new_high[None, :])
                whole = whole * lower + tl.sum(its_total * weight, 0)
                mixed = mixed * lower[:, None] + tl.sum(part * weight[:, :, None], 0)
                high = new_high
            place_of_all = out + (row * HEADS + pair * GROUP + member)[:, None] * DIM + d[None, :]
            tl.store(place_of_all, (mixed / whole[:, None]).to(kind))


@triton.jit
def _weighted(x, weight, angles, DIM: tl.constexpr):
    """A head at x times the norm's weight, and turned, in float32: both halves, and the norm's mean square."""
    low, high = _halves(x, DIM)
    low, high = low.to(tl.float32), high.to(tl.float32)
    square = tl.sum(low * low + high * high, 0) / DIM
    cos, sin = angles
    cos, sin = cos.to(tl.float32), sin.to(tl.float32)
    low, high = low * weight[0].to(tl.float32), high * weight[1].to(tl.float32)
    return low * cos - high * sin, high * cos + low * sin, square


@triton.jit
def _attend_in_frame(
    qkv,  # [TOKENS, B, (HEADS + 2 PAIRS) DIM]
    q_norm,  # [DIM]
    k_norm,  # [DIM]
    rope,  # [S, 2, DIM / 2]
    keys,  # [B, S, PAIRS, DIM]
    values,
    out,  # [TOKENS, B, HEADS DIM]
    eps,
    scale,
    position,  # of the last token
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    DIM: tl.constexpr,
    SIZE: tl.constexpr,  # S
    TOKENS: tl.constexpr,  # 1, or 2 at the start of a frame
    USED: tl.constexpr,  # positions before the last one, or more: a power of 2
    EARLY: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A frame is one tile: one program for a row and a pair. Norms scale the products, not their operands."""
    row, pair = tl.program_id(0), tl.program_id(1)
    GROUP: tl.constexpr = HEADS // PAIRS
    d, half, p = tl.arange(0, DIM), tl.arange(0, DIM // 2), tl.arange(0, USED)
    cache = row * SIZE * PAIRS * DIM + pair * DIM
    at = cache + (p * PAIRS * DIM)[:, None]
    kind = qkv.dtype.element_ty
    k_low, k_high, value = _read(keys, values, at, (p <= position - TOKENS)[:, None], kind, DIM)
    q_weight, k_weight, last = _halves(q_norm, DIM), _halves(k_norm, DIM), _halves(rope + position * DIM, DIM)
    wait(OVERLAP, EARLY)
    for token in tl.static_range(TOKENS):
        here = position - (TOKENS - 1) + token
        place = token * tl.num_programs(0) + row
        x = qkv + place * (HEADS + 2 * PAIRS) * DIM
        angles = last if token == TOKENS - 1 else _halves(rope + here * DIM, DIM)
        new_value = tl.load(x + (HEADS + PAIRS + pair) * DIM + d)
        new_low, new_high, k_square = _weighted(x + (HEADS + pair) * DIM, k_weight, angles, DIM)
        by_key = tl.rsqrt(k_square + eps)
        for head in tl.static_range(GROUP):
            q_low, q_high, q_square = _weighted(x + (pair * GROUP + head) * DIM, q_weight, angles, DIM)
            by_query = tl.rsqrt(q_square + eps) * scale
            own = tl.sum(q_low * new_low + q_high * new_high, 0) * by_query * by_key
            products = q_low[None, :] * k_low.to(tl.float32) + q_high[None, :] * k_high.to(tl.float32)
            logits = tl.where(p < here, tl.sum(products, 1) * by_query, float("-inf"))
            top = tl.maximum(tl.max(logits, 0), own)
            power, power_of_own = tl.exp(logits - top), tl.exp(own - top)
            mixed = tl.sum(power[:, None] * value.to(tl.float32), 0) + power_of_own * new_value.to(tl.float32)
            mixed /= tl.sum(power, 0) + power_of_own
            tl.store(out + (place * HEADS + pair * GROUP + head) * DIM + d, mixed.to(kind))
        new_low, new_high = (new_low * by_key).to(kind), (new_high * by_key).to(kind)
        to = cache + here * PAIRS * DIM
        tl.store(keys + to + half, new_low)
        tl.store(keys + to + DIM // 2 + half, new_high)
        tl.store(values + to + d, new_value)
        if token < TOKENS - 1:
            new = (p == here)[:, None]
            k_low, k_high = tl.where(new, new_low[None, :], k_low), tl.where(new, new_high[None, :], k_high)
            value = tl.where(new, new_value[None, :], value)


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of grouped-query attention, and its norms and rope."""

    queries: int
    pairs: int  # of keys and values
    dim: int
    eps: float
    rope: Tensor  # [S, 2, dim / 2]: cosine and sine of every position


@dataclass(frozen=True, slots=True)
class Scratch:
    """Scratch memory of a call for the parts of programs that share a row."""

    parts: Tensor  # float32[B, pairs, splits, group, dim]
    tops: Tensor  # float32[B, pairs, splits, group, 2]
    counters: Tensor  # int32[B, pairs], zeros
    split: int  # positions

    @staticmethod
    def empty(rows: int, positions: int, heads: Heads, device: torch.device, split: int | None = None) -> Scratch:
        """For `rows` rows of at most `positions`: the fewer rows, the more programs share one."""
        split = split or (_TILE if rows <= 8 else 128 if rows <= 32 else 512 if rows <= 64 else TOGETHER)
        splits, group = -(-positions // split), heads.queries // heads.pairs
        return Scratch(
            parts=torch.empty(rows, heads.pairs, splits, group, heads.dim, device=device),
            tops=torch.empty(rows, heads.pairs, splits, group, 2, device=device),
            counters=torch.zeros(rows, heads.pairs, device=device, dtype=torch.int32),
            split=split,
        )


@dataclass(frozen=True, slots=True)
class Queries:
    """New positions of rows of a paged cache."""

    positions: Tensor  # int64[B]; the padding position for a row that pauses
    block_table: Tensor  # int64[B, blocks of a row]
    padding_position: int
    scratch: Scratch
    together: bool  # several may belong to one row: all are written before any is read, in splits of TOGETHER


def _tile(rows: int, e4m3: bool) -> tuple[int, int, int]:
    """Positions that a program reads at a time, its warps, and its stages: the fastest measured on an H200."""
    if rows <= 8:
        return _TILE, 4, 3
    if e4m3 or 32 < rows <= 64:
        return 32, 2, 3
    return (32 if rows <= 32 else 16), 1, 3


def attend(
    q_norm: Tensor,
    k_norm: Tensor,
    heads: Heads,
    queries: Queries,
    keys: Tensor,
    values: Tensor,
    qkv: Tensor,
    out: Tensor,
) -> None:
    """New positions [B, (queries + 2 pairs) dim] -> `out` [B, queries dim]; writes keys and values at the positions.

    Keys and values [blocks, size, pairs, dim] are one layer of the cache; a block is contiguous. A row at the padding
    position writes nothing, and its result is undefined.
    """
    scratch, splits = queries.scratch, queries.scratch.parts.shape[2]
    tile, warps, stages = _tile(len(qkv), keys.element_size() == 1)
    blocks, size = queries.block_table.shape[1], keys.shape[1]
    queued = stages > 2 and scratch.split > tile and (size % tile == 0 or blocks == 1)
    shared = {
        "qkv": qkv, "k_norm": k_norm, "rope": heads.rope, "positions": queries.positions, "keys": keys,
        "values": values, "block_table": queries.block_table, "eps": heads.eps,
        "padding_position": queries.padding_position, "block_stride": keys.stride(0),
        "HEADS": heads.queries, "PAIRS": heads.pairs, "DIM": heads.dim,
        "SIZE": size, "BLOCKS": blocks, **overlap(qkv.device),
    }  # fmt: skip
    if queries.together:
        launch(_write, (len(qkv), heads.pairs), num_warps=1, **shared)
    launch(
        _attend, (len(qkv), heads.pairs, splits),
        q_norm=q_norm, out=out, parts=scratch.parts, tops=scratch.tops, counters=scratch.counters,
        scale=heads.dim**-0.5, SPLIT=scratch.split, SPLITS=splits, TILE=tile, MERGED=_MERGED, QUEUED=queued,
        AHEAD=scratch.split > tile and not queries.together,
        num_warps=warps, num_stages=stages, **shared,
    )  # fmt: skip


def attend_in_frame(
    q_norm: Tensor, k_norm: Tensor, heads: Heads, keys: Tensor, values: Tensor, tokens: int, position: int, qkv: Tensor
) -> Tensor:
    """The last `tokens` of a frame, one or two, the last at `position`: [tokens * B, (queries + 2 pairs) dim] ->
    [tokens * B, queries dim], all rows of a token together.

    Keys and values [B, S, pairs, dim], S a power of 2, are one layer of the frame's cache, and are written.
    """
    out = qkv.new_empty(len(qkv), heads.queries * heads.dim)
    launch(
        _attend_in_frame, (len(qkv) // tokens, heads.pairs),
        qkv=qkv, q_norm=q_norm, k_norm=k_norm, rope=heads.rope, keys=keys, values=values, out=out,
        eps=heads.eps, scale=heads.dim**-0.5, position=position,
        HEADS=heads.queries, PAIRS=heads.pairs, DIM=heads.dim, SIZE=keys.shape[1], TOKENS=tokens,
        USED=max(2, power_of_2(position)), EARLY=is_early(len(qkv)), num_warps=1, **overlap(qkv.device),
    )  # fmt: skip
    return out
