"""What lies between the products of a frame: before the talker, at the first code, behind the last one, at its end.

They do what `FrameModel.step` and `speech.pack` do by torch operations, with the same roundings, but for the order of
the sum of a frame's embeddings. They read the state of the rows in place: nothing of it is copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from agent_tts.model.config import PEAK
from agent_tts.model.frame import Frame
from agent_tts.model.frame_state import FrameState
from agent_tts.model.kernels.launch import launch, overlap, power_of_2, wait
from agent_tts.model.kernels.sampling import drawn, noise_of


@dataclass(frozen=True, slots=True)
class Begun:
    """The talker's input, and who runs. B rows of a batch."""

    x: Tensor  # [B, H]
    positions: Tensor  # int64[B]; the padding position for a row that does not run
    block_table: Tensor  # int64[B, blocks of a row]
    run: Tensor  # bool[B]
    starved: Tensor  # bool[B]
    full: Tensor  # bool[B]


@triton.jit
def _begin(
    asked,  # bool[B]: who is to run
    rows,  # int64[B], of the state; None: 0 to B - 1
    position,  # int64[rows], as all that follows of the state
    text_length,
    text_read,
    text_complete,  # bool[rows]
    ended,  # bool[rows]
    text,  # int64[rows, TEXT]
    feedback,  # [rows, H]
    block_table,  # int64[rows, BLOCKS]
    table,  # [tokens, H]: the text side of every token
    x,  # [B, H]
    positions,  # int64[B]
    blocks,  # int64[B, BLOCKS]
    run,  # bool[B]
    starved,  # bool[B]
    full,  # bool[B]
    pad_token,
    padding_position,
    TEXT: tl.constexpr,
    BLOCKS: tl.constexpr,
    MOST_BLOCKS: tl.constexpr,  # power of 2
    H: tl.constexpr,
    WIDE: tl.constexpr,  # power of 2
):
    """Not overlapped: the first kernel of a step. It lets no kernel start, but that one may start before its writes are
    visible: only behind the first kernel that waits first may others read them ahead.
    """
    at = tl.program_id(0)
    row = (at if rows is None else tl.load(rows + at)).to(tl.int64)
    place = tl.load(position + row)
    length, read = tl.load(text_length + row), tl.load(text_read + row)
    wanted = tl.load(asked + at) & (tl.load(ended + row) == 0)
    has_room, has_text = place < padding_position, read < length
    runs = wanted & has_room & (has_text | tl.load(text_complete + row))
    tl.store(run + at, runs)
    tl.store(full + at, wanted & (has_room == 0))
    tl.store(starved + at, wanted & has_room & (runs == 0))
    tl.store(positions + at, tl.where(runs, place, padding_position))
    block = tl.arange(0, MOST_BLOCKS)
    numbers = tl.load(block_table + row * BLOCKS + block, mask=block < BLOCKS)
    tl.store(blocks + at * BLOCKS + block, numbers, mask=block < BLOCKS)

    known = tl.load(text + row * TEXT + tl.minimum(read, TEXT - 1))
    token = tl.where(has_text, known, pad_token)
    h = tl.arange(0, WIDE)
    ok = h < H
    said = tl.load(feedback + row * H + h, mask=ok)
    added = said.to(tl.float32) + tl.load(table + token * H + h, mask=ok).to(tl.float32)
    tl.store(x + at * H + h, added.to(said.dtype), mask=ok)


