"""Products of one row or two on Hopper: the weights of a program wait in shared memory, not in registers.

So there is room for the programs of several kernels, and memory is read while one of them waits for the one before. In
Gluon, as triton itself reads into shared memory only in the loop that multiplies. What precedes and follows the product
is as in `linear`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@gluon.jit
def kernel(
    x,  # [M, K]
    weight,  # [N, K], or [2 N, K] if GATED: gate, then up
    norm,  # [K], or None
    residual,  # [M, N], or None
    out,  # [M, N]
    eps,
    M: gl.constexpr,
    N: gl.constexpr,
    K: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,  # eight inputs of every thread
    GATED: gl.constexpr,
    WARPS: gl.constexpr,
    EARLY: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """A program computes BLOCK_N outputs of every row."""
    kind: gl.constexpr = out.dtype.element_ty
    BOTH: gl.constexpr = 2 if GATED else 1
    PARTS: gl.constexpr = K // BLOCK_K
    gl.static_assert(K % BLOCK_K == 0 and N % BLOCK_N == 0, "tiles and parts of the sum are whole")
    lines: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [1, WARPS], [1, 0])
    k = gl.arange(0, BLOCK_K, layout=gl.SliceLayout(0, lines))
    n = gl.program_id(0) * BLOCK_N + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, lines))
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    tiles = gl.allocate_shared_memory(kind, [PARTS * BOTH, BLOCK_N, BLOCK_K], flat)
    weights = weight + n[:, None] * K + k[None, :]
    for part in gl.static_range(PARTS):
        for half in gl.static_range(BOTH):
            at = weights + (half * N * K + part * BLOCK_K)
            async_copy.async_copy_global_to_shared(tiles.index(part * BOTH + half), at)
    async_copy.commit_group()
    scales = ()
    if norm is not None:
        for part in gl.static_range(PARTS):
            scales += (gl.load(norm + part * BLOCK_K + k),)
    if OVERLAP:
        if EARLY:
            gdc_launch_dependents()
        gdc_wait()
        if not EARLY:
            gdc_launch_dependents()
    for m in gl.static_range(M):
        if residual is not None:
            added = gl.load(residual + m * N + n)
        first = gl.load(x + m * K + k)
        if m == 0:
            async_copy.wait_group(0)
        squares = gl.zeros([BLOCK_K], gl.float32, gl.SliceLayout(0, lines))
        acc = gl.zeros([BLOCK_N, BLOCK_K], gl.float32, lines)
        up = gl.zeros([BLOCK_N, BLOCK_K], gl.float32, lines)
        for part in gl.static_range(PARTS):
            row = (first if part == 0 else gl.load(x + m * K + part * BLOCK_K + k)).to(gl.float32)
            if norm is not None:
                squares += row * row
                row *= scales[part].to(gl.float32)
            acc += tiles.index(part * BOTH).load(lines).to(gl.float32) * row[None, :]
            if GATED:
                up += tiles.index(part * BOTH + 1).load(lines).to(gl.float32) * row[None, :]
        result = gl.sum(acc, 1)
        if norm is not None:
            factor = gl.rsqrt(gl.sum(squares, 0) / K + eps)
            result *= factor
        result = result.to(kind).to(gl.float32)
        if GATED:
            other = gl.sum(up, 1)
            if norm is not None:
                other *= factor
            gate = (result / (1 + gl.exp(-result))).to(kind).to(gl.float32)
            result = (gate * other.to(kind).to(gl.float32)).to(kind).to(gl.float32)
        if residual is not None:
            result += added.to(gl.float32)
        gl.store(out + m * N + n, result.to(kind))
