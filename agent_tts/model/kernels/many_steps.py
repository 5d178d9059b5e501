"""Residual units of the codec of many steps on Hopper: `codec.unit` for a width of 192 channels.

The width is three parts of 64 channels: two are multiplied at once, the third beside them. Warps that load bring a part
of the inputs and its weights for those that multiply. A program takes one tile after the other: the first operands of a
tile come while the end of the one before is computed. In Gluon, as `many_rows`.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from agent_tts.model.kernels.launch import Arguments
from agent_tts.model.kernels.tiles import Tile

_BLOCK = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
_PART = 64  # channels of one step of the sum, and of one block of the copy engine


@gluon.jit
def _origin(rows, position, stream, frames, T: gl.constexpr):
    """Of a stream's frame: where its ring begins, in steps, where the frame begins in that, and the steps before it."""
    place = gl.load(position + stream).to(gl.int32)
    row = stream
    if rows is not None:
        row = gl.load(rows + stream).to(gl.int32)
    return row * frames * T, place % frames * T, place * T


@gluon.jit
def _load(
    x, rows, position, weight, residual, windows, tiles, side_tiles, added, ready, free, here, tiles_count, dilation,
    frames, T: gl.constexpr, C: gl.constexpr, TAPS: gl.constexpr, BM: gl.constexpr, STAGES: gl.constexpr,
    LOADERS: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """The warps that load."""
    PART: gl.constexpr = weight.block_type.shape[0]
    PARTS: gl.constexpr = C // PART
    lines: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [LOADERS, 1], [1, 0])
    step_of = gl.arange(0, BM, layout=gl.SliceLayout(1, lines))
    channel = gl.arange(0, PART, layout=gl.SliceLayout(0, lines))
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    count = 0
    for tile in range(gl.program_id(0), tiles_count, gl.num_programs(0)):
        m = tile * BM
        begin = m % T
        ring, first, past = _origin(rows, position, m // T, frames, T)
        for tap in range(TAPS + 1):  # the last of these is the pointwise convolution
            time = begin - (TAPS - 1 - tap) * dilation + step_of
            slot = first + time
            slot = gl.where(slot < 0, slot + frames * T, slot)
            seen = (past + time >= 0)[:, None]  # zeros before the start of a stream
            source = x + ((ring + slot) * C)[:, None] + channel[None, :]
            for part in gl.static_range(PARTS):
                to = count % STAGES
                bar = ready.index(to)
                mbarrier.wait(free.index(to), (count // STAGES - 1) & 1, pred=count >= STAGES)
                mbarrier.expect(bar, 2 * PART * C)
                k = (tap * PARTS + part) * PART
                for at in gl.static_range(0, 2 * PART, PART):
                    tma.async_copy_global_to_shared(weight, [k, at], bar, tiles.index(to).slice(at, PART, dim=1))
                tma.async_copy_global_to_shared(weight, [k, 2 * PART], bar, side_tiles.index(to))
                if tap < TAPS:
                    async_copy.async_copy_global_to_shared(windows.index(to), source + part * PART, mask=seen)
                async_copy.mbarrier_arrive(bar, increment_count=False)
                count += 1
            if tap == TAPS - 1:
                # This tile has freed all stages by now, so the one before has been stored.
                mbarrier.expect(here, 2 * BM * C)
                for part in gl.static_range(PARTS):
                    tma.async_copy_global_to_shared(residual, [m, part * PART], here, added.index(part))


@gluon.jit
def _of_columns(values, at, PART: gl.constexpr, layout: gl.constexpr):
    """float32 [1, PART]"""
    return gl.load(values + at + gl.arange(0, PART, layout=gl.SliceLayout(0, layout))).to(gl.float32)[None, :]


@gluon.jit
def _activated(x, alpha, beta, at, PART: gl.constexpr, layout: gl.constexpr):
    """As `codec._activated`, of columns from `at`."""
    factor, height = _of_columns(alpha, at, PART, layout), _of_columns(beta, at, PART, layout)
    turns = x * factor + 12582912.0 - 12582912.0
    part = x * factor - turns
    u = part * part
    p = 10.581300359230285
    p = p * u - 29.426274363110725
    p = p * u + 42.64342618575787
    p = p * u - 32.465139550539156
    p = p * u + 9.869524813549956
    return x + height * (u * p)


@gluon.jit
def _halves(x, layout: gl.constexpr):
    """[BM, 2 N] -> its left and its right half."""
    left, right = x.reshape((x.shape[0], 2, x.shape[1] // 2)).permute((0, 2, 1)).split()
    return gl.convert_layout(left, layout), gl.convert_layout(right, layout)


@gluon.jit
def _put(values, added, to, m):
    """The parts of a tile, rounded, from step m on of `to`."""
    for part in gl.static_range(len(values)):
        added.index(part).store(values[part].to(to.dtype))
    fence_async_shared()
    for part in gl.static_range(len(values)):
        tma.async_copy_shared_to_global(to, [m, part * added.shape[2]], added.index(part))


@gluon.jit
def _multiply(
    rows, position, bias, between_alpha, between_beta, pointwise_bias, out, ring, alpha, beta, windows, tiles,
    side_tiles, added, ready, free, here, tiles_count, ring_frames, T: gl.constexpr, C: gl.constexpr,
    TAPS: gl.constexpr, BM: gl.constexpr, STAGES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """The warps that multiply."""
    PART: gl.constexpr = side_tiles.shape[2]
    STEPS: gl.constexpr = TAPS * C // PART
    main: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, 2 * PART, 16])
    side: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, PART, 16])
    kind: gl.constexpr = windows.dtype
    count = 0
    turn = 0
    for tile in range(gl.program_id(0), tiles_count, gl.num_programs(0)):
        acc = gl.zeros([BM, 2 * PART], gl.float32, main)
        more = gl.zeros([BM, PART], gl.float32, side)
        for step in range(STEPS):
            at = count % STAGES
            mbarrier.wait(ready.index(at), (count // STAGES) & 1)
            fence_async_shared()
            acc = warpgroup_mma(windows.index(at), tiles.index(at), acc, is_async=True)
            more = warpgroup_mma(windows.index(at), side_tiles.index(at), more, is_async=True)
            acc, more = warpgroup_mma_wait(2, deps=[acc, more])
            mbarrier.arrive(free.index((count + STAGES - 1) % STAGES), pred=step > 0)
            count += 1
        acc, more = warpgroup_mma_wait(0, deps=[acc, more])
        mbarrier.arrive(free.index((count + STAGES - 1) % STAGES))
        left, right = _halves(acc, side)
        sums = (left, right, more)
        after = gl.zeros([BM, 2 * PART], gl.float32, main)
        beside = gl.zeros([BM, PART], gl.float32, side)
        for part in gl.static_range(3):
            hidden = sums[part] + _of_columns(bias, part * PART, PART, side)
            hidden = _activated(hidden, between_alpha, between_beta, part * PART, PART, side).to(kind)
            at = count % STAGES
            mbarrier.wait(ready.index(at), (count // STAGES) & 1)
            a = gl.convert_layout(hidden, gl.DotOperandLayout(0, main, 2))
            b = gl.convert_layout(hidden, gl.DotOperandLayout(0, side, 2))
            after = warpgroup_mma(a, tiles.index(at), after, is_async=True)
            beside = warpgroup_mma(b, side_tiles.index(at), beside, is_async=True)
            after, beside = warpgroup_mma_wait(0, deps=[after, beside])
            mbarrier.arrive(free.index(at))
            count += 1
        left, right = _halves(after, side)
        m = tile * BM
        mbarrier.wait(here, turn)
        turn ^= 1
        left = _finished(left, pointwise_bias, added, 0, PART, side)
        right = _finished(right, pointwise_bias, added, 1, PART, side)
        beside = _finished(beside, pointwise_bias, added, 2, PART, side)
        if out is not None:
            _put((left, right, beside), added, out, m)
        if ring is not None:
            left = _activated(left, alpha, beta, 0, PART, side)
            right = _activated(right, alpha, beta, PART, PART, side)
            beside = _activated(beside, alpha, beta, 2 * PART, PART, side)
            start, first, _ = _origin(rows, position, m // T, ring_frames, T)
            tma.store_wait(0)
            _put((left, right, beside), added, ring, start + first + m % T)
        tma.store_wait(0)


@gluon.jit
def _finished(total, bias, added, part: gl.constexpr, PART: gl.constexpr, layout: gl.constexpr):
    """With its bias and residual."""
    total += _of_columns(bias, part * PART, PART, layout)
    return total + added.index(part).load(layout).to(gl.float32)


@gluon.jit(do_not_specialize=["M", "dilation", "frames", "ring_frames"])
def kernel(
    x,  # [rows, frames * T, C], a ring
    rows,  # int64[R], or None: the rows of the streams in both rings
    position,  # int64[R]: of the frame
    weight,  # [(TAPS + 1) * C, C]: the taps, then the pointwise convolution; a descriptor of blocks [PART, PART]
    bias,  # [C]
    between_alpha,  # float32[C], as the other three: SnakeBeta between the convolutions, see `codec_fast.PackedSnake`
    between_beta,
    pointwise_bias,  # [C]
    residual,  # [M, C]: a descriptor of blocks [BM, PART], as the next two
    out,  # [M, C], or None
    ring,  # [rows * ring_frames * T, C], or None
    alpha,  # SnakeBeta before `ring`
    beta,
    M,
    dilation,
    frames,
    ring_frames,
    T: gl.constexpr,
    C: gl.constexpr,
    TAPS: gl.constexpr,
    BM: gl.constexpr,
    STAGES: gl.constexpr,
    LOADERS: gl.constexpr,
    WARPS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """A program takes tiles of BM steps of all channels."""
    PART: gl.constexpr = weight.block_type.shape[0]
    kind: gl.constexpr = weight.dtype
    block: gl.constexpr = weight.layout
    gl.static_assert(T % BM == 0 and C == 3 * PART, "a tile is of one stream, its width 128 + 64")
    windows = gl.allocate_shared_memory(kind, [STAGES, BM, PART], block)
    tiles = gl.allocate_shared_memory(kind, [STAGES, PART, 2 * PART], block)
    side_tiles = gl.allocate_shared_memory(kind, [STAGES, PART, PART], block)
    added = gl.allocate_shared_memory(kind, [C // PART, BM, PART], block)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    here = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1 + 32 * LOADERS)
        mbarrier.init(free.index(stage), count=1)
    mbarrier.init(here, count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                _multiply,
                (
                    rows, position, bias, between_alpha, between_beta, pointwise_bias, out, ring, alpha, beta, windows,
                    tiles, side_tiles, added, ready, free, here, M // BM, ring_frames, T, C, TAPS, BM, STAGES, WARPS,
                ),
            ),
            (
                _load,
                (
                    x, rows, position, weight, residual, windows, tiles, side_tiles, added, ready, free, here, M // BM,
                    dilation, frames, T, C, TAPS, BM, STAGES, LOADERS, OVERLAP,
                ),
            ),
        ],
        [LOADERS],
        [72],
    )  # fmt: skip


def operands(weight: Tensor, residual: Tensor, out: Tensor | None, ring: Tensor | None, tile: Tile) -> Arguments:
    """What only this kernel is given: tensors as the copy engine reads and writes them, and how it runs."""
    channels = weight.shape[1]

    def steps(tensor: Tensor | None) -> TensorDescriptor | None:
        if tensor is None:
            return None
        return TensorDescriptor.from_tensor(tensor.view(-1, channels), [tile.rows, _PART], _BLOCK)

    return {
        "weight": TensorDescriptor.from_tensor(weight, [_PART, _PART], _BLOCK),
        "residual": steps(residual),
        "out": steps(out),
        "ring": steps(ring),
        "STAGES": tile.stages,
        "LOADERS": tile.loaders,
        "WARPS": tile.warps,
        "num_warps": tile.warps,
        "maxnreg": 168,
    }
