"""Residual units of the codec of many steps on Hopper: `codec.unit` for a width of 192 or 96 channels.

A width is three parts of 64 or 32 channels: two are multiplied at once, the third beside them. Warps that load bring
the operands for a group of warps that multiply, which takes one tile after the other: the first operands of a tile come
while the end of the one before is computed. Of 192 channels, the weights of a part come with its inputs. Those of 96
stay in shared memory; two groups share them, one of which computes the end of its tile while the other multiplies.

In Gluon, as `many_rows`.
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


@gluon.jit
def _origin(rows, position, stream, frames, T: gl.constexpr):
    """Of a stream's frame: where its ring begins, in steps, where the frame begins in that, and the steps before it."""
    place = gl.load(position + stream).to(gl.int32)
    row = stream
    if rows is not None:
        row = gl.load(rows + stream).to(gl.int32)
    return row * frames * T, place % frames * T, place * T


@gluon.jit
def _bring_weights(weight, part, tile, side_tile, bar):
    """Those of a part of the inputs."""
    PART: gl.constexpr = weight.block_type.shape[0]
    tma.async_copy_global_to_shared(weight, [part * PART, 0], bar, tile.slice(0, PART, dim=1))
    tma.async_copy_global_to_shared(weight, [part * PART, PART], bar, tile.slice(PART, PART, dim=1))
    tma.async_copy_global_to_shared(weight, [part * PART, 2 * PART], bar, side_tile)