def begin(state: FrameState, run: Tensor, rows: Tensor | None, table: Tensor, pad_token: int) -> Begun:
    """Who of the rows int64[B], or of all, that a mask bool[B] asks for runs, and on what input.

    `table` [tokens, H] is the text side of every token.
    """
    count, width, blocks = len(run), table.shape[1], state.cache.block_table.shape[1]
    masks = [torch.empty_like(run) for _ in range(3)]
    begun = Begun(
        table.new_empty(count, width), state.position.new_empty(count), state.position.new_empty(count, blocks), *masks
    )
    launch(
        _begin, (count,),
        asked=run, rows=rows, position=state.position, text_length=state.text_length, text_read=state.text_read,
        text_complete=state.text_complete, ended=state.ended, text=state.text, feedback=state.feedback,
        block_table=state.cache.block_table, table=table, x=begun.x, positions=begun.positions,
        blocks=begun.block_table, run=begun.run, starved=begun.starved, full=begun.full, pad_token=pad_token,
        padding_position=state.cache.padding_position, TEXT=state.text.shape[1], BLOCKS=blocks,
        MOST_BLOCKS=power_of_2(blocks), H=width, WIDE=power_of_2(width), num_warps=4,
    )  # fmt: skip
    return begun


@triton.jit
def _draw_first(
    logits,  # [B, SIZE]
    rows,  # int64[B], of the state; None: 0 to B - 1
    seen,  # bool[rows, SIZE]
    temperatures,  # float32[rows]
    top_ks,  # int64[rows]
    top_ps,  # float32[rows]
    penalties,  # float32[rows]
    seeds,  # int64[rows]
    frames,  # int64[rows]
    min_frames,  # int64[rows]
    text_length,  # int64[rows]
    text_read,  # int64[rows]
    text_complete,  # bool[rows]
    hidden,  # [B, H]
    run,  # bool[B]
    entered,  # [B, WIDTH]: the hidden state as the predictor's input
    table,  # [SIZE, WIDTH]: its input for each first code
    codes,  # int64[B, CODEBOOKS], of which the first column is written
    x,  # [2, B, WIDTH]: the predictor's inputs of positions 0 and 1
    finite,  # bool[B]: of the rows that run
    end_code,
    CONTROL: tl.constexpr,  # this code and those behind it are not drawn, but for the end
    CODEBOOKS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    H: tl.constexpr,
    WIDE_H: tl.constexpr,  # power of 2
    WIDTH: tl.constexpr,
    WIDE: tl.constexpr,  # power of 2
    OVERLAP: tl.constexpr,
):
    at = tl.program_id(0)
    row = (at if rows is None else tl.load(rows + at)).to(tl.int64)
    code = tl.arange(0, BLOCK)
    temperature, top_k, top_p = tl.load(temperatures + row), tl.load(top_ks + row), tl.load(top_ps + row)
    penalty, frame = tl.load(penalties + row), tl.load(frames + row)
    noise = noise_of(tl.load(seeds + row), frame, 0, code, temperature)
    length, read = tl.load(text_length + row), tl.load(text_read + row)
    may_end = tl.load(text_complete + row) & (read + 1 >= length) & (frame >= tl.load(min_frames + row))
    before = tl.load(seen + row * SIZE + code, mask=code < SIZE, other=0)
    ok = (code < SIZE) & ((code < CONTROL) | (code == end_code)) & ((code != end_code) | may_end)
    wait(OVERLAP)
    logit = tl.load(logits + at * SIZE + code, mask=ok, other=float("-inf")).to(tl.float32)
    place, h = tl.arange(0, WIDE), tl.arange(0, WIDE_H)
    inside = place < WIDTH
    of_hidden = tl.load(entered + at * WIDTH + place, mask=inside)
    state = tl.load(hidden + at * H + h, mask=h < H, other=0).to(tl.float32)
    runs = tl.load(run + at)
    to = x + at * WIDTH + place
    tl.store(to, of_hidden, mask=inside)
    penalised = tl.where(logit < 0, logit * penalty, tl.div_rn(logit, penalty))
    logit = tl.where(ok & before, penalised, logit)
    one = drawn(logit, code < SIZE, noise, temperature, top_k, top_p, SIZE, 32)
    tl.store(codes + at * CODEBOOKS, one.to(tl.int64))
    tl.store(to + tl.num_programs(0) * WIDTH, tl.load(table + one * WIDTH + place, mask=inside), mask=inside)
    is_finite = tl.sum((tl.abs(state) < float("inf")).to(tl.int32), 0) == WIDE_H
    tl.store(finite + at, runs & is_finite)


