"""Batches of prompts as CUDA graphs, one for each shape; without them the same function runs kernel by kernel.

What a graph reads stands in tensors of its own, which one copy fills. To a GPU the padding costs little, so there is a
small number of shapes; a CPU computes each prompt alone and as long as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agent_tts.engine.prompt_queue import Shape
from agent_tts.model.frame import FrameModel, PromptParts
from agent_tts.model.frame_state import FrameState
from agent_tts.model.upload import staged


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a row's prompt."""

    row: int
    at: int  # positions of the prompt that are in the row already
    numbers: NDArray[np.int64]  # [T + 1, 1 + K], see `Prompt.numbers`; the last is what follows, and is not computed
    vector: Tensor | None  # [H]: the speaker's, where the numbers have a place for it


class Prefill:
    """Computes parts of prompts into rows of a state.

    Args:
        shapes: of the batches that there will be, each padded to one of them; none computes every part alone.
        captured: on a GPU, each shape is a graph.
    """

    def __init__(self, model: FrameModel, state: FrameState, shapes: Sequence[Shape], *, captured: bool) -> None:
        self._model = model
        self._state = state
        self._device = state.ended.device
        self._codebooks = model.config.talker.num_code_groups
        self._batches = {shape: self._empty(shape) for shape in shapes}
        self._graphs: dict[Shape, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        if captured and self._device.type == "cuda":
            self._capture()

    @torch.inference_mode()
    def run(self, shape: Shape, parts: Sequence[Part]) -> list[Tensor]:
        """Computes a batch; gives of each part what follows it, [H]: the codec side of a row's first frame step."""
        if self._batches:
            return self._run_batch(shape, parts)
        return [self._run_alone(part) for part in parts]

    def _run_alone(self, part: Part) -> Tensor:
        length = len(part.numbers) - 1
        batch = self._empty(Shape(1, length, part.at > 0))
        batch.fill([part], self._device)
        return self._model.prefill(self._state, batch.parts, part.at + length if part.at else None)[0]

    def _run_batch(self, shape: Shape, parts: Sequence[Part]) -> list[Tensor]:
        self._batches[shape].fill(parts, self._device)
        if shape in self._graphs:
            graph, starts = self._graphs[shape]
            graph.replay()
        else:
            starts = self._step(shape)
        return list(starts[: len(parts)].clone())  # the next replay writes there

    def _step(self, shape: Shape) -> Tensor:
        span = self._state.cache.sink if shape.begun else None  # of what it may read, a graph reads all
        return self._model.prefill(self._state, self._batches[shape].parts, span)

    def _empty(self, shape: Shape) -> _Batch:
        size = PromptParts.size(shape.rows, shape.length, self._codebooks)
        packed = torch.zeros(size, dtype=torch.int64, device=self._device)
        vectors = torch.zeros_like(self._state.feedback[:1]).repeat(shape.rows, 1)
        return _Batch(packed, PromptParts.of(packed, vectors, shape.length))

    @torch.inference_mode()
    def _capture(self) -> None:
        """Captures all shapes, the largest first: the others fit into its memory."""
        pool = torch.cuda.graph_pool_handle()
        for shape in self._batches:
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._step(shape)  # all of it is padding
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                starts = self._step(shape)
            self._graphs[shape] = graph, starts


@dataclass(frozen=True, slots=True)
class _Batch:
    """What a batch reads."""

    packed: Tensor
    parts: PromptParts  # views of it

    def fill(self, parts: Sequence[Part], device: torch.device) -> None:
        """Puts parts of prompts there; nobody's are of no length."""
        host = np.zeros(len(self.packed), np.int64)
        views = PromptParts.of(torch.from_numpy(host), self.parts.vectors, self.parts.numbers.shape[1] - 1)
        rows, at, lengths, numbers = (view.numpy() for view in (views.rows, views.at, views.lengths, views.numbers))
        for index, part in enumerate(parts):
            rows[index], at[index], lengths[index] = part.row, part.at, len(part.numbers) - 1
            numbers[index, : lengths[index]] = part.numbers[:-1]
            numbers[index, -1] = part.numbers[-1]
            if part.vector is not None:
                self.parts.vectors[index].copy_(part.vector)
        self.packed.copy_(staged(host, device), non_blocking=True)
