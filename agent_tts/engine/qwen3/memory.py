"""How the memory of a device is shared out among models: from bytes and settings to a plan. No device is needed.

Weights, their copies, the codec's state, graphs and scratch are fixed by the number of slots; the rest is the cache. If
it holds `positions` for every slot, each has its own; otherwise the slots share blocks of it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from agent_tts.config.settings import Qwen3
from agent_tts.errors import SettingsError
from agent_tts.model.layers import BLOCK_SIZE

GIB = 1 << 30
USUAL_SHARE = Qwen3().memory  # of the free memory
LIBRARIES = 512 << 20  # of a GPU: binaries of kernels, workspaces of cuBLAS and cuDNN, what the allocator rounds up
STREAM_POSITIONS = 13 * BLOCK_SIZE  # that a stream takes: a prompt of 100 and 25 s of speech
PROPOSED = (1_024, 512, 256)  # positions, where more do not fit


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """What a model takes on its device, in bytes."""

    name: str
    weights: int  # and the copies that kernels keep
    loading: int  # more than that, before there is anything else of the model
    position: int  # of the cache, in all layers
    row: int  # of the state of codec and watermark
    work: int  # of a row of a step, while it is computed
    step_rows: int  # the most of a step
    graphs: int  # of all captured steps, besides that
    padding_rows: int  # rows of the state besides the slots

    def scratch(self, slots: int) -> int:
        """Graphs and scratch. Each step also runs once uncaptured, with memory of its own."""
        return self.graphs + min(slots, self.step_rows) * self.work * (2 if self.graphs else 1)

    def state(self, slots: int) -> int:
        return (slots + self.padding_rows) * self.row

    def fixed(self, slots: int) -> int:
        """All but the cache."""
        return self.weights + self.state(slots) + self.scratch(slots)

    def whole_cache(self, slots: int, positions: int) -> int:
        """With all positions, and one for padding, of every row."""
        return (slots + self.padding_rows) * (positions + 1) * self.position


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """A model's part of a plan, in bytes."""

    name: str
    weights: int
    state: int
    scratch: int
    cache: int
    blocks: int | None  # of the cache, which the slots share; None: each has all its positions

    @property
    def line(self) -> str:
        whose = "of each slot" if self.blocks is None else "shared by the slots"
        return (
            f"{self.name}: weights {self.weights / GIB:.2f} GiB, cache {self.cache / GIB:.2f} ({whose}), "
            f"codec {self.state / GIB:.2f}, graphs and scratch {self.scratch / GIB:.2f}"
        )


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Slots that fit, and what is where."""

    slots: int
    positions: int  # that a slot may use: `max_model_len`
    streams: int  # slots of one model that speak at once before some wait for blocks; see STREAM_POSITIONS
    models: tuple[ModelMemory, ...]
    libraries: int  # bytes
    free: float  # bytes of the device, before; infinite where it is not known

    @property
    def left(self) -> float:
        return self.free - self.libraries - sum(m.weights + m.state + m.scratch + m.cache for m in self.models)

    @property
    def lines(self) -> list[str]:
        """For a log: slots, then each model, then the rest."""
        free = f"{self.left / GIB:.2f} of {self.free / GIB:.2f} GiB stay free"
        return [
            f"{self.slots} slots of {self.positions} positions, memory for {self.streams} streams at once",
            *(model.line for model in self.models),
            *([f"libraries {self.libraries / GIB:.2f} GiB; {free}"] if math.isfinite(self.free) else []),
        ]


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of a device that models may take."""

    free: float  # infinite where it is not known, likewise the total
    total: float
    share: float  # `qwen3.memory`: of the total, which the engines of a device split, and of what is free
    libraries: int = 0  # that a process takes besides the models

    @property
    def budget(self) -> float:
        return min(max(self.share, USUAL_SHARE) * self.free, self.share * self.total) - self.libraries

    def fit(self, models: Sequence[ModelNeeds], slots: int, positions: int) -> MemoryPlan | None:
        """The plan with so many slots. None: no room to load, or no blocks for two contexts of all positions."""
        left = self.budget - sum(model.fixed(slots) for model in models)
        whole = left >= sum(model.whole_cache(slots, positions) for model in models)
        parts, streams = [], slots
        for model in models:
            cache, blocks = model.whole_cache(slots, positions), None
            if not whole:
                blocks = int(left / len(models) / (BLOCK_SIZE * model.position))
                if blocks * BLOCK_SIZE < 2 * positions:
                    return None
                cache = blocks * BLOCK_SIZE * model.position
                streams = min(streams, blocks * BLOCK_SIZE // min(STREAM_POSITIONS, positions))
            state = model.state(slots)
            scratch = max(model.scratch(slots), model.loading - state - cache)
            parts.append(ModelMemory(model.name, model.weights, state, scratch, cache, blocks))
        if sum(part.weights + part.state + part.scratch + part.cache for part in parts) > self.budget:
            return None
        return MemoryPlan(slots, positions, streams, tuple(parts), self.libraries, self.free)

    def plan(self, models: Sequence[ModelNeeds], slots: int, positions: int, *, exact: bool) -> MemoryPlan:
        """The plan with `slots`, or, unless `exact`, with the most of them that all have blocks for a stream.

        Raises:
            SettingsError: the models take more than there is; the message has the numbers, and settings that fit.
        """
        count = slots if exact else self.most(models, positions, slots)
        if count and (plan := self.fit(models, count, positions)):
            return plan
        fewest = slots if exact else 1
        caches = sum(min(model.whole_cache(fewest, positions), 2 * positions * model.position) for model in models)
        needed = sum(model.fixed(fewest) for model in models) + caches
        weights = ", ".join(f"{model.name} {model.weights / GIB:.1f}" for model in models)
        raise SettingsError(
            f"qwen3: {fewest} slots of {positions} positions need {needed / GIB:.1f} GiB at least (weights {weights}): "
            f"of {self.free / GIB:.1f} GiB that are free, models may take {self.budget / GIB:.1f}; "
            f"{self._advice(models, fewest, positions)}"
        )

    def most(self, models: Sequence[ModelNeeds], positions: int, limit: int) -> int:
        """The most slots, at most `limit`, that all have blocks for a stream."""
        counts = range(1, limit + 1)

        def too_many(count: int) -> bool:
            plan = self.fit(models, count, positions)
            return plan is None or plan.streams < count

        return bisect_left(counts, True, key=too_many)

    def _advice(self, models: Sequence[ModelNeeds], slots: int, positions: int) -> str:
        """Settings that fit: the same models with fewer slots or positions, or fewer of the models."""
        if fewer := next((n for n in range(slots, 0, -1) if self.fit(models, n, positions)), None):
            return f"slots: {fewer} would fit"
        for count in range(len(models) - 1, 0, -1):
            if self.fit(models[:count], 1, positions):
                return f"of qwen3.models, {', '.join(model.name for model in models[:count])} alone would fit"
        if shorter := next((some for some in PROPOSED if some < positions and self.fit(models, 1, some)), None):
            return f"qwen3.max_model_len: {shorter} with slots: 1 would fit"
        return "free the device, or use a smaller model"
