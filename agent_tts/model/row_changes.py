"""Changes of rows between two frames: they are collected, and sent to the device at once, without waiting.

A copy from pinned memory is only queued. torch's pinned pool reuses the memory only after the device has read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agent_tts.model.config import SamplingParams
from agent_tts.model.device import queues
from agent_tts.model.frame_state import (
    COUNTS,
    FLAGS,
    POSITION,
    SAMPLING,
    SAMPLING_PARAMS,
    TEXT_COMPLETE,
    TEXT_LENGTH,
    FrameState,
)
from agent_tts.model.layers import Cache

_LEAST = 8_192  # numbers of a buffer: nearly all copies fit, so that the pool needs few buffers


class Writes:
    """Writes on a device between two steps; their arrays go there in one copy."""

    def __init__(self) -> None:
        # A function that writes, and what it takes.
        self._writes: list[tuple[Callable[..., object], tuple[NDArray[np.int64], ...]]] = []

    def add(self, write: Callable[..., object], *arrays: NDArray[np.int64]) -> None:
        """Calls `write` with these arrays as tensors on the device, after all that was added before."""
        self._writes.append((write, arrays))

    @torch.inference_mode()
    def send(self, device: torch.device) -> None:
        if not self._writes:
            return
        numbers = [array for _, arrays in self._writes for array in arrays]
        sent = iter(upload(numbers, device) if numbers else ())
        for write, arrays in self._writes:
            write(*islice(sent, len(arrays)))


def staged(arrays: Sequence[NDArray[np.int64]], device: torch.device) -> Tensor:
    """All numbers, int64[n], in pinned memory of the host where the device has streams."""
    count = sum(array.size for array in arrays)
    if queues(device):
        pinned = torch.empty(max(count, _LEAST), dtype=torch.int64, pin_memory=True)[:count]
    else:
        pinned = torch.empty(count, dtype=torch.int64)
    np.concatenate(arrays, axis=None, out=pinned.numpy())
    return pinned


def queued(arrays: Sequence[NDArray[np.int64]], device: torch.device) -> Tensor:
    """All numbers on the device, int64[n]. Without waiting on a GPU with pinned memory: others may read it too late."""
    return staged(arrays, device).to(device, non_blocking=queues(device))


def upload(arrays: Sequence[NDArray[np.int64]], device: torch.device) -> list[Tensor]:
    """Arrays on the device, of the same shapes, by one copy: to split types takes longer than eight bytes for each."""
    sent = torch.split(queued(arrays, device), [array.size for array in arrays])
    return [whole if array.ndim == 1 else whole.view(array.shape) for whole, array in zip(sent, arrays, strict=True)]


class BlockAllocator:
    """Gives the blocks of a cache to rows. `collect` tells the device: a step in flight reads the old block tables."""

    def __init__(self, cache: Cache) -> None:
        _, blocks, self._size, _, _ = cache.keys.shape
        self._table = cache.block_table
        self._most = cache.padding_position
        self._free = list(range(blocks - 1, 0, -1))  # block 0 belongs to no row
        self._of_row: list[list[int]] = [[] for _ in range(len(cache.block_table))]
        self._changed: set[int] = set()  # rows whose block tables the device does not know yet

    def ensure(self, row: int, positions: int) -> bool:
        """Gives a row the blocks for its first `positions`; False, and nothing changes, if too few are free.

        Raises ValueError: `positions` is more than a row may have.
        """
        if positions > self._most:
            raise ValueError(f"a row has at most {self._most} positions")
        mine = self._of_row[row]
        have, need = len(mine), -(-positions // self._size)
        if need - have > len(self._free):
            return False
        if need > have:
            mine += [self._free.pop() for _ in range(need - have)]
            self._changed.add(row)
        return True

    def release(self, row: int) -> None:
        if not self._of_row[row]:
            return
        self._free += self._of_row[row]
        self._of_row[row] = []
        self._changed.add(row)

    def positions(self, row: int, length: int) -> NDArray[np.int64]:
        """The first positions of a row, counted through all blocks: int64[length]."""
        at = np.arange(length)
        return np.array(self._of_row[row], np.int64)[at // self._size] * self._size + at % self._size

    def collect(self, writes: Writes) -> None:
        """Adds the changed block tables to what is sent to the device, before a step writes to those blocks."""
        if not self._changed:
            return
        rows = np.fromiter(self._changed, np.int64)
        block_table = np.zeros((len(rows), self._table.shape[1]), np.int64)
        for entry, row in zip(block_table, rows, strict=True):
            entry[: len(self._of_row[row])] = self._of_row[row]
        self._changed.clear()
        writes.add(partial(self._table.index_copy_, 0), rows, block_table)


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first T positions of a prompt, computed: the same for every prompt with this beginning."""

    keys: Tensor  # [layers, T, key/value heads, head_dim]
    values: Tensor  # same shape
    start: Tensor | None  # [H]: codec side of the first frame step; None unless the prompt ends here


@dataclass(slots=True)
class _Admission:
    positions: int  # length of the prompt's prefix
    sampling: SamplingParams
    start: Tensor  # [H]: codec side of the first frame step


@dataclass(slots=True)
class _Text:
    at: int  # of the first token in the row's text
    tokens: list[int] = field(default_factory=list)
    complete: bool = False


