"""LoRA adapters of the talker: rows with different ones, or none, in one batch.

The low-rank matrices of all loaded adapters lie side by side, so a linear layer computes those of all rows in two
products, and a mask keeps of each row what is its own. A row without an adapter is what it is without this module, bit
for bit. R is the columns of all adapters: their number times the largest rank.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
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


class AdapterBank:
    """Makes a loaded model of modules run adapters: `count` at once, each of rank `rank` at most."""

    def __init__(self, model: FrameModel, rows: int, count: int, rank: int) -> None:
        self.rank = rank
        self._count = count
        self._talker = model.talker
        weight = model.talker.norm.weight
        # [rows, 1, R]: 1 in the columns of the row's adapter.
        self._columns = weight.new_zeros(rows, 1, count * rank)
        # [B, 1, R]: the same of the rows of the present call.
        self.now = self._columns
        self._loaded: WeakValueDictionary[object, Adapter] = WeakValueDictionary()
        # Held while a place is taken.
        self._lock = Lock()
        self._linears: dict[tuple[int, str], AdaptedLinear] = {}
        for layer, block in enumerate(model.talker.layers):
            for name in linear_shapes(model.config.talker):
                owner, _, attribute = name.rpartition(".")
                adapted = AdaptedLinear(block.get_submodule(name), self, count * rank)
                setattr(block.get_submodule(owner), attribute, adapted)
                self._linears[layer, name] = adapted
        model.ops = replace(model.ops, talk=self.step, prefill=self.prefill)

    @staticmethod
    def nbytes(talker: TransformerConfig, count: int, rank: int, dtype: torch.dtype) -> int:
        """Memory of all places."""
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
            for at, linear in self._linears.items():
                down, up = linear.down[columns], linear.up[:, columns]
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
            self._columns[row] = 0
            if adapter is not None:
                self._columns[row, :, adapter.place * self.rank : (adapter.place + 1) * self.rank] = 1

    def step(
        self, x: Tensor, positions: Tensor, cache: Cache, rows: Tensor | None, prompts: PromptPositions | None
    ) -> Tensor:
        """As `Talker.step`."""
        self.now = self._columns if rows is None else self._columns[rows]
        return self._talker.step(x, positions, cache, rows, prompts)

    def prefill(self, prompt: PromptPositions, cache: Cache, span: int | None) -> None:
        """As `Talker.prefill`."""
        self.now = self._columns[prompt.rows[:1]]
        self._talker.prefill(prompt, cache, span)


class AdaptedLinear(nn.Module):
    """[B, T, inputs] -> [B, T, outputs]: a linear layer with the adapters of the rows."""

    def __init__(self, linear: nn.Module, bank: AdapterBank, columns: int) -> None:
        super().__init__()
        weight = linear.get_parameter("weight")
        self.linear = linear
        self.down = weight.new_zeros(columns, weight.shape[1])
        self.up = weight.new_zeros(weight.shape[0], columns)
        self._bank = bank

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(x, self.down) * self._bank.now
        out: Tensor = self.linear(x) + F.linear(low, self.up)
        return out
