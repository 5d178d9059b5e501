"""The past of the codec: of streams, one in each row, and of clips that are decoded at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from agent_tts.model.codec_layers import History


@dataclass(frozen=True, slots=True)
class CodecState:
    """The streams of all rows. The tensors are written in place, for captured steps."""

    # int64[rows]: frames decoded, which is the position of the next one.
    position: Tensor
    # [layers, rows, window, heads, head_dim], keys after rope: the frame at position p is in slot p % window. A slot
    # that its stream has not written, which `position` tells, holds any finite values.
    keys: Tensor
    values: Tensor
    # [rows, frames * rate, channels] for each `History` of the codec, likewise: input t is in slot t % (frames * rate).
    histories: tuple[Tensor, ...]

    @torch.inference_mode()
    def put(self, row: int, source: CodecState) -> None:
        """Copies a state of one row of the same codec into `row`."""
        self.position[row] = source.position[0]
        self.keys[:, row] = source.keys[:, 0]
        self.values[:, row] = source.values[:, 0]
        # Some twenty copies as one launch.
        torch._foreach_copy_([ring[row] for ring in self.histories], [ring[0] for ring in source.histories])


class NextFrame:
    """The past of one frame of the rows int64[B], or of all.

    A row whose position is not advanced stays as it was: it wrote only slots that its next frame writes before it reads
    them.
    """

    def __init__(self, state: CodecState, rows: Tensor | None = None) -> None:
        all_rows, window = state.keys.shape[1:3]
        slots = torch.arange(window, device=state.position.device)
        self._state = state
        self._all = rows is None
        # int64[B] each: row and slot of the frame's key and value.
        self._rows = torch.arange(all_rows, device=state.position.device) if rows is None else rows
        position = state.position[self._rows]
        self._slot = position % window
        self.positions = position[:, None]
        # bool[B, 1, 1, window]: the slots that the stream has written, this frame's included.
        self._written = (slots <= self.positions)[:, None, None]

    def advance(self, run: Tensor) -> None:
        """The rows bool[B] have decoded their frame."""
        self._state.position[self._rows] = self.positions[:, 0] + run

    def extend(self, history: History, x: Tensor) -> Tensor:
        ring = self._state.histories[history.index]
        steps = torch.arange(-history.size, history.rate, device=x.device)
        times = self.positions * history.rate + steps  # [rows, size + T], counted from the start of the stream
        rows, slots = self._rows[:, None], times % ring.shape[1]
        ring[rows, slots[:, history.size :]] = x.transpose(1, 2)
        return ring[rows, slots].masked_fill(times[..., None] < 0, 0).transpose(1, 2)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = self._state.keys[layer], self._state.values[layer]
        keys[self._rows, self._slot] = key[:, 0]
        values[self._rows, self._slot] = value[:, 0]
        if not self._all:
            keys, values = keys[self._rows], values[self._rows]
        return _attention(query, keys, values, self._written)


class WholeClip:
    """The past of whole clips: silence. Afterwards `state`, one row a clip, is as behind the end."""

    def __init__(self, frames: int, window: int, device: torch.device, state: CodecState | None) -> None:
        positions = torch.arange(frames, device=device)
        age = positions[:, None] - positions
        self.positions = positions[None]
        self._state = state
        # bool[T, T]: the frames (columns) that a frame (row) looks at.
        self._seen = (age >= 0) & (age < window)
        # The last frames, as many as a ring has slots.
        self._last = positions[-window:]
        self._slots = self._last % window
        if state is not None:
            state.position.fill_(frames)

    def extend(self, history: History, x: Tensor) -> Tensor:
        if self._state is not None:
            ring, steps = self._state.histories[history.index], x.shape[-1]
            times = torch.arange(max(0, steps - history.size), steps, device=x.device)
            ring[:, times % ring.shape[1]] = x[..., times].transpose(1, 2)
        return F.pad(x, (history.size, 0))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self._state is not None:
            self._state.keys[layer][:, self._slots] = key[:, self._last]
            self._state.values[layer][:, self._slots] = value[:, self._last]
        return _attention(query, key, value, self._seen)


def _attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Queries [B, T, heads, head_dim] over keys and values [B, S, heads, head_dim], masked by bool[..., T, S]."""
    out = F.scaled_dot_product_attention(
        query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask
    )
    return out.transpose(1, 2)
