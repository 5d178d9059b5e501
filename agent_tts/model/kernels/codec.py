"""Triton kernels of the codec step, one 80 ms frame of every row, channels last.

Letters: R streams, T steps of a frame at the layer's own rate, C channels, M = R * T. Sums are float32; a result is
rounded where it is stored. A ring is [rows, frames * T, C]: see `CodecState`. `rows` int64[R] is the row of each stream
in a ring, in keys and in values; None: the stream's own number. `alpha` and `beta`: SnakeBeta before the ring, or None;
`alpha` without `beta`: ELU.
"""

from __future__ import annotations

import triton
import triton.language as tl

from agent_tts.model.kernels.launch import wait


@triton.jit
def _activated(x, factor, height):
    """SnakeBeta of x [M, N] by float32[N]: the factor in half turns, and a reciprocal height; ELU without a height.

    sin(x)^2 within 5e-7 where |x| < 1e3: whole half turns are taken off, then a minimax polynomial.
    """
    if height is None:
        x = tl.where(x > 0, x, factor[None, :] * (tl.exp(tl.minimum(x, 0.0)) - 1.0))
    else:
        # Adding 1.5 * 2^23 leaves a float32 no bits for a fraction: it rounds to nearest.
        turns = x * factor[None, :] + 12582912.0 - 12582912.0
        part = x * factor[None, :] - turns
        u = part * part
        p = 10.581300359230285
        p = p * u - 29.426274363110725
        p = p * u + 42.64342618575787
        p = p * u - 32.465139550539156
        p = p * u + 9.869524813549956
        x += height[None, :] * (u * p)
    return x


@triton.jit
def _of_columns(values, n, N: tl.constexpr):
    """float32 values of columns n."""
    return tl.load(values + n, mask=n < N, other=0.0).to(tl.float32)


@triton.jit
def _row(rows, stream, inside):
    """The row of each stream."""
    row = stream
    if rows is not None:
        row = tl.load(rows + stream, mask=inside, other=0).to(tl.int32)
    return row


@triton.jit
def _store(value, out, ring, factor, height, m, n, M, row, position, frames, T: tl.constexpr, N: tl.constexpr):
    """value [M, N] into `out` [M, N] as it is, and into this frame of `ring` activated, each if there is one."""
    inside = (m < M)[:, None] & (n < N)[None, :]
    if out is not None:
        tl.store(out + m[:, None] * N + n[None, :], value.to(out.dtype.element_ty), mask=inside)
    if ring is not None:
        if factor is not None:
            value = _activated(value, factor, height)
        time = (row * frames + position % frames) * T + m % T
        tl.store(ring + time[:, None] * N + n[None, :], value.to(ring.dtype.element_ty), mask=inside)