class RowChanges:
    """Changes of rows, collected between two steps and sent to the device at once, without waiting.

    They are queued on the CUDA stream of the steps, so a step in flight still reads the old state.
    """

    def __init__(self, state: FrameState, allocator: BlockAllocator | None = None) -> None:
        self._state = state
        self._allocator = allocator
        self._prefixes: dict[int, Prefix] = {}
        self._admissions: dict[int, _Admission] = {}
        self._texts: dict[int, _Text] = {}

    def put_prefix(self, row: int, prefix: Prefix) -> None:
        self._prefixes[row] = prefix

    def admit(self, row: int, positions: int, sampling: SamplingParams, start: Tensor) -> None:
        """Gives a row, emptied, to a request: prefix of `positions`, and `start` [H], its first frame's codec side."""
        self._admissions[row] = _Admission(positions, sampling, start)
        self._texts.pop(row, None)
        self._state.text_lengths[row] = 0

    def add_text(self, row: int, tokens: Sequence[int], *, complete: bool) -> None:
        """Adds tokens to a row's text; the last of a complete text is tts_eos, which the caller adds. Nothing
        follows a complete text.

        Raises ValueError: the text is longer than the cache.
        """
        known, most = self._state.text_lengths[row], self._state.text.shape[1]
        if known + len(tokens) > most:
            raise ValueError(f"the text is longer than {most} tokens")
        text = self._texts.setdefault(row, _Text(known))
        text.tokens += tokens
        text.complete = complete
        self._state.text_lengths[row] = known + len(tokens)

    def forget(self, row: int) -> None:
        for wanted in (self._prefixes, self._admissions, self._texts):
            wanted.pop(row, None)

    def collect(self, writes: Writes) -> list[int]:
        """Adds all changes to `writes`; gives the rows that are admitted."""
        state, admissions, texts = self._state, self._admissions, self._texts
        prefixes, self._prefixes, self._admissions, self._texts = self._prefixes, {}, {}, {}
        if prefixes:
            keys, values = (_joined([getattr(part, name) for part in prefixes.values()]) for name in ("keys", "values"))
            positions = np.concatenate([self._positions(row, part) for row, part in prefixes.items()])
            writes.add(partial(state.cache.write, keys=keys, values=values), state.cache.places(positions))
        if admissions:
            starts = [admission.start for admission in admissions.values()]
            writes.add(
                partial(_write_admissions, state, starts),
                np.fromiter(admissions, np.int64),
                *_admission_numbers(admissions, texts, state.text_lengths),
            )
        if texts:
            lengths = state.text_lengths
            others = [row for row in texts if row not in admissions]
            if others:
                known = np.array([lengths[row] for row in others], np.int64)
                writes.add(partial(state.text_length.index_copy_, 0), np.array(others, np.int64), known)
            if complete := [row for row in others if texts[row].complete]:
                writes.add(partial(state.text_complete.index_fill_, 0, value=True), np.array(complete, np.int64))
            writes.add(partial(state.text.view(-1).index_copy_, 0), *_token_numbers(texts, state.text.shape[1]))
        return list(admissions)

    def _positions(self, row: int, prefix: Prefix) -> NDArray[np.int64]:
        """Where a prefix goes, counted through all blocks: int64[T]."""
        length = prefix.keys.shape[1]
        if self._allocator is not None:
            return self._allocator.positions(row, length)
        assert self._state.cache.contiguous, "only the allocator knows where its rows are"
        return row * self._state.cache.block_size + np.arange(length)


def _write_admissions(
    state: FrameState, starts: list[Tensor], rows: Tensor, counts: Tensor, sampling_params: Tensor, flags: Tensor
) -> None:
    state.counts.index_copy_(1, rows, counts)
    state.sampling_params.index_copy_(1, rows, sampling_params.view(torch.float32)[:, ::2])
    state.flags.index_copy_(1, rows, flags.view(torch.bool)[:, ::8])
    state.seen.index_fill_(0, rows, False)
    state.feedback.index_copy_(0, rows, torch.stack(starts))


def _joined(parts: list[Tensor]) -> Tensor:
    """[layers, T, ...] each -> [layers, sum of T, ...]."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _admission_numbers(
    admissions: Mapping[int, _Admission], texts: Mapping[int, _Text], text_lengths: Sequence[int]
) -> list[NDArray[np.int64]]:
    """Counts [COUNTS, n], bits of the sampling params [SAMPLING_PARAMS, n], flags [FLAGS, n]; with the text so far."""
    counts = np.zeros((COUNTS, len(admissions)), np.int64)
    sampling_params = np.zeros((SAMPLING_PARAMS, len(admissions)), np.int64)
    flags = np.zeros((FLAGS, len(admissions)), np.int64)
    for index, (row, admission) in enumerate(admissions.items()):
        counts[POSITION, index] = admission.positions
        counts[SAMPLING:, index], sampling_params.view(np.float32)[:, 2 * index] = admission.sampling.numbers()
        counts[TEXT_LENGTH, index] = text_lengths[row]
        flags[TEXT_COMPLETE, index] = row in texts and texts[row].complete
    return [counts, sampling_params, flags]


def _token_numbers(texts: Mapping[int, _Text], size: int) -> list[NDArray[np.int64]]:
    """Place in all rows' text, and token, of all that is added: int64[m] each."""
    places = [row * size + text.at + index for row, text in texts.items() for index in range(len(text.tokens))]
    tokens = [token for text in texts.values() for token in text.tokens]
    return [np.array(places, np.int64), np.array(tokens, np.int64)]
