"""Which row has which blocks of a paged cache, on the host."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from agent_tts.model.layers import Cache
from agent_tts.model.upload import Writes


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