@gluon.jit
def _load(
    group: gl.constexpr, buffers, given, T: gl.constexpr, C: gl.constexpr, TAPS: gl.constexpr, BM: gl.constexpr,
    PER: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, LOADERS: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """The warps that load for a group."""
    windows, tiles, side_tiles, added, ready, free, here, held = buffers
    x, rows, position, weight, residual, count_tiles, dilation, frames = given
    PART: gl.constexpr = C // 3
    HOLDS: gl.constexpr = PER == 3
    lines: gl.constexpr = gl.BlockedLayout([1, 8], [256 // PART, PART // 8], [LOADERS, 1], [1, 0])
    steps = gl.arange(0, BM, layout=gl.SliceLayout(1, lines))
    channel = gl.arange(0, PART, layout=gl.SliceLayout(0, lines))
    if HOLDS and group == 0:
        mbarrier.expect(held, 2 * (TAPS + 1) * C * C)
        for k in range(3 * (TAPS + 1)):
            _bring_weights(weight, k, tiles.index(k), side_tiles.index(k), held)
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    count = 0
    for tile in range(gl.program_id(0) * GROUPS + group, count_tiles, gl.num_programs(0) * GROUPS):
        m = tile * BM
        ring, first, past = _origin(rows, position, m // T, frames, T)
        for tap in range(TAPS if HOLDS else TAPS + 1):  # the last of these is the pointwise convolution
            time = m % T - (TAPS - 1 - tap) * dilation + steps
            slot = first + time
            slot = gl.where(slot < 0, slot + frames * T, slot)
            seen = (past + time >= 0)[:, None]  # zeros before the start of a stream
            source = x + ((ring + slot) * C)[:, None] + channel[None, :]
            for step in gl.static_range(3 // PER):
                to = group * STAGES + count % STAGES
                bar = ready.index(to)
                mbarrier.wait(free.index(to), (count // STAGES - 1) & 1, pred=count >= STAGES)
                if not HOLDS:
                    mbarrier.expect(bar, 2 * PART * C)
                    _bring_weights(weight, 3 * tap + step, tiles.index(to), side_tiles.index(to), bar)
                if tap < TAPS:
                    for i in gl.static_range(PER):
                        inputs = source + (step * PER + i) * PART
                        async_copy.async_copy_global_to_shared(windows.index(to * PER + i), inputs, mask=seen)
                async_copy.mbarrier_arrive(bar, increment_count=False)
                count += 1
            if tap == TAPS - 1:
                # This tile has freed all stages by now, so the one before has been stored.
                bar = here.index(group)
                mbarrier.expect(bar, 2 * BM * C)
                for i in gl.static_range(3):
                    tma.async_copy_global_to_shared(residual, [m, i * PART], bar, added.index(3 * group + i))


@gluon.jit
def _of_columns(values, part: gl.constexpr, layout: gl.constexpr, PART: gl.constexpr):
    """float32 [1, PART]"""
    n = part * PART + gl.arange(0, PART, layout=gl.SliceLayout(0, layout))
    return gl.load(values + n).to(gl.float32)[None, :]


@gluon.jit
def _activated(x, alpha, beta, part: gl.constexpr, layout: gl.constexpr):
    """SnakeBeta of a part [BM, PART], see `codec`."""
    factor, height = _of_columns(alpha, part, layout, x.shape[1]), _of_columns(beta, part, layout, x.shape[1])
    turns = x * factor + 12582912.0 - 12582912.0
    rest = x * factor - turns
    u = rest * rest
    p = 10.581300359230285
    p = p * u - 29.426274363110725
    p = p * u + 42.64342618575787
    p = p * u - 32.465139550539156
    p = p * u + 9.869524813549956
    return x + height * (u * p)


@gluon.jit
def _parts(main, side, layout: gl.constexpr):
    """[BM, 2 PART] and [BM, PART] -> three parts."""
    left, right = main.reshape((main.shape[0], 2, main.shape[1] // 2)).permute((0, 2, 1)).split()
    return gl.convert_layout(left, layout), gl.convert_layout(right, layout), side


@gluon.jit
def _finished(total, bias, added, group: gl.constexpr, part: gl.constexpr, layout: gl.constexpr):
    """A part with its bias and residual."""
    total += _of_columns(bias, part, layout, total.shape[1])
    return total + added.index(3 * group + part).load(layout).to(gl.float32)


@gluon.jit
def _put(parts, group: gl.constexpr, added, to, m):
    """The parts of a tile, rounded, from step m on of `to`."""
    for i in gl.static_range(3):
        added.index(3 * group + i).store(parts[i].to(to.dtype))
    fence_async_shared()
    for i in gl.static_range(3):
        tma.async_copy_shared_to_global(to, [m, i * added.shape[2]], added.index(3 * group + i))


@gluon.jit
def _multiply(
    group: gl.constexpr, buffers, given, T: gl.constexpr, C: gl.constexpr, TAPS: gl.constexpr, BM: gl.constexpr,
    PER: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """The warps of a group that multiply."""
    windows, tiles, side_tiles, added, ready, free, here, held = buffers
    rows, position, bias, between_alpha, between_beta, pointwise_bias, out, ring, alpha, beta, count_tiles, frames = (
        given
    )
    PART: gl.constexpr = C // 3
    HOLDS: gl.constexpr = PER == 3
    main: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, 2 * PART, 16])
    side: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, PART, 16])
    count = 0
    turn = 0
    if HOLDS:
        mbarrier.wait(held, 0)
    for tile in range(gl.program_id(0) * GROUPS + group, count_tiles, gl.num_programs(0) * GROUPS):
        acc = gl.zeros([BM, 2 * PART], gl.float32, main)
        more = gl.zeros([BM, PART], gl.float32, side)
        for step in range(3 * TAPS // PER):
            at = group * STAGES + count % STAGES
            mbarrier.wait(ready.index(at), (count // STAGES) & 1)
            fence_async_shared()
            for i in gl.static_range(PER):
                a, k = windows.index(at * PER + i), (step if HOLDS else at) * PER + i
                acc = warpgroup_mma(a, tiles.index(k), acc, is_async=True)
                more = warpgroup_mma(a, side_tiles.index(k), more, is_async=True)
            acc, more = warpgroup_mma_wait(2 * PER, deps=[acc, more])
            mbarrier.arrive(free.index(group * STAGES + (count + STAGES - 1) % STAGES), pred=step > 0)
            count += 1
        acc, more = warpgroup_mma_wait(0, deps=[acc, more])
        mbarrier.arrive(free.index(group * STAGES + (count + STAGES - 1) % STAGES))
        hidden = _parts(acc, more, side)
        acc = gl.zeros([BM, 2 * PART], gl.float32, main)
        more = gl.zeros([BM, PART], gl.float32, side)
        for i in gl.static_range(3):
            a = _activated(hidden[i] + _of_columns(bias, i, side, PART), between_alpha, between_beta, i, side)
            a = a.to(windows.dtype)
            k = 3 * TAPS + i
            if not HOLDS:
                k = group * STAGES + count % STAGES
                mbarrier.wait(ready.index(k), (count // STAGES) & 1)
            acc = warpgroup_mma(
                gl.convert_layout(a, gl.DotOperandLayout(0, main, 2)), tiles.index(k), acc, is_async=True
            )  # fmt: skip
            more = warpgroup_mma(
                gl.convert_layout(a, gl.DotOperandLayout(0, side, 2)), side_tiles.index(k), more, is_async=True
            )  # fmt: skip
            acc, more = warpgroup_mma_wait(0, deps=[acc, more])
            if not HOLDS:
                mbarrier.arrive(free.index(k))
                count += 1
        left, right, third = _parts(acc, more, side)
        mbarrier.wait(here.index(group), turn)
        turn ^= 1
        left = _finished(left, pointwise_bias, added, group, 0, side)
        right = _finished(right, pointwise_bias, added, group, 1, side)
        third = _finished(third, pointwise_bias, added, group, 2, side)
        m = tile * BM
        if out is not None:
            _put((left, right, third), group, added, out, m)
        if ring is not None:
            left = _activated(left, alpha, beta, 0, side)
            right = _activated(right, alpha, beta, 1, side)
            third = _activated(third, alpha, beta, 2, side)
            begin, first, _ = _origin(rows, position, m // T, frames, T)
            tma.store_wait(0)
            _put((left, right, third), group, added, ring, begin + first + m % T)
        tma.store_wait(0)


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
    PER: gl.constexpr,  # parts of a step: one, with its weights; or three, of a program that holds all weights
    STAGES: gl.constexpr,
    GROUPS: gl.constexpr,
    LOADERS: gl.constexpr,
    WARPS: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """A group takes tiles of BM steps of all channels."""
    PART: gl.constexpr = C // 3
    WEIGHTS: gl.constexpr = 3 * (TAPS + 1) if PER == 3 else STAGES
    gl.static_assert(T % BM == 0, "a tile is of one stream")
    windows = gl.allocate_shared_memory(weight.dtype, [GROUPS * STAGES * PER, BM, PART], weight.layout)
    tiles = gl.allocate_shared_memory(weight.dtype, [WEIGHTS, PART, 2 * PART], weight.layout)
    side_tiles = gl.allocate_shared_memory(weight.dtype, [WEIGHTS, PART, PART], weight.layout)
    added = gl.allocate_shared_memory(weight.dtype, [GROUPS * 3, BM, PART], weight.layout)
    ready = gl.allocate_shared_memory(gl.int64, [GROUPS * STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [GROUPS * STAGES, 1], mbarrier.MBarrierLayout())
    here = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    held = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(GROUPS * STAGES):
        mbarrier.init(ready.index(stage), count=32 * LOADERS + (0 if PER == 3 else 1))
        mbarrier.init(free.index(stage), count=1)
    for group in gl.static_range(GROUPS):
        mbarrier.init(here.index(group), count=1)
    mbarrier.init(held, count=1)
    fence_async_shared()
    buffers = (windows, tiles, side_tiles, added, ready, free, here, held)
    of_loads = (x, rows, position, weight, residual, M // BM, dilation, frames)
    of_products = (
        rows, position, bias, between_alpha, between_beta, pointwise_bias, out, ring, alpha, beta, M // BM, ring_frames
    )  # fmt: skip
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_multiply, (0, buffers, of_products, T, C, TAPS, BM, PER, STAGES, GROUPS, WARPS)),
                (_load, (0, buffers, of_loads, T, C, TAPS, BM, PER, STAGES, GROUPS, LOADERS, OVERLAP)),
            ],
            [LOADERS],
            [72],
        )
    else:
        gl.warp_specialize(
            [
                (_multiply, (0, buffers, of_products, T, C, TAPS, BM, PER, STAGES, GROUPS, WARPS)),
                (_multiply, (1, buffers, of_products, T, C, TAPS, BM, PER, STAGES, GROUPS, WARPS)),
                (_load, (0, buffers, of_loads, T, C, TAPS, BM, PER, STAGES, GROUPS, LOADERS, OVERLAP)),
                (_load, (1, buffers, of_loads, T, C, TAPS, BM, PER, STAGES, GROUPS, LOADERS, OVERLAP)),
            ],
            [WARPS, LOADERS, LOADERS],
            [192, 64, 64],
        )


def operands(weight: Tensor, residual: Tensor, out: Tensor | None, ring: Tensor | None, tile: Tile) -> Arguments:
    """What only this kernel is given: tensors as the copy engine reads and writes them, and how it runs."""
    channels = weight.shape[1]
    part = channels // 3
    block = gl.NVMMASharedLayout(swizzle_byte_width=2 * part, element_bitwidth=16, rank=2)

    def steps(tensor: Tensor | None) -> TensorDescriptor | None:
        if tensor is None:
            return None
        return TensorDescriptor.from_tensor(tensor.view(-1, channels), [tile.rows, part], block)

    return {
        "weight": TensorDescriptor.from_tensor(weight, [part, part], block),
        "residual": steps(residual),
        "out": steps(out),
        "ring": steps(ring),
        "PER": tile.inputs // part,
        "STAGES": tile.stages,
        "GROUPS": tile.groups,
        "LOADERS": tile.loaders,
        "WARPS": tile.warps,
        "num_warps": tile.warps,
        "maxnreg": (1 << 16) // (32 * tile.groups * (tile.warps + tile.loaders)) // 8 * 8,
    }
