"""Products of many rows on Hopper: a warp brings the operands by the copy engine, and others multiply them.

The first weights come while the previous kernel still runs, as in `linear`. What precedes and follows the product is in
the kernel. In Gluon, triton's lower language, as triton itself brings nothing before the wait.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
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
_BLOCK_E4M3 = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)
_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # from triton 3.7 on, and before
# Registers of a thread: two programs of so many warps that multiply fit a processor; or one beside small programs.
_REGISTERS, _BESIDE = {4: 128, 8: 80}, 96


@gluon.jit
def _bring_weights(
    weight, tiles, side_tiles, bar, n, k, N: gl.constexpr, BLOCK_N: gl.constexpr, SIDE: gl.constexpr,
    GATED: gl.constexpr
):  # fmt: skip
    """The weights of a step, each half of a gated product to its half of the tile."""
    BOX: gl.constexpr = weight.block_type.shape[0]
    for half in gl.static_range(2 if GATED else 1):
        for at in gl.static_range(0, BLOCK_N, BOX):
            tma.async_copy_global_to_shared(weight, [n + half * N + at, k], bar, tiles.slice(half * BLOCK_N + at, BOX))
        if SIDE:
            tma.async_copy_global_to_shared(weight, [n + half * N + BLOCK_N, k], bar, side_tiles.slice(half * BOX, BOX))


@gluon.jit
def _load(
    x, weight, rows, tiles, side_tiles, ready, free, m, n, k, N: gl.constexpr, BLOCK_N: gl.constexpr,
    SIDE: gl.constexpr, BLOCK_K: gl.constexpr, STEPS: gl.constexpr, STAGES: gl.constexpr, BYTES: gl.constexpr,
    GATED: gl.constexpr, EARLY: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """The warp that loads."""
    for stage in gl.static_range(STAGES):
        mbarrier.expect(ready.index(stage), BYTES)
        _bring_weights(
            weight, tiles.index(stage), side_tiles.index(stage), ready.index(stage), n, k + stage * BLOCK_K, N,
            BLOCK_N, SIDE, GATED,
        )  # fmt: skip
    if OVERLAP:
        if EARLY:
            gdc_launch_dependents()
        gdc_wait()
    for stage in gl.static_range(STAGES):
        tma.async_copy_global_to_shared(x, [m, k + stage * BLOCK_K], ready.index(stage), rows.index(stage))
    if OVERLAP and not EARLY:
        gdc_launch_dependents()
    for step in range(STAGES, STEPS):
        to = step % STAGES
        mbarrier.wait(free.index(to), (step // STAGES - 1) & 1)
        mbarrier.expect(ready.index(to), BYTES)
        tma.async_copy_global_to_shared(x, [m, k + step * BLOCK_K], ready.index(to), rows.index(to))
        _bring_weights(
            weight, tiles.index(to), side_tiles.index(to), ready.index(to), n, k + step * BLOCK_K, N, BLOCK_N, SIDE,
            GATED,
        )  # fmt: skip


@gluon.constexpr_function
def _lines(width, warps):
    """Whole lines of [*, width] for neighbouring threads."""
    across = min(width // 8, 32)
    return gl.BlockedLayout([1, 8], [32 // across, across], [warps, 1], [1, 0])


@gluon.jit
def _places(m, n, M, N: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, WARPS: gl.constexpr):
    """Of a tile in [M, N], by lines: where its numbers are, which there are, and its rows."""
    lines: gl.constexpr = _lines(BLOCK_N, WARPS)
    row = m + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, lines))
    column = n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, lines))
    return row[:, None] * N + column[None, :], (row < M)[:, None], row


@gluon.jit
def _factor(squares, m, M, eps, K: gl.constexpr, PARTS: gl.constexpr, BLOCK_M: gl.constexpr, WARPS: gl.constexpr):
    """Of the norm, from the sums of squares of parts of a row: [BLOCK_M]."""
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    row = m + gl.arange(0, BLOCK_M, layout=flat)
    total = gl.zeros([BLOCK_M], gl.float32, flat)
    for part in gl.static_range(PARTS):
        total += gl.load(squares + part * M + row, mask=row < M, other=0)
    return gl.rsqrt(total / K + eps)


@gluon.jit
def _store(acc, up, added, norm, out, next_x, next_squares, m, n, M, N: gl.constexpr, WARPS: gl.constexpr):
    """Gate and residual, each if there is one, rounded as by the separate operations; what the next norm needs."""
    kind: gl.constexpr = out.dtype.element_ty
    acc = acc.to(kind)
    if up is not None:
        gate = acc.to(gl.float32)
        gate = (gate / (1 + gl.exp(-gate))).to(kind).to(gl.float32)
        acc = (gate * up.to(kind).to(gl.float32)).to(kind)
    acc = gl.convert_layout(acc, _lines(acc.shape[1], WARPS))
    to, ok, row = _places(m, n, M, N, acc.shape[0], acc.shape[1], WARPS)
    if added is not None:
        acc = (acc.to(gl.float32) + added.to(gl.float32)).to(kind)
    gl.store(out + to, acc, mask=ok)
    if norm is not None:
        result = acc.to(gl.float32)
        gl.store(next_x + to, (result * norm[None, :]).to(kind), mask=ok)
        gl.store(next_squares + gl.program_id(0) * M + row, gl.sum(result * result, 1), mask=row < M)


@gluon.jit
def _halves(acc):
    """[M, 2 N] -> two [M, N]."""
    return acc.reshape((acc.shape[0], 2, acc.shape[1] // 2)).permute((0, 2, 1)).split()


@gluon.jit
def _sum_splits(acc, parts, counters, SPLITS: gl.constexpr):
    """The sum over all splits of a tile, always in the same order, and whether this is the program that has it."""
    HEIGHT: gl.constexpr = acc.shape[0]
    WIDTH: gl.constexpr = acc.shape[1]
    row = gl.arange(0, HEIGHT, layout=gl.SliceLayout(1, acc.type.layout))
    column = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, acc.type.layout))
    place = gl.program_id(1) * gl.num_programs(0) + gl.program_id(0)
    mine = parts + place * SPLITS * HEIGHT * WIDTH + (row[:, None] * WIDTH + column[None, :])
    gl.store(mine + gl.program_id(2) * HEIGHT * WIDTH, acc)
    _barrier()  # all of these warps have written before their leader counts
    last = gl.atomic_add(counters + place, 1, sem="acq_rel") == SPLITS - 1
    if last:
        gl.store(counters + place, 0)
        # Past the first-level cache, which does not see what other processors write.
        acc = gl.load(mine, cache_modifier=".cg")
        for other in gl.static_range(1, SPLITS):
            acc += gl.load(mine + other * HEIGHT * WIDTH, cache_modifier=".cg")
    return acc, last


@gluon.jit
def _multiply(
    rows, tiles, side_tiles, ready, free, squares, residual, out, next_norm, next_x, next_squares, parts, counters, eps,
    m, n, M, N: gl.constexpr, K: gl.constexpr, PARTS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    SIDE: gl.constexpr, SPLITS: gl.constexpr, STEPS: gl.constexpr, STAGES: gl.constexpr, GATED: gl.constexpr,
    WARPS: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """The warps that multiply. What follows the sum is read before it."""
    WIDTH: gl.constexpr = tiles.shape[1]
    DOWN: gl.constexpr = WARPS if WARPS * 16 <= BLOCK_M else BLOCK_M // 16
    main: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [DOWN, WARPS // DOWN], [16, WIDTH, 16])
    side: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [DOWN, WARPS // DOWN], [16, WIDTH // 2, 16])
    norm = None
    if next_norm is not None:
        norm = gl.load(next_norm + n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, _lines(BLOCK_N, WARPS))))
        norm = norm.to(gl.float32)
    if OVERLAP:
        gdc_wait()
    added = None
    if residual is not None:
        to, ok, _ = _places(m, n, M, N, BLOCK_M, BLOCK_N, WARPS)
        added = gl.load(residual + to, mask=ok, other=0)
    if squares is not None:
        factor = _factor(squares, m, M, eps, K, PARTS, BLOCK_M, WARPS)
        factor = gl.convert_layout(factor, gl.SliceLayout(1, main))[:, None]
    acc = gl.zeros([BLOCK_M, WIDTH], gl.float32, main)
    if SIDE:
        more = gl.zeros([BLOCK_M, WIDTH // 2], gl.float32, side)
    for step in range(STEPS):
        at = step % STAGES
        mbarrier.wait(ready.index(at), (step // STAGES) & 1)
        acc = warpgroup_mma(rows.index(at), tiles.index(at).permute((1, 0)), acc, is_async=True)
        if SIDE:
            more = warpgroup_mma(rows.index(at), side_tiles.index(at).permute((1, 0)), more, is_async=True)
            acc, more = warpgroup_mma_wait(2, deps=[acc, more])
        else:
            acc = warpgroup_mma_wait(1, deps=[acc])
        mbarrier.arrive(free.index((step + STAGES - 1) % STAGES), pred=step > 0)
    if SIDE:
        acc, more = warpgroup_mma_wait(0, deps=[acc, more])
    else:
        acc = warpgroup_mma_wait(0, deps=[acc])
    last = True
    if SPLITS > 1:
        gl.static_assert(not SIDE, "splits of a tile have one width")
        acc, last = _sum_splits(acc, parts, counters, SPLITS)
    if last:
        if squares is not None:
            acc *= factor
        if GATED:
            gate, up = _halves(acc)
            _store(gate, up, added, norm, out, next_x, next_squares, m, n, M, N, WARPS)
        else:
            _store(acc, None, added, norm, out, next_x, next_squares, m, n, M, N, WARPS)
        if SIDE:
            gl.static_assert(GATED and next_norm is None and residual is None, "these are read for one width")
            if squares is not None:
                more *= gl.convert_layout(factor, side)
            gate, up = _halves(more)
            _store(gate, up, None, None, out, None, None, m, n + BLOCK_N, M, N, WARPS)


@gluon.constexpr_function
def _bytes(height, warps):
    """Numbers in e4m3 [height, 128] as threads read them: 32 neighbours, those of a thread's part of 8 products."""
    rows = [[16 * 2**bit, 0] for bit in range((height // 16).bit_length() - 1)]
    down = warps.bit_length() - 1
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [8, 0], *rows[down:]],
        lane_bases=[[0, 32], [0, 64], [1, 0], [2, 0], [4, 0]],
        warp_bases=rows[:down],
        block_bases=[],
        shape=[height, 128],
    )


@gluon.jit
def _widen(tile, main: gl.constexpr, WARPS: gl.constexpr):
    """Interleaved numbers in e4m3 in shared memory, [N, 128] -> the left side of a product, bfloat16[N, 128].

    The bits of a number, moved to those of a bfloat16, are its value times 2^-120. The conversion of the hardware,
    16 in a clock of a processor, takes longer than to read them from memory.
    """
    HEIGHT: gl.constexpr = tile.shape[0]
    small = tile.load(_bytes(HEIGHT, WARPS))
    wide = gl.inline_asm_elementwise(
        """
        {
        .reg .b32 low, high, part, by;
        mov.b32 by, 0x7b807b80;
        prmt.b32 low, $2, 0, 0x1404;
        prmt.b32 high, $2, 0, 0x3424;
        shr.b32 part, low, 4;
        and.b32 part, part, 0x07f007f0;
        lop3.b32 low, low, 0x80008000, part, 0xea;
        mul.rn.bf16x2 $0, low, by;
        shr.b32 part, high, 4;
        and.b32 part, part, 0x07f007f0;
        lop3.b32 high, high, 0x80008000, part, 0xea;
        mul.rn.bf16x2 $1, high, by;
        }
        """,
        "=r,=r,r",
        [small],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=4,
    )
    wide = wide.reshape((HEIGHT, 4, 8, 2, 2)).permute((0, 2, 3, 1, 4)).reshape((HEIGHT, 128))
    return gl.convert_layout(wide, gl.DotOperandLayout(0, main, 2))


@gluon.jit
def _multiply_e4m3(
    rows, tiles, ready, free, scale, squares, residual, out, next_norm, next_x, next_squares, parts, counters, eps,
    m, n, M, N: gl.constexpr, K: gl.constexpr, PARTS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    SPLITS: gl.constexpr, STEPS: gl.constexpr, STAGES: gl.constexpr, GATED: gl.constexpr, WARPS: gl.constexpr,
    OVERLAP: gl.constexpr,
):  # fmt: skip
    """The same with interleaved weights in e4m3: they are the left side, from registers, and the tile is transposed.

    The weights of the next step are widened while this one's are multiplied.
    """
    HEIGHT: gl.constexpr = tiles.shape[1]
    main: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_M, 16])
    norm = None
    if next_norm is not None:
        norm = gl.load(next_norm + n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, _lines(BLOCK_N, WARPS))))
        norm = norm.to(gl.float32)
    line = gl.arange(0, HEIGHT, layout=gl.SliceLayout(1, main))
    by = gl.load(scale + n + line // BLOCK_N * N + line % BLOCK_N)[:, None]
    if OVERLAP:
        gdc_wait()
    added = None
    if residual is not None:
        to, ok, _ = _places(m, n, M, N, BLOCK_M, BLOCK_N, WARPS)
        added = gl.load(residual + to, mask=ok, other=0)
    if squares is not None:
        factor = _factor(squares, m, M, eps, K, PARTS, BLOCK_M, WARPS)
        factor = gl.convert_layout(factor, gl.SliceLayout(0, main))[None, :]
    acc = gl.zeros([HEIGHT, BLOCK_M], gl.float32, main)
    mbarrier.wait(ready.index(0), 0)
    tile = _widen(tiles.index(0), main, WARPS)
    for step in range(STEPS):
        at = step % STAGES
        acc = warpgroup_mma(tile, rows.index(at).permute((1, 0)), acc, is_async=True)
        following = gl.minimum(step + 1, STEPS - 1)  # behind the last step the same again
        mbarrier.wait(ready.index(following % STAGES), (following // STAGES) & 1)
        next_tile = _widen(tiles.index(following % STAGES), main, WARPS)
        acc, tile = warpgroup_mma_wait(0, deps=[acc, tile])
        tile = next_tile
        mbarrier.arrive(free.index(at))
    last = True
    if SPLITS > 1:
        acc, last = _sum_splits(acc, parts, counters, SPLITS)
    if last:
        acc *= by
        if squares is not None:
            acc *= factor
        # By lines, with both halves of a gated one in the same thread.
        lines = gl.convert_layout(acc.to(out.dtype.element_ty).permute((1, 0)), _lines(BLOCK_N, WARPS))
        if GATED:
            gate, up = _halves(lines)
            _store(gate, up, added, norm, out, next_x, next_squares, m, n, M, N, WARPS)
        else:
            _store(lines, None, added, norm, out, next_x, next_squares, m, n, M, N, WARPS)


@gluon.jit(do_not_specialize=["M"])
def kernel(
    x,  # [M, K]: a descriptor of blocks [BLOCK_M, BLOCK_K]
    weight,  # [N, K], or [2 N, K] if GATED: gate, then up; a descriptor of blocks [a divisor of BLOCK_N, BLOCK_K]
    scale,  # float32[N], or [2 N] if GATED: of the rows of an interleaved weight in e4m3; otherwise None
    squares,  # float32[PARTS, M]: sums of squares of parts of the rows before their norm, or None: no norm
    residual,  # [M, N], or None
    out,  # [M, N]
    next_norm,  # [N]: the weight of the norm of the result; or None
    next_x,  # [M, N]: the result times that weight
    next_squares,  # float32[programs along N, M]: sums of squares of the result
    parts,  # float32[tiles, SPLITS, BLOCK_M, BLOCK_N (2 BLOCK_N if GATED)]: sums over a split
    counters,  # int32[tiles]: splits done; zero before and after
    eps,
    M,
    N: gl.constexpr,
    K: gl.constexpr,
    PARTS: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    SIDE: gl.constexpr,
    BLOCK_K: gl.constexpr,
    SPLITS: gl.constexpr,
    STAGES: gl.constexpr,
    GATED: gl.constexpr,
    WARPS: gl.constexpr,
    EARLY: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """A program gives a tile of BLOCK_M rows and BLOCK_N outputs, half as many more if SIDE, over its split of K."""
    BOTH: gl.constexpr = 2 if GATED else 1
    ACROSS: gl.constexpr = BLOCK_N + (BLOCK_N // 2 if SIDE else 0)
    STEPS: gl.constexpr = K // SPLITS // BLOCK_K
    BITS: gl.constexpr = x.dtype.primitive_bitwidth * BLOCK_M + weight.dtype.primitive_bitwidth * BOTH * ACROSS
    BYTES: gl.constexpr = BLOCK_K * BITS // 8
    gl.static_assert(K % (SPLITS * BLOCK_K) == 0 and N % ACROSS == 0, "tiles and steps of the sum are whole")
    gl.static_assert(STEPS >= STAGES, "every stage is used")
    m, n, k = gl.program_id(1) * BLOCK_M, gl.program_id(0) * ACROSS, gl.program_id(2) * (K // SPLITS)
    rows = gl.allocate_shared_memory(x.dtype, [STAGES, BLOCK_M, BLOCK_K], x.layout)
    tiles = gl.allocate_shared_memory(weight.dtype, [STAGES, BOTH * BLOCK_N, BLOCK_K], weight.layout)
    side_tiles = tiles
    if SIDE:
        side_tiles = gl.allocate_shared_memory(x.dtype, [STAGES, BOTH * BLOCK_N // 2, BLOCK_K], x.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=1)
    fence_async_shared()
    if scale is None:
        gl.warp_specialize(
            [
                (
                    _multiply,
                    (
                        rows, tiles, side_tiles, ready, free, squares, residual, out, next_norm, next_x, next_squares,
                        parts, counters, eps, m, n, M, N, K, PARTS, BLOCK_M, BLOCK_N, SIDE, SPLITS, STEPS, STAGES,
                        GATED, WARPS, OVERLAP,
                    ),
                ),
                (
                    _load,
                    (
                        x, weight, rows, tiles, side_tiles, ready, free, m, n, k, N, BLOCK_N, SIDE, BLOCK_K,
                        STEPS, STAGES, BYTES, GATED, EARLY, OVERLAP,
                    ),
                ),
            ],
            [1],
            [24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (
                    _multiply_e4m3,
                    (
                        rows, tiles, ready, free, scale, squares, residual, out, next_norm, next_x, next_squares,
                        parts, counters, eps, m, n, M, N, K, PARTS, BLOCK_M, BLOCK_N, SPLITS, STEPS, STAGES, GATED,
                        WARPS, OVERLAP,
                    ),
                ),
                (
                    _load,
                    (
                        x, weight, rows, tiles, side_tiles, ready, free, m, n, k, N, BLOCK_N, SIDE, BLOCK_K,
                        STEPS, STAGES, BYTES, GATED, EARLY, OVERLAP,
                    ),
                ),
            ],
            [1],
            [24],
        )  # fmt: skip


def operands(x: Tensor, weight: Tensor, scale: Tensor | None, tile: Tile) -> Arguments:
    """What only this kernel is given: `x` and `weight` as the copy engine reads them, and how it runs."""
    block = _BLOCK if scale is None else _BLOCK_E4M3
    side = tile.outputs % 3 == 0
    width = tile.outputs // 3 * 2 if side else tile.outputs
    return {
        "x": TensorDescriptor.from_tensor(x, [tile.rows, tile.inputs], _BLOCK),
        "weight": TensorDescriptor.from_tensor(weight, [width // 2 if side else width, tile.inputs], block),
        "scale": scale,
        "BLOCK_N": width,
        "SIDE": side,
        "STAGES": tile.stages,
        "WARPS": tile.warps,
        "maxnreg": _REGISTERS[tile.warps] if tile.loaders > 1 else _BESIDE if scale is None else None,
    }
