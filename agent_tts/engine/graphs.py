"""A frame of a batch of rows as one CUDA graph: the host launches step t, and reads step t - 1 while t runs.

One graph for each size of batch, over any rows of one state: which ones is an input of the graph. A step takes the
smallest that holds its rows, and fills it up with a row that is nobody's. The graphs share their memory. By the
off-switch the same step runs kernel by kernel; on a CPU, where a large batch costs little more, it is always all rows,
in their place.

Rounding depends on the size of a batch, so a request is bit-equal to itself among steps of one size.

Whoever changes the state between steps (joins, text) does it on the stream that is current here: its order is all the
synchronisation there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agent_tts.model.config import FRAME_SAMPLES
from agent_tts.model.speech import SpeechFrame, SpeechModel, SpeechState

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MASKS = ("spoke", "ended", "starved", "full", "finite")
_CODES = 16
_WIDTH = _CODES + FRAME_SAMPLES + len(_MASKS)  # of a row: codes, samples, masks
_IN_FLIGHT = 2  # steps that have been launched, the one that is being read included

Progress = Callable[[int, int], None]  # graphs captured, of how many


def rows_of_state(rows: int, device: torch.device) -> int:
    """How many rows a state has to have for `rows` to speak: on a GPU one more, which is nobody's."""
    return rows + (device.type == "cuda")


def most_rows(rows: int, device: torch.device) -> int:
    """How many of `rows` a step may have: on a GPU, as many as fit the last bucket."""
    return batch_sizes(rows)[-1] if device.type == "cuda" else rows


def batch_sizes(rows: int, buckets: Sequence[int] = BUCKETS) -> list[int]:
    """The sizes of a GPU's steps, where so many rows may speak."""
    most = min(rows, BUCKETS[-1])
    return [*(size for size in buckets if size < most), most]


@dataclass(frozen=True, slots=True)
class Spoken:
    """A `SpeechFrame` on the host, for the n rows of a step, in their order.

    Its arrays are good until the second launch after it.
    """

    codes: NDArray[np.int16]  # [n, 16]
    pcm: NDArray[np.int16]  # [n, 1920]
    spoke: NDArray[np.bool_]  # [n], as the others
    ended: NDArray[np.bool_]
    starved: NDArray[np.bool_]
    full: NDArray[np.bool_]
    finite: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that has been launched."""

    size: int  # of its batch
    _packed: Tensor  # int16[n, _WIDTH], in memory that the device writes to
    _written: torch.cuda.Event | None  # None: by now

    def ready(self) -> bool:
        """Whether `result` would not wait."""
        return self._written is None or bool(self._written.query())  # type: ignore[no-untyped-call]

    def result(self) -> Spoken:
        """What the step did; waits until it has."""
        if self._written is not None:
            self._written.synchronize()
        packed = self._packed.numpy()
        codes, pcm, masks = np.split(packed, [_CODES, _CODES + FRAME_SAMPLES], axis=1)
        return Spoken(codes, pcm, **{name: masks[:, index] != 0 for index, name in enumerate(_MASKS)})


class FrameGraphs:
    """Steps of a speech model over one state of `rows_of_state` rows.

    Args:
        captured: False runs the same step kernel by kernel; so does a CPU.
        buckets: on a GPU, sizes of batches besides the largest, which is all rows, or as many as fit the last bucket;
            None is `BUCKETS`.
    """

    def __init__(
        self,
        model: SpeechModel,
        state: SpeechState,
        *,
        captured: bool = True,
        buckets: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> None:
        device = state.frame.ended.device
        self._on_device = device.type == "cuda"
        rows = len(state.frame.ended) - self._on_device
        self._model = model
        self._state = state
        self._sizes = batch_sizes(rows, BUCKETS if buckets is None else buckets) if self._on_device else [rows]
        most = self._sizes[-1]
        self._nobody = rows
        # On a GPU int64[most], the rows of the step; otherwise bool[rows], who runs.
        self._who = torch.zeros(most, dtype=torch.int64 if self._on_device else torch.bool, device=device)
        self._all = torch.ones(most, dtype=torch.bool, device=device)
        # What the host writes and reads, in turns.
        self._turns = [_Turn(self._who) for _ in range(_IN_FLIGHT)]
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        if captured and self._on_device:
            self._capture(progress or (lambda done, total: None))

    def launch(self, rows: Sequence[int]) -> Launched:
        """A step of these different rows: at least one, and at most `most`.

        Waits for the step before the last, if that is still under way: its memory is used again.
        """
        if not self._on_device:
            return self._on_host(rows)
        count, size = len(rows), next(size for size in self._sizes if size >= len(rows))
        turn = self._turns[0]
        self._turns = [*self._turns[1:], turn]
        assert turn.written is not None
        turn.written.synchronize()
        turn.who[:size] = torch.tensor([*rows, *[self._nobody] * (size - count)])
        self._who[:size].copy_(turn.who[:size], non_blocking=True)
        if size in self._graphs:
            graph, packed = self._graphs[size]
            graph.replay()
        else:
            packed = self._step(size)
        out = turn.packed[:count]
        out.copy_(packed[:count], non_blocking=True)
        turn.written.record()
        return Launched(size, out, turn.written)

    def _on_host(self, rows: Sequence[int]) -> Launched:
        self._who.zero_()
        self._who[list(rows)] = True
        packed = _pack(self._model.step(self._state, self._who))
        return Launched(len(packed), packed[list(rows)], None)

    @torch.inference_mode()
    def _step(self, size: int) -> Tensor:
        return _pack(self._model.step(self._state, self._all[:size], self._who[:size]))

    def _capture(self, progress: Progress) -> None:
        """Captures all sizes, the largest first: the smaller ones fit into its memory."""
        self._who.fill_(self._nobody)  # who has ended: it changes nothing, and compiles what has to be compiled
        pool = torch.cuda.graph_pool_handle()
        for done, size in enumerate(reversed(self._sizes), 1):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._step(size)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                packed = self._step(size)
            self._graphs[size] = graph, packed
            progress(done, len(self._sizes))


class _Turn:
    """Memory of the host for one step in flight."""

    def __init__(self, who: Tensor) -> None:
        pinned = who.device.type == "cuda"
        self.who = torch.zeros(len(who), dtype=who.dtype, pin_memory=pinned)
        self.packed = torch.zeros(len(who), _WIDTH, dtype=torch.int16, pin_memory=pinned)
        # When the device has written; None where it is the host itself. Before its first record it does not wait.
        self.written = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]


def _pack(frame: SpeechFrame) -> Tensor:
    """One tensor, so that it is one copy: int16[B, _WIDTH]."""
    masks = torch.stack([getattr(frame, name) for name in _MASKS], dim=1)
    return torch.cat((frame.codes.to(torch.int16), frame.pcm, masks.to(torch.int16)), dim=1)
