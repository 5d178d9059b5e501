"""A frame of a batch of rows as one CUDA graph: the host launches step t, and reads step t - 1 while t runs.

There is one graph for each size of batch; its rows are an input of the graph. A step takes the smallest size that holds
its rows, and fills it up with the padding row. Each size has a second graph for a mixed batch, with prompts of other
rows: the weights, whose reading is most of a prompt's cost, are read once for both. One more graph has prompts alone.
The graphs share their memory. With graphs off, the same step runs kernel by kernel; on a CPU it always has all rows.
Without fused kernels, prompts are computed alone, one after the other.

Rounding depends on the size of the batch and on whether it is mixed: a request repeats bit by bit only in steps of one
size that are not mixed.

Changes of the state between steps (prefixes, admissions, text) are queued on the CUDA stream that is current here: the
order of that stream is the only synchronisation. A device without streams computes when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agent_tts.engine.qwen3.served import StepResult
from agent_tts.model.config import FRAME_SAMPLES
from agent_tts.model.device import queues
from agent_tts.model.frame import PROMPT_ENTRIES, PromptEntries
from agent_tts.model.frame_state import FrameState
from agent_tts.model.prompt import VECTOR
from agent_tts.model.row_changes import staged
from agent_tts.model.speech import SpeechModel, SpeechState

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CPU_ENTRIES = 64  # of prompts in a step: 1 s on a small CPU
_CODES = 16
_WIDTH = _CODES + FRAME_SAMPLES + 2  # of a row: codes, samples, masks
_IN_FLIGHT = 2  # steps that have been launched, the one that is being read included

Progress = Callable[[int, int], None]  # graphs captured, of how many


def rows_of_state(rows: int, device: torch.device) -> int:
    """Rows of a state for `rows` requests: on a GPU with the padding row."""
    return rows + queues(device)


def batch_sizes(rows: int, device: torch.device) -> tuple[int, ...]:
    """Sizes of the batches of steps for `rows` requests: without streams always all rows."""
    if not queues(device):
        return (rows,)
    most = min(rows, BUCKETS[-1])
    return (*(size for size in BUCKETS if size < most), most)


class PrefillBudget(NamedTuple):
    """The most that a step computes of prompts."""

    entries: int
    prompts: int | None = None  # None is any number
    cut: bool = False  # a prompt may be cut anywhere, to fill the step


@dataclass(frozen=True, slots=True)
class ChunkInputs:
    """Consecutive entries of a row's prompt."""

    row: int
    # [n]: in the row; the padding position for the prompt's last entry, which is only embedded.
    positions: NDArray[np.int64]
    # How many leading positions of the row they may read; later ones may hold NaN. None: they begin at position 0.
    span: int | None
    numbers: NDArray[np.int64]  # [n, 1 + K], see `Prompt.numbers`
    vector: Tensor | None  # [H]: the speaker's, where the numbers have a place for it


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step in flight, or done."""

    size: int  # of its batch
    _packed: NDArray[np.int16]  # [n, _WIDTH], in memory that the device writes to
    _written: torch.cuda.Event | None  # None: the step is done
    _spanned: tuple[torch.cuda.Event, torch.cuda.Event] | None = None  # around it on the device, where it is timed

    def ready(self) -> bool:
        """Whether `result` would not wait."""
        return self._written is None or self._written.query()

    def device_s(self) -> float:
        """How long a timed step that is done took on the device, in seconds; 0 on a CPU, where the launch is all."""
        return float(self._spanned[0].elapsed_time(self._spanned[1])) / 1_000 if self._spanned else 0.0

    def result(self) -> StepResult:
        """What the step did. Waits until it is done."""
        if self._written is not None:
            self._written.synchronize()
        codes, pcm, masks = np.split(self._packed, [_CODES, _CODES + FRAME_SAMPLES], axis=1)
        ended, finite = masks.T != 0
        return StepResult(codes, pcm, ended, finite)


class FrameGraphs:
    """Steps of a speech model over one state of `rows_of_state` rows.

    Args:
        captured: False runs the same step kernel by kernel; so does a CPU.
        sizes: of batches, ascending; None is `batch_sizes`.
        mixed: a batch may have prompts beside its frames.
    """

    def __init__(
        self,
        model: SpeechModel,
        state: SpeechState,
        *,
        captured: bool = True,
        sizes: Sequence[int] | None = None,
        mixed: bool = True,
        progress: Progress | None = None,
    ) -> None:
        device = state.frame.ended.device
        self._queues = queues(device)
        rows = len(state.frame.ended) - self._queues
        self._model = model
        self._state = state
        self._sizes = sizes or batch_sizes(rows, device)
        most = self._sizes[-1]
        self._padding_row = rows
        # It is int64[most], the rows of the step, with streams; otherwise bool[rows], a mask of those that run.
        self._who = torch.zeros(most, dtype=torch.int64 if self._queues else torch.bool, device=device)
        self._all = torch.ones(most, dtype=torch.bool, device=device)
        # Pinned memory of the host, used in turns. None without streams.
        self._turns = [_HostBuffers(self._who) for _ in range(_IN_FLIGHT if self._queues else 0)]
        # Inputs of prompts, where several rows are computed at once. None where each is computed alone.
        self._prompts: PromptInputs | None = None
        if model.frame.ops.mixes:
            self._prompts = PromptInputs(state.frame, PROMPT_ENTRIES, model.frame.config.talker.num_code_groups)
        self._mixed = mixed and self._prompts is not None
        # Key: the size of the batch, 0 without a frame, and whether there are prompts.
        self._graphs: dict[tuple[int, bool], tuple[torch.cuda.CUDAGraph, _DeviceOutput]] = {}
        if captured and self._queues:
            self._pool = torch.cuda.graph_pool_handle()
            self._capture(progress or (lambda done, total: None))

    @property
    def prefill_budget(self) -> PrefillBudget:
        if self._prompts is not None:
            return PrefillBudget(PROMPT_ENTRIES, cut=True)
        # Kernel by kernel, launching even a short prompt takes the host as long as some frames.
        return PrefillBudget(PROMPT_ENTRIES, prompts=1) if self._queues else PrefillBudget(CPU_ENTRIES)

    def step(
        self, rows: Sequence[int], parts: Sequence[ChunkInputs] = (), *, timed: bool = False
    ) -> tuple[LaunchedStep | None, list[Tensor]]:
        """A frame of these different rows, at most `most`, and parts of prompts of others, within `prefill_budget`.

        Gives the frame, if there are rows, and for each part the embedding of its last entry, [H]. Waits for the frame
        before the last if it is in flight: its memory is reused.
        """
        if rows and (self._mixed or not parts):
            return self._frame(rows, parts, timed=timed)
        embedded = self._compute(parts) if parts else []
        return self._frame(rows, timed=timed)[0] if rows else None, embedded

    def _compute(self, parts: Sequence[ChunkInputs]) -> list[Tensor]:
        if self._prompts is None:
            return [self._compute_alone(part) for part in parts]
        ends = self._prompts.fill(parts)
        return self._run(0, prompts=True).at(ends)

    def _compute_alone(self, part: ChunkInputs) -> Tensor:
        frame, state = self._model.frame, self._state.frame
        entries = frame.entries(state, part.row, part.positions, part.numbers, part.vector)
        return frame.prefill(state, entries, part.span)[-1].clone()

    def _frame(
        self, rows: Sequence[int], parts: Sequence[ChunkInputs] = (), *, timed: bool
    ) -> tuple[LaunchedStep, list[Tensor]]:
        """With these parts in the same batch, where they may be."""
        if not self._queues:
            return self._frame_at_once(rows), []
        ends = self._prompts.fill(parts) if self._prompts and parts else []
        count, prompts = len(rows), bool(parts)
        size = next(size for size in self._sizes if size >= count)
        turn = self._turns[0]
        self._turns = [*self._turns[1:], turn]
        turn.written.synchronize()
        who = turn.who.numpy()
        who[:count], who[count:size] = rows, self._padding_row
        spanned = (_timer(), _timer()) if timed else None
        if spanned:
            spanned[0].record()
        self._who.copy_(turn.who, non_blocking=True)
        written = self._run(size, prompts=prompts)
        out = turn.packed[:size]
        out.copy_(written.frame, non_blocking=True)
        if spanned:
            spanned[1].record()
        turn.written.record()
        return LaunchedStep(size, out.numpy()[:count], turn.written, spanned), written.at(ends)

    def _frame_at_once(self, rows: Sequence[int]) -> LaunchedStep:
        self._who.zero_()
        self._who[list(rows)] = True
        packed = self._model.step(self._state, self._who).cpu()
        return LaunchedStep(len(packed), packed.numpy()[list(rows)], None)

    def _run(self, size: int, *, prompts: bool) -> _DeviceOutput:
        """Replay the graph of this size; without one, launch its kernels. A replay writes to the same memory."""
        if (size, prompts) not in self._graphs:
            return self._by_kernels(size, prompts=prompts)
        graph, written = self._graphs[size, prompts]
        graph.replay()
        return written

    @torch.inference_mode()
    def _by_kernels(self, size: int, *, prompts: bool) -> _DeviceOutput:
        frame, embedded = self._model.frame, None
        if prompts:
            assert self._prompts is not None
            embedded = frame.embed(self._prompts.entries)
        if not size:
            assert embedded is not None
            frame.ops.prefill(embedded, self._state.frame.cache, None)
            return _DeviceOutput(embedded.x[:0], embedded.x)
        packed = self._model.step(self._state, self._all[:size], self._who[:size], embedded)
        return _DeviceOutput(packed, embedded.x if embedded else packed[:0])

    def _capture(self, progress: Progress) -> None:
        """The graphs of the largest size come first: the others use their memory."""
        kinds = (True, False) if self._mixed else (False,)
        wanted = [(size, prompts) for size in reversed(self._sizes) for prompts in kinds]
        if self._prompts is not None:
            wanted.append((0, True))
        for done, (size, prompts) in enumerate(wanted, 1):
            self._capture_one(size, prompts=prompts)
            progress(done, len(wanted))

    def _capture_one(self, size: int, *, prompts: bool) -> None:
        """Not while another thread captures."""
        # Nothing that rows have changes: this one has ended, and no entry of a prompt has a place in the cache.
        self._who.fill_(self._padding_row)
        if prompts and self._prompts is not None:
            self._prompts.fill(())
        # On the stream of all steps: rows of another model may run, and kernels share their counters.
        self._by_kernels(size, prompts=prompts)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            written = self._by_kernels(size, prompts=prompts)
        graph.replay()  # the first one also copies the graph to the device, for which requests would wait
        self._graphs[size, prompts] = graph, written


class PromptInputs:
    """`count` entries of prompts of any rows, in tensors that graphs read; unused ones are at the padding position."""

    def __init__(self, state: FrameState, count: int, codebooks: int) -> None:
        self._padding_position = state.cache.padding_position
        device = state.ended.device
        self._packed = torch.zeros(PromptEntries.size(count, codebooks), dtype=torch.int64, device=device)
        vectors = torch.zeros_like(state.feedback[:1]).repeat(count, 1)
        self.entries = PromptEntries.of(self._packed, vectors)
        self.fill(())

    @torch.inference_mode()
    def fill(self, parts: Sequence[ChunkInputs]) -> list[int]:
        """Copy parts there at once, without waiting; gives the index of the last entry of each."""
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


@dataclass(frozen=True, slots=True)
class _DeviceOutput:
    """Outputs of a step on the device; the next replay overwrites them."""

    frame: Tensor  # int16[B, _WIDTH]
    embedded: Tensor  # [P, H]: entries of prompts; nothing where there are none

    def at(self, ends: Sequence[int]) -> list[Tensor]:
        return [self.embedded[end].clone() for end in ends]


class _HostBuffers:
    """Pinned memory of the host for one step in flight."""

    def __init__(self, who: Tensor) -> None:
        self.who = torch.zeros(len(who), dtype=who.dtype, pin_memory=True)
        self.packed = torch.zeros(len(who), _WIDTH, dtype=torch.int16, pin_memory=True)
        # Recorded when `packed` is written. Before its first record it does not wait.
        self.written = torch.cuda.Event()


def _timer() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