def draw_first(
    state: FrameState,
    begun: Begun,
    rows: Tensor | None,
    logits: Tensor,
    hidden: Tensor,
    entered: Tensor,
    table: Tensor,
    codes: Tensor,
    end_code: int,
    control: int,
) -> tuple[Tensor, Tensor]:
    """Masks logits [B, V] and draws the first codes, into column 0 of `codes` int64[B, K].

    Gives the predictor's inputs of both first positions, [2 B, W], and who runs with a finite hidden state. These are
    `entered` [B, W], from the hidden state [B, H], and the row of `table` [V, W] at the code. Codes from `control` on
    are not drawn, but for the end of speech, where the row may end.
    """
    (count, size), width = logits.shape, table.shape[1]
    sampling, x, finite = state.sampling, table.new_empty(2 * count, width), torch.empty_like(begun.run)
    launch(
        _draw_first, (count,),
        logits=logits, rows=rows, seen=state.seen, temperatures=sampling.talker.temperature,
        top_ks=sampling.talker.top_k, top_ps=sampling.talker.top_p, penalties=sampling.repetition_penalty,
        seeds=sampling.seed, frames=state.frame, min_frames=sampling.min_frames, text_length=state.text_length,
        text_read=state.text_read, text_complete=state.text_complete, hidden=hidden, run=begun.run, entered=entered,
        table=table, codes=codes, x=x, finite=finite, end_code=end_code, CONTROL=control, CODEBOOKS=codes.shape[1],
        SIZE=size, BLOCK=power_of_2(size), H=hidden.shape[1], WIDE_H=power_of_2(hidden.shape[1]), WIDTH=width,
        WIDE=power_of_2(width), num_warps=8, **overlap(logits.device),
    )  # fmt: skip
    return x, finite