@triton.jit
def _window(
    x, k, inside, time, seen, row, position, frames, T: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """Channels k at times of rows of a ring [len(time), len(k)], counted from the start of the frame: zeros before the
    start of a stream and where not `seen`. bool `inside` [1, len(k)] says which channels there are, if not all of them.
    """
    slot = position % frames * T + time
    slot = tl.where(slot < 0, slot + frames * T, slot)
    seen = (seen & (position * T + time >= 0))[:, None]
    if inside is not None:
        seen &= inside
    at = (row * frames * T + slot) * C
    return tl.load(x + at[:, None] + k[None, :], mask=seen, other=0.0)


@triton.jit
def _tile(N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """The rows m and columns n of a product that this program computes."""
    tiles = tl.cdiv(N, BN)
    return tl.program_id(0) // tiles * BM + tl.arange(0, BM), tl.program_id(0) % tiles * BN + tl.arange(0, BN)


@triton.jit
def _convolve(
    x, weight, begin, row, place, m, n, M, dilation, frames,
    T: tl.constexpr, C: tl.constexpr, N: tl.constexpr, TAPS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, SPLITS: tl.constexpr = 1,
):  # fmt: skip
    """A causal convolution's sums, float32 [BM, BN]: ring x [R, frames * T, C], weight [TAPS * C, N].

    Of several splits the one that begins with step `begin`.
    """
    k = tl.arange(0, BK)
    weights = weight + k[:, None] * N + n[None, :]
    inside = (n < N)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    STEPS: tl.constexpr = TAPS * C // BK
    end = STEPS if SPLITS == 1 else tl.minimum(begin + tl.cdiv(STEPS, SPLITS), STEPS)
    for step in tl.range(begin, end, num_stages=STAGES):
        age = (TAPS - 1 - step * BK // C) * dilation
        a = _window(x, step % (C // BK) * BK + k, None, m % T - age, m < M, row, place, frames, T, C)
        total = tl.dot(a, tl.load(weights + step * BK * N, mask=inside, other=0.0), total)
    return total


@triton.jit
def _sum_splits(total, parts, counters, BM: tl.constexpr, BN: tl.constexpr, SPLITS: tl.constexpr):
    """The sum of a tile's splits in their order, in the last of them, and whether this program is it.

    Their sums go to `parts` float32[tiles, SPLITS, BM, BN]; `counters` int32[tiles] are zero before and after.
    """
    tile = tl.program_id(0)
    mine = parts + (tile * SPLITS * BM + tl.arange(0, BM))[:, None] * BN + tl.arange(0, BN)[None, :]
    tl.store(mine + tl.program_id(1) * BM * BN, total)
    tl.debug_barrier()  # the whole program has written before its leader counts
    last = tl.atomic_add(counters + tile, 1, sem="acq_rel") == SPLITS - 1
    if last:
        tl.store(counters + tile, 0)
        total = tl.zeros((BM, BN), tl.float32)
        for split in tl.static_range(SPLITS):
            # Past the first-level cache, which does not see what other processors write.
            total += tl.load(mine + split * BM * BN, cache_modifier=".cg")
    return total, last


@triton.jit
def _product(row, weights, total):
    """total [BM, BN] + row [BM, K] times weights [K, BN]; of one row without the tensor cores, which take 16."""
    if row.shape[0] == 1:
        column = tl.trans(row).to(tl.float32)
        total += tl.sum(column * weights.to(tl.float32), 0)[None, :]
    else:
        total = tl.dot(row, weights, total)
    return total


@triton.jit
def _residual(residual, m, n, M, N: tl.constexpr):
    """float32 [M, N]"""
    at = m[:, None] * N + n[None, :]
    return tl.load(residual + at, mask=(m < M)[:, None] & (n < N)[None, :], other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["M", "ring_frames"])
def linear(
    x, weight, bias, scale, residual, out, rows, position, ring, alpha, beta, parts, counters, M, ring_frames,
    T: tl.constexpr, K: tl.constexpr, N: tl.constexpr, EPS: tl.constexpr, GELU: tl.constexpr, GATED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """A linear layer: x [M, K], weight [K, N], twice as wide if GATED -> `out` [M, N], and into `ring`.

    In this order, each if there is one: root-mean-square norm of x by EPS > 0, bias [N], GELU or silu(first half) *
    second half, scale [N], residual [M, N]. `rows` are those of the ring, and T is any number without one. The kernel
    before this one must not write the residual: a small tile's is read ahead, as are the weights of a sum of one step.
    For splits see `_sum_splits`; a product with a norm or a gate has none.
    """
    m, n = _tile(N, BM, BN)
    place, row = m, m  # of no use without a ring
    if ring is not None:
        place = tl.load(position + m // T, mask=m < M, other=0).to(tl.int32)
        row = _row(rows, m // T, m < M)
    SMALL: tl.constexpr = BM * BN <= 4096  # and so has registers for what is read ahead
    if SMALL:
        biases = None if bias is None else _of_columns(bias, n, N)
        scales = None if scale is None else _of_columns(scale, n, N)
        factor = None if alpha is None else _of_columns(alpha, n, N)
        height = None if beta is None else _of_columns(beta, n, N)
        added = None if residual is None else _residual(residual, m, n, M, N)
    k = tl.arange(0, BK)
    WIDTH: tl.constexpr = 2 * N if GATED else N
    weights = weight + k[:, None] * WIDTH + n[None, :]
    inside = (n < N)[None, :]
    if BK == K:
        whole = tl.load(weights, mask=inside, other=0.0)
        if GATED:
            gated_whole = tl.load(weights + N, mask=inside, other=0.0)
    wait(OVERLAP)
    total = tl.zeros((BM, BN), tl.float32)
    if GATED:
        gated = tl.zeros((BM, BN), tl.float32)
    if EPS > 0:
        squares = tl.zeros((BM,), tl.float32)
    if BK == K:
        a = tl.load(x + m[:, None] * K + k[None, :], mask=(m < M)[:, None], other=0.0)
        total = _product(a, whole, total)
        if GATED:
            gated = _product(a, gated_whole, gated)
        if EPS > 0:
            wide = a.to(tl.float32)
            squares += tl.sum(wide * wide, 1)
    STEPS: tl.constexpr = 0 if BK == K else K // BK // SPLITS
    begin = 0 if SPLITS == 1 else tl.program_id(1) * STEPS
    for step in tl.range(begin, begin + STEPS, num_stages=STAGES):
        a = tl.load(x + m[:, None] * K + (step * BK + k)[None, :], mask=(m < M)[:, None], other=0.0)
        total = tl.dot(a, tl.load(weights + step * BK * WIDTH, mask=inside, other=0.0), total)
        if GATED:
            gated = tl.dot(a, tl.load(weights + step * BK * WIDTH + N, mask=inside, other=0.0), gated)
        if EPS > 0:
            wide = a.to(tl.float32)
            squares += tl.sum(wide * wide, 1)
    if SPLITS > 1:
        tl.static_assert(EPS == 0 and not GATED, "the sum of one product alone is split")
        total, last = _sum_splits(total, parts, counters, BM, BN, SPLITS)
        if last == 0:
            return
    if EPS > 0:
        by = tl.rsqrt(squares / K + EPS)[:, None]
        total *= by
        if GATED:
            gated *= by
    if not SMALL:
        biases = None if bias is None else _of_columns(bias, n, N)
        scales = None if scale is None else _of_columns(scale, n, N)
        factor = None if alpha is None else _of_columns(alpha, n, N)
        height = None if beta is None else _of_columns(beta, n, N)
        added = None if residual is None else _residual(residual, m, n, M, N)
    if biases is not None:
        total += biases[None, :]
    if GELU:
        total = 0.5 * total * (1.0 + tl.erf(total * 0.7071067811865476))
    if GATED:
        total = total * tl.sigmoid(total) * gated
    if scales is not None:
        total *= scales[None, :]
    if added is not None:
        total += added
    _store(total, out, ring, factor, height, m, n, M, row, place, ring_frames, T, N)


@triton.jit(do_not_specialize=["M", "dilation", "frames", "ring_frames"])
def conv(
    x, rows, position, weight, bias, out, ring, ring_rows, alpha, beta, parts, counters, M, dilation, frames,
    ring_frames,
    T: tl.constexpr, C: tl.constexpr, N: tl.constexpr, TAPS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """A causal convolution that reads the ring x: see `_convolve`; bias [N] -> `out` [M, N], and into `ring`.

    For splits see `_sum_splits`.
    """
    m, n = _tile(N, BM, BN)
    place = tl.load(position + m // T, mask=m < M, other=0).to(tl.int32)
    row, to = _row(rows, m // T, m < M), _row(ring_rows, m // T, m < M)
    SMALL: tl.constexpr = BM * BN <= 4096  # and so has registers for what is read ahead
    if SMALL:
        biases = _of_columns(bias, n, N)
        factor = None if alpha is None else _of_columns(alpha, n, N)
        height = None if beta is None else _of_columns(beta, n, N)
    begin = 0 if SPLITS == 1 else tl.program_id(1) * tl.cdiv(TAPS * C // BK, SPLITS)
    wait(OVERLAP)
    total = _convolve(
        x, weight, begin, row, place, m, n, M, dilation, frames, T, C, N, TAPS, BM, BN, BK, STAGES, SPLITS
    )  # fmt: skip
    if SPLITS > 1:
        total, last = _sum_splits(total, parts, counters, BM, BN, SPLITS)
        if last == 0:
            return
    if not SMALL:
        biases = _of_columns(bias, n, N)
        factor = None if alpha is None else _of_columns(alpha, n, N)
        height = None if beta is None else _of_columns(beta, n, N)
    _store(total + biases[None, :], out, ring, factor, height, m, n, M, to, place, ring_frames, T, N)


@triton.jit(do_not_specialize=["M", "dilation", "frames", "ring_frames"])
def unit(
    x, rows, position, weight, bias, between_alpha, between_beta, pointwise, pointwise_bias, residual, out, ring,
    alpha, beta, M, dilation, frames, ring_frames,
    T: tl.constexpr, C: tl.constexpr, TAPS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Both convolutions of a residual unit: a tile has all channels, BN >= C.

    `conv` of the ring x, SnakeBeta, pointwise convolution [C, C], residual [M, C] -> `out` [M, C], and into `ring`.
    """
    m, n = _tile(C, BM, BN)
    place = tl.load(position + m // T, mask=m < M, other=0).to(tl.int32)
    row = _row(rows, m // T, m < M)
    wait(OVERLAP)
    total = _convolve(x, weight, 0, row, place, m, n, M, dilation, frames, T, C, C, TAPS, BM, BN, BK, STAGES)
    between, between_height = _of_columns(between_alpha, n, C), _of_columns(between_beta, n, C)
    total = _activated(total + _of_columns(bias, n, C)[None, :], between, between_height)
    total = total.to(pointwise.dtype.element_ty)
    # Part by part: all columns at once, with their weights, take so many registers that fewer programs run.
    PART: tl.constexpr = min(64, C & -C)
    for part in tl.range(0, C // PART, num_stages=1):
        c = part * PART + tl.arange(0, PART)
        weights = tl.load(pointwise + n[:, None] * C + c[None, :], mask=(n < C)[:, None], other=0.0)
        after = tl.dot(total, weights) + _of_columns(pointwise_bias, c, C)[None, :]
        after += _residual(residual, m, c, M, C)
        factor = None if alpha is None else _of_columns(alpha, c, C)
        height = None if beta is None else _of_columns(beta, c, C)
        _store(after, out, ring, factor, height, m, c, M, row, place, ring_frames, T, C)


@triton.jit
def quantize(
    codes, run, rows, position, place, table, ring,
    SIZE: tl.constexpr, BOOKS: tl.constexpr, C: tl.constexpr, FRAMES: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Codes int64[R, BOOKS] -> the sum of their vectors in `table` [BOOKS, SIZE, C], into this frame of `ring`.

    Moves `position` int64[rows] of the streams that run on; `place` int64[R] gets the frame's. So the next kernel must
    not read `place` ahead.
    """
    at = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    wait(OVERLAP)
    runs = tl.load(run + at)
    row = at if rows is None else tl.load(rows + at)
    here = tl.load(position + row)
    total = tl.zeros((BLOCK,), tl.float32)
    for book in tl.static_range(BOOKS):
        code = tl.where(runs, tl.load(codes + at * BOOKS + book), 0)
        total += tl.load(table + (book * SIZE + code) * C + c, mask=c < C, other=0.0).to(tl.float32)
    tl.store(ring + (row * FRAMES + here % FRAMES) * C + c, total.to(ring.dtype.element_ty), mask=c < C)
    tl.store(place + at, here)
    tl.debug_barrier()  # every thread has read the position
    if runs:
        tl.store(position + row, here + 1)


@triton.jit
def _past(
    keys, values, place, at, FIRST: tl.constexpr, SLOTS: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """The frames before this one in these slots of a ring: both halves of keys, values, and where there are some."""
    low, full, slots = tl.arange(0, HALF), tl.arange(0, 2 * HALF), FIRST + tl.arange(0, SLOTS)
    seen = (slots < WINDOW) & (slots <= place) & (slots != place % WINDOW)
    at += slots[:, None] * D
    past0 = tl.load(keys + at + low[None, :], mask=seen[:, None], other=0.0)
    past1 = tl.load(keys + at + low[None, :] + HALF, mask=seen[:, None], other=0.0)
    return past0, past1, tl.load(values + at + full[None, :], mask=seen[:, None], other=0.0), seen


@triton.jit
def _scores(past, q0, q1):
    past0, past1, _, seen = past
    scores = tl.sum(past0.to(tl.float32) * q0[None, :] + past1.to(tl.float32) * q1[None, :], 1)
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def attention(
    qkv, rows, position, keys, values, out, frequencies, scale,
    WINDOW: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, SLOTS: tl.constexpr, MORE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """One new frame of a row and head over the ring of its window.

    qkv [R, 3, HEADS, 2 * HALF] before rope, frequencies float32[HALF]; keys and values [rows, WINDOW, HEADS, 2 * HALF]
    get the new frame's; out [R, HEADS, 2 * HALF]. SLOTS and MORE are powers of two, together at least WINDOW.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    place = tl.load(position + row).to(tl.int32)
    low, full = tl.arange(0, HALF), tl.arange(0, 2 * HALF)
    D: tl.constexpr = HEADS * 2 * HALF
    base = _row(rows, row, row >= 0) * WINDOW * D + head * 2 * HALF
    # The frames before this one, all asked for at once; this one's own key and value are at hand. In two parts, as the
    # next power of two would take twice the registers, and fewer programs would run.
    first = _past(keys, values, place, base, 0, SLOTS, WINDOW, D, HALF)
    other = _past(keys, values, place, base, SLOTS, MORE, WINDOW, D, HALF)
    angle = place.to(tl.float32) * tl.load(frequencies + low)
    cos, sin = tl.cos(angle), tl.sin(angle)
    wait(OVERLAP)
    query = qkv + row * 3 * D + head * 2 * HALF
    q0, q1 = tl.load(query + low).to(tl.float32), tl.load(query + low + HALF).to(tl.float32)
    k0, k1 = tl.load(query + low + D).to(tl.float32), tl.load(query + low + D + HALF).to(tl.float32)
    value = tl.load(query + full + 2 * D)
    q0, q1 = (q0 * cos - q1 * sin) * scale, (q1 * cos + q0 * sin) * scale
    k0, k1 = k0 * cos - k1 * sin, k1 * cos + k0 * sin
    here = base + place % WINDOW * D
    tl.store(keys + here + low, k0.to(keys.dtype.element_ty))
    tl.store(keys + here + low + HALF, k1.to(keys.dtype.element_ty))
    tl.store(values + here + full, value)
    scores, more, own = _scores(first, q0, q1), _scores(other, q0, q1), tl.sum(k0 * q0 + k1 * q1, 0)
    highest = tl.maximum(tl.maximum(tl.max(scores, 0), tl.max(more, 0)), own)
    scores, more, own = tl.exp(scores - highest), tl.exp(more - highest), tl.exp(own - highest)
    mixed = tl.sum(scores[:, None] * first[2].to(tl.float32), 0) + tl.sum(more[:, None] * other[2].to(tl.float32), 0)
    mixed += own * value.to(tl.float32)
    mixed /= tl.sum(scores, 0) + tl.sum(more, 0) + own
    tl.store(out + row * D + head * 2 * HALF + full, mixed.to(out.dtype.element_ty))


@triton.jit
def depthwise_norm(
    x, rows, position, weight, bias, norm, shift, out,
    T: tl.constexpr, C: tl.constexpr, TAPS: tl.constexpr, FRAMES: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Depthwise causal conv, then layer norm: ring [rows, FRAMES * T, C] and weight [TAPS, C] -> out [R * T, C]."""
    m = tl.program_id(0) + tl.arange(0, 1)
    c = tl.arange(0, BLOCK)
    inside = c < C
    place = tl.load(position + m // T).to(tl.int32)
    row = _row(rows, m // T, m >= 0)
    total = _of_columns(bias, c, C)[None, :]
    norms, shifts = _of_columns(norm, c, C), _of_columns(shift, c, C)
    wait(OVERLAP)
    for tap in tl.static_range(TAPS):
        a = _window(x, c, inside[None, :], m % T - (TAPS - 1 - tap), m >= 0, row, place, FRAMES, T, C)
        total += a.to(tl.float32) * _of_columns(weight + tap * C, c, C)[None, :]
    total -= tl.sum(total, 1)[:, None] / C
    total = tl.where(inside[None, :], total, 0.0)
    total *= tl.rsqrt(tl.sum(total * total, 1)[:, None] / C + EPS)
    total = total * norms[None, :] + shifts[None, :]
    tl.store(out + m[:, None] * C + c[None, :], total.to(out.dtype.element_ty), mask=inside[None, :])


@triton.jit
def waveform(
    x, rows, position, run, weight, bias, out,
    T: tl.constexpr, C: tl.constexpr, TAPS: tl.constexpr, FRAMES: tl.constexpr,
    BM: tl.constexpr, BLOCK: tl.constexpr, WIDE_TAPS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Causal conv to one channel: ring [rows, FRAMES * T, C], weight [TAPS, C] -> out float32[R, T] within -1 and 1.
    Rows that do not run give zeros.

    A program reads BM steps once, multiplies each with all taps [C, WIDE_TAPS], and adds up BM - TAPS + 1 samples.
    """
    SAMPLES: tl.constexpr = BM - TAPS + 1
    TILES: tl.constexpr = (T + SAMPLES - 1) // SAMPLES
    stream = tl.program_id(0) // TILES
    step, c, tap = tl.arange(0, BM), tl.arange(0, BLOCK), tl.arange(0, WIDE_TAPS)
    begin = tl.program_id(0) % TILES * SAMPLES
    place = tl.load(position + stream).to(tl.int32)
    row = _row(rows, stream, stream >= 0)
    weights = weight + tap[None, :] * C + c[:, None]
    weights = tl.load(weights, mask=(tap < TAPS)[None, :] & (c < C)[:, None], other=0.0)
    added, runs = tl.load(bias).to(tl.float32), tl.load(run + stream)
    time = begin - (TAPS - 1) + step
    wait(OVERLAP)
    a = _window(x, c, (c < C)[None, :], time, time < T, row, place, FRAMES, T, C)
    parts = tl.dot(a, weights)
    samples = tl.sum(tl.gather(parts, tl.minimum(step[:, None] + tap[None, :], BM - 1), 0), 1) + added
    samples = tl.minimum(tl.maximum(samples, -1.0), 1.0)
    time = begin + step
    tl.store(out + stream * T + time, tl.where(runs, samples, 0.0), mask=(step < SAMPLES) & (time < T))


@triton.jit
def _gate(hidden, weights, gate: tl.constexpr, H: tl.constexpr, total):
    return tl.dot(hidden, tl.load(weights + gate * H), total)


@triton.jit
def _gate_input(total, inputs, m, n, M, step, gate: tl.constexpr, T: tl.constexpr, H: tl.constexpr):
    at = ((m * T + step) * 4 + gate)[:, None] * H + n[None, :]
    return total + tl.load(inputs + at, mask=(m < M)[:, None], other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["M", "step", "ring_frames"])
def lstm(
    inputs, weight, hidden, cell, rows, position, residual, out, ring, alpha, M, step, ring_frames,
    FIRST: tl.constexpr, LAST: tl.constexpr, T: tl.constexpr, H: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One of the T steps of an LSTM layer in a frame of M streams; H is a multiple of BN and BK.

    `inputs` [M, T, 4, H] are the input's part of the gates input, forget, cell, output with both biases, `weight`
    [H, 4 * H] the hidden state's part. `hidden` and `cell` [rows, 2, H] hold the states behind this frame and the one
    before. `out` [M, T, H] gets the hidden state; with a `residual` [M, T, H] their sum, through ELU, goes into `ring`.
    """
    m, n = _tile(H, BM, BN)
    inside = (m < M)[:, None]
    place = tl.load(position + m, mask=m < M, other=0).to(tl.int32)
    row = _row(rows, m, m < M)
    before = (row * 2 + (place + 1) % 2) * H
    now = (row * 2 + place % 2) * H
    started = inside & (place > 0)[:, None]
    k = tl.arange(0, BK)
    weights = weight + k[:, None] * 4 * H + n[None, :]
    i = tl.zeros((BM, BN), tl.float32)
    f = tl.zeros((BM, BN), tl.float32)
    g = tl.zeros((BM, BN), tl.float32)
    o = tl.zeros((BM, BN), tl.float32)
    for part in tl.range(0, H // BK, num_stages=STAGES):
        at = (part * BK + k)[None, :]
        if FIRST:
            a = tl.load(hidden + before[:, None] + at, mask=started, other=0.0)
        else:
            a = tl.load(out + (m * T + step - 1)[:, None] * H + at, mask=inside, other=0.0)
        i = _gate(a, weights + part * BK * 4 * H, 0, H, i)
        f = _gate(a, weights + part * BK * 4 * H, 1, H, f)
        g = _gate(a, weights + part * BK * 4 * H, 2, H, g)
        o = _gate(a, weights + part * BK * 4 * H, 3, H, o)
    i = tl.sigmoid(_gate_input(i, inputs, m, n, M, step, 0, T, H))
    f = tl.sigmoid(_gate_input(f, inputs, m, n, M, step, 1, T, H))
    g = 2.0 * tl.sigmoid(2.0 * _gate_input(g, inputs, m, n, M, step, 2, T, H)) - 1.0
    o = tl.sigmoid(_gate_input(o, inputs, m, n, M, step, 3, T, H))
    if FIRST:
        c = tl.load(cell + before[:, None] + n[None, :], mask=started, other=0.0)
    else:
        c = tl.load(cell + now[:, None] + n[None, :], mask=inside, other=0.0)
    c = f * c.to(tl.float32) + i * g
    h = o * (2.0 * tl.sigmoid(2.0 * c) - 1.0)
    tl.store(cell + now[:, None] + n[None, :], c.to(cell.dtype.element_ty), mask=inside)
    at = m * T + step
    if LAST:
        tl.store(hidden + now[:, None] + n[None, :], h.to(hidden.dtype.element_ty), mask=inside)
    tl.store(out + at[:, None] * H + n[None, :], h.to(out.dtype.element_ty), mask=inside)
    if residual is not None:
        total = h + _residual(residual, at, n, M * T, H)
        _store(total, None, ring, _of_columns(alpha, n, H), None, at, n, M * T, row, place, ring_frames, T, H)
