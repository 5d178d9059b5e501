"""Inputs of the prompts of a step, in tensors that stay where they are for the graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agent_tts.model.frame import PromptEntries
from agent_tts.model.frame_state import FrameState
from agent_tts.model.prompt import VECTOR
from agent_tts.model.upload import staged


@dataclass(frozen=True, slots=True)
class ChunkInputs:
    """Consecutive entries of a row's prompt."""

    row: int
    positions: NDArray[
        np.int64
    ]  # [n]: in the row; the padding position for the prompt's last entry, which is only embedded
    # How many leading positions of the row they may read; later ones may hold NaN. None: they begin at position 0.
    span: int | None
    numbers: NDArray[np.int64]  # [n, 1 + K], see `Prompt.numbers`
    vector: Tensor | None  # [H]: the speaker's, where the numbers have a place for it


class PromptInputs:
    """`count` entries of prompts of any rows, filled up with entries at the padding position."""

    def __init__(self, state: FrameState, count: int, codebooks: int) -> None:
        self._padding_position = state.cache.padding_position
        device = state.ended.device
        self._packed = torch.zeros(PromptEntries.size(count, codebooks), dtype=torch.int64, device=device)
        vectors = torch.zeros_like(state.feedback[:1]).repeat(count, 1)
        self.entries = PromptEntries.of(self._packed, vectors)
        self.fill(())

    @torch.inference_mode()
    def fill(self, parts: Sequence[ChunkInputs]) -> list[int]:
        """Copies parts there at once, without waiting; gives the index of the last entry of each."""
        host = np.zeros(len(self._packed), np.int64)
        entries = PromptEntries.of(torch.from_numpy(host), self.entries.vectors)
        rows, positions, numbers = (view.numpy() for view in (entries.rows, entries.positions, entries.numbers))
        positions.fill(self._padding_position)
        end, ends = 0, []
        for part in parts:
            begin, end = end, end + len(part.positions)
            rows[begin:end], positions[begin:end], numbers[begin:end] = part.row, part.positions, part.numbers
            for place in np.flatnonzero(part.numbers[:, 1] == VECTOR):
                assert part.vector is not None
                self.entries.vectors[begin + place].copy_(part.vector)
            ends.append(end - 1)
        self._packed.copy_(staged([host], self._packed.device), non_blocking=True)
        return ends