@triton.jit
def _end(
    codes,  # int64[B, CODEBOOKS]
    run,  # bool[B]
    rows,  # int64[B], of the state; None: 0 to B - 1
    position,  # int64[rows], as all that follows of the state
    text_length,
    text_read,
    frame,
    ended,  # bool[rows]
    seen,  # bool[rows, VOCABULARY]
    feedback,  # [rows, H]
    first_table,  # [VOCABULARY, H]
    table,  # [(CODEBOOKS - 1) SIZE, H]
    spoke,  # bool[B]
    ends,  # bool[B]
    end_code,
    CODEBOOKS: tl.constexpr,
    VOCABULARY: tl.constexpr,
    SIZE: tl.constexpr,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program sums BLOCK numbers of a row's embeddings; a row's first one also moves the row on."""
    at = tl.program_id(0)
    row = (at if rows is None else tl.load(rows + at)).to(tl.int64)
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = h < H
    runs = tl.load(run + at)
    its = codes + at * CODEBOOKS
    first = tl.load(its)
    total = tl.load(first_table + first * H + h, mask=ok).to(tl.float32)
    for codebook in tl.static_range(1, CODEBOOKS - 1):  # all but the last, which the kernel before this one draws
        entry = (codebook - 1) * SIZE + tl.load(its + codebook)
        total += tl.load(table + entry * H + h, mask=ok).to(tl.float32)
    place, length, read = tl.load(position + row), tl.load(text_length + row), tl.load(text_read + row)
    count = tl.load(frame + row)
    wait(OVERLAP)
    entry = (CODEBOOKS - 2) * SIZE + tl.load(its + CODEBOOKS - 1)
    total += tl.load(table + entry * H + h, mask=ok).to(tl.float32)
    tl.store(feedback + row * H + h, total.to(feedback.dtype.element_ty), mask=ok & runs)
    if tl.program_id(1) == 0:
        is_end = first == end_code
        tl.store(spoke + at, runs & (is_end == 0))
        tl.store(ends + at, runs & is_end)
        if runs:
            tl.store(position + row, place + 1)
            tl.store(text_read + row, tl.where(read < length, read + 1, read))
            tl.store(frame + row, count + 1)
            tl.store(ended + row, is_end)
            tl.store(seen + row * VOCABULARY + first, True)


def end(
    state: FrameState,
    begun: Begun,
    rows: Tensor | None,
    codes: Tensor,
    first_table: Tensor,
    table: Tensor,
    end_code: int,
) -> tuple[Tensor, Tensor]:
    """Moves the rows that run on, behind the codes int64[B, K]; gives who spoke, and who ended: bool[B].

    The tables are the embeddings of first codes [V, H], and of the others [(K - 1) codes, H].
    """
    (count, codebooks), width, block = codes.shape, table.shape[1], 256
    spoke, ends = torch.empty_like(begun.run), torch.empty_like(begun.run)
    launch(
        _end, (count, triton.cdiv(width, block)),
        codes=codes, run=begun.run, rows=rows, position=state.position, text_length=state.text_length,
        text_read=state.text_read, frame=state.frame, ended=state.ended, seen=state.seen, feedback=state.feedback,
        first_table=first_table, table=table, spoke=spoke, ends=ends, end_code=end_code, CODEBOOKS=codebooks,
        VOCABULARY=len(first_table), SIZE=len(table) // (codebooks - 1), H=width, BLOCK=block, num_warps=1,
        **overlap(codes.device),
    )  # fmt: skip
    return spoke, ends


@triton.jit
def _pack(
    codes,  # int64[B, CODEBOOKS]
    ended,  # bool[B]
    finite,  # bool[B]
    sound,  # float32[B, SAMPLES]
    out,  # int16[B, CODEBOOKS + SAMPLES + 2]
    peak,
    CODEBOOKS: tl.constexpr,
    SAMPLES: tl.constexpr,
    MOST_CODEBOOKS: tl.constexpr,  # power of 2
    BLOCK: tl.constexpr,  # power of 2
    OVERLAP: tl.constexpr,
):
    at = tl.program_id(0)
    to = out + at * (CODEBOOKS + SAMPLES + 2)
    codebook, sample = tl.arange(0, MOST_CODEBOOKS), tl.arange(0, BLOCK)
    wait(OVERLAP)
    code = tl.load(codes + at * CODEBOOKS + codebook, mask=codebook < CODEBOOKS)
    tl.store(to + codebook, code.to(tl.int16), mask=codebook < CODEBOOKS)
    x = tl.load(sound + at * SAMPLES + sample, mask=sample < SAMPLES, other=0).to(tl.float32)
    is_finite = tl.sum((tl.abs(x) < float("inf")).to(tl.int32), 0) == BLOCK
    x = tl.where(x == x, x, 0.0)
    x = tl.minimum(tl.maximum(x, -1.0), 1.0) * peak
    x = (x + 12582912.0) - 12582912.0  # 1.5 * 2^23: rounds to an integer, halves to the even one
    tl.store(to + CODEBOOKS + sample, x.to(tl.int16), mask=sample < SAMPLES)
    tl.store(to + CODEBOOKS + SAMPLES, tl.load(ended + at).to(tl.int16))
    tl.store(to + CODEBOOKS + SAMPLES + 1, (tl.load(finite + at) & is_finite).to(tl.int16))


def pack(frame: Frame, sound: Tensor) -> Tensor:
    """`speech.pack`."""
    (count, codebooks), samples = frame.codes.shape, sound.shape[1]
    out = frame.codes.new_empty(count, codebooks + samples + 2, dtype=torch.int16)
    launch(
        _pack, (count,),
        codes=frame.codes, ended=frame.ended, finite=frame.finite, sound=sound, out=out, peak=float(PEAK),
        CODEBOOKS=codebooks, SAMPLES=samples, MOST_CODEBOOKS=power_of_2(codebooks), BLOCK=power_of_2(samples),
        num_warps=8, enable_fp_fusion=False, **overlap(sound.device),
    )  # fmt: skip
    return out
