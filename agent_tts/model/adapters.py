"""LoRA adapters of the talker: rows with different ones, or none, in one batch.

The low-rank matrices of all loaded adapters lie side by side, so a linear layer computes those of all rows in two
products, and a mask keeps of each row what is its own. A row without an adapter is what it is without adapters, bit for
bit. R is the columns of all adapters: their number times the largest rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import NamedTuple
from weakref import WeakValueDictionary

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F

from agent_tts.errors import at_capacity
from agent_tts.model.adapter_file import WEIGHTS, AdapterFile, linear_shapes
from agent_tts.model.config import TransformerConfig
from agent_tts.model.entries import CheckpointError
from agent_tts.model.frame import FrameModel
from agent_tts.model.layers import Cache
from agent_tts.model.talker import PromptPositions


class Adapter:
    """A loaded adapter. Its place is free again when nothing refers to it."""

    def __init__(self, place: int) -> None:
        self.place = place


# Layers whose products are one product of fused kernels, in the order of their outputs, with the shape of its matrix.
PARALLEL = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),  # [(queries + 2 pairs) dim, H]
    ("self_attn.o_proj",),  # [H, queries dim]
    ("mlp.gate_proj", "mlp.up_proj"),  # [2 I, H]
    ("mlp.down_proj",),  # [H, I]
)


class LowRank(NamedTuple):
    """The matrices of all places, for G parallel layers with N outputs in all."""

    down: Tensor  # [G R, inputs]
    up: Tensor  # [N, R]
    groups: tuple[int, ...]  # outputs of each layer

    @staticmethod
    def empty(shapes: Sequence[tuple[int, int]], columns: int, like: Tensor) -> LowRank:
        groups, (inputs, *_) = zip(*shapes, strict=True)
        return LowRank(like.new_zeros(len(groups) * columns, inputs), like.new_zeros(sum(groups), columns), groups)

    def parts(self) -> list[tuple[Tensor, Tensor]]:
        """For each layer, views of its own [R, inputs] and [outputs, R]."""
        return list(zip(self.down.chunk(len(self.groups)), torch.split(self.up, list(self.groups)), strict=True))


class AdapterBank:
    """The adapters of a loaded model's rows: `count` at once, each of rank `rank` at most.

    `adapt` makes modules run them; `fused.fuse` makes kernels.
    """

    def __init__(self, model: FrameModel, rows: int, count: int, rank: int) -> None:
        self.rank = rank
        self._count = count
        self._model = model
        weight, shapes = model.talker.norm.weight, linear_shapes(model.config.talker)
        # int64[rows]: the place of the row's adapter; -1 is none.
        self.places = torch.full((rows,), -1, dtype=torch.int64, device=weight.device)
        # The place that a column belongs to: int64[R].
        self._place_of_column = torch.arange(count, device=weight.device).repeat_interleave(rank)
        # [B, 1, R]: 1 in the columns of the adapters of the rows of the present call of modules.
        self.now = weight.new_zeros(rows, 1, count * rank)
        self._loaded: WeakValueDictionary[object, Adapter] = WeakValueDictionary()
        self._lock = Lock()  # held while a place is taken
        # What each layer adds, in the order of `PARALLEL`.
        self.layers = [
            [LowRank.empty([shapes[name] for name in names], count * rank, weight) for names in PARALLEL]
            for _ in model.talker.layers
        ]

    def _views(self) -> dict[tuple[int, str], tuple[Tensor, Tensor]]:
        """By layer and name, its own part of `layers`."""
        return {
            (layer, name): part
            for layer, several in enumerate(self.layers)
            for names, low in zip(PARALLEL, several, strict=True)
            for name, part in zip(names, low.parts(), strict=True)
        }

    def adapt(self) -> None:
        """Make the model's modules run adapters."""
        model = self._model
        for (layer, name), (down, up) in self._views().items():
            owner, _, attribute = name.rpartition(".")
            block = model.talker.layers[layer]
            setattr(block.get_submodule(owner), attribute, AdaptedLinear(block.get_submodule(name), down, up, self))
        model.ops = replace(model.ops, talk=self.step, prefill=self.prefill)

    @staticmethod
    def nbytes(talker: TransformerConfig, count: int, rank: int, dtype: torch.dtype) -> int:
        return talker.num_hidden_layers * count * rank * sum(map(sum, linear_shapes(talker).values())) * dtype.itemsize

    @torch.inference_mode()
    def load(self, key: object, file: AdapterFile) -> Adapter:
        """The adapter of a file that fits the model, in any thread; the one that is loaded with an equal key, if any.

        Raises:
            CheckpointError: its rank is too large, or a value is not finite.
            AtCapacity: all places are in use.
        """
        if file.rank > self.rank:
            raise CheckpointError(f"an adapter of rank {file.rank}; qwen3.adapter_rank allows {self.rank}")
        with self._lock:
            if known := self._loaded.get(key):
                return known
            taken = {adapter.place for adapter in self._loaded.values()}
            place = next((place for place in range(self._count) if place not in taken), None)
            if place is None:
                raise at_capacity("LoRA adapters", self._count)
            self._write(file, place)
            adapter = self._loaded[key] = Adapter(place)
        return adapter

    def _write(self, file: AdapterFile, place: int) -> None:
        columns = slice(place * self.rank, (place + 1) * self.rank)
        with safe_open(file.weights, "pt") as tensors:
            for at, (all_down, all_up) in self._views().items():
                down, up = all_down[columns], all_up[:, columns]
                down.zero_()
                up.zero_()
                if at in file.pairs:
                    a, b = (tensors.get_tensor(name).float() for name in file.pairs[at])
                    a, b = a.to(down.dtype), (b * file.scale).to(up.dtype)
                    if not (a.isfinite().all() and b.isfinite().all()):
                        raise CheckpointError(f"{WEIGHTS}: not finite: {' or '.join(file.pairs[at])}")
                    down[: file.rank] = a.to(down.device)
                    up[:, : file.rank] = b.to(up.device)

    def assign(self, row: int, adapter: Adapter | None) -> None:
        """The adapter of a row, for all steps that are launched from now on."""
        with torch.inference_mode():
            self.places[row] = -1 if adapter is None else adapter.place

    def step(
        self, x: Tensor, positions: Tensor, cache: Cache, rows: Tensor | None, prompts: PromptPositions | None
    ) -> Tensor:
        """As `Talker.step`."""
        self._choose(self.places if rows is None else self.places[rows])
        return self._model.talker.step(x, positions, cache, rows, prompts)

    def prefill(self, prompt: PromptPositions, cache: Cache, span: int | None) -> None:
        """As `Talker.prefill`."""
        self._choose(self.places[prompt.rows[:1]])
        self._model.talker.prefill(prompt, cache, span)

    def _choose(self, places: Tensor) -> None:
        self.now = (places[:, None, None] == self._place_of_column).to(self.now.dtype)


class AdaptedLinear(nn.Module):
    """[B, T, inputs] -> [B, T, outputs]: a linear layer with the adapters of the rows."""

    def __init__(self, linear: nn.Module, down: Tensor, up: Tensor, bank: AdapterBank) -> None:
        super().__init__()
        self.linear, self.down, self.up = linear, down, up
        self._bank = bank

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(x, self.down) * self._bank.now
        return self.linear(x) + F.linear(low, self.up)
