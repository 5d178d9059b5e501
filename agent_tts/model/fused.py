"""The frame step by fused kernels, for a GPU with triton: the values of the modules, up to the order of sums.

A position of a prompt is one more row of the talker's step, so a mixed batch shares the products of a frame. Weights of
parallel layers are concatenated, and the modules keep views of them: no weight is in memory twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent_tts.model.config import TransformerConfig
from agent_tts.model.frame import FrameModel, StepOps
from agent_tts.model.kernels.attention import (
    FramePlace,
    Heads,
    Place,
    Scratch,
    attend,
    attend_in_frame,
    attend_together,
)
from agent_tts.model.kernels.linear import Norm, linear, rms_norm
from agent_tts.model.kernels.sampling import draw
from agent_tts.model.layers import Cache, RMSNorm, Transformer, TransformerLayer
from agent_tts.model.predictor import Draw, PredictorState
from agent_tts.model.talker import PromptPositions


def fuse(model: FrameModel) -> None:
    """Makes a loaded model run on the kernels: on a GPU, in bfloat16."""
    talker = FusedTalker(model)
    model.ops = StepOps(talker.step, talker.prefill, talker.step_mixed, FusedPredictor(model).step, draw)


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """The weights of a `layers.Layer`, concatenated."""

    input_norm: Norm
    qkv: Tensor  # [(queries + 2 pairs) dim, H]
    q_norm: Tensor
    k_norm: Tensor
    out: Tensor  # [H, queries dim]
    mlp_norm: Norm
    gate_up: Tensor  # [2 I, H]
    down: Tensor  # [H, I]

    @staticmethod
    def of(layer: TransformerLayer) -> FusedLayer:
        attention, mlp = layer.self_attn, layer.mlp
        return FusedLayer(
            input_norm=_norm(layer.input_layernorm),
            qkv=joined(attention.q_proj, attention.k_proj, attention.v_proj),
            q_norm=attention.q_norm.weight,
            k_norm=attention.k_norm.weight,
            out=attention.o_proj.weight,
            mlp_norm=_norm(layer.post_attention_layernorm),
            gate_up=joined(mlp.gate_proj, mlp.up_proj),
            down=mlp.down_proj.weight,
        )

    def run(self, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """[M, H] -> [M, H]; `attend` maps queries, keys and values to the attention's result."""
        mixed = attend(linear(x, self.qkv, norm=self.input_norm))
        x = linear(mixed, self.out, residual=x)
        hidden = linear(x, self.gate_up, norm=self.mlp_norm, gated=True)
        return linear(hidden, self.down, residual=x)


def joined(*modules: nn.Module) -> Tensor:
    """The weights of layers or embeddings of equal width as one [sum of lengths, width], which they become views of."""
    weights = [module.get_parameter("weight") for module in modules]
    whole = torch.cat([weight.detach() for weight in weights])
    for module, part in zip(modules, torch.split(whole, [len(weight) for weight in weights]), strict=True):
        module.weight = nn.Parameter(part, requires_grad=False)
    return whole


@dataclass(frozen=True, slots=True)
class _Queries:
    """Rows of a step with the same kernel of attention."""

    positions: Tensor  # int64[M]
    block_table: Tensor  # int64[M, blocks of a row]
    scratch: Scratch
    attend: Callable[[Tensor, Tensor, Heads, Place, Scratch, Tensor, Tensor], None]


class FusedTalker:
    """`Talker.step` and `Talker.prefill`, one after the other or both at once."""

    def __init__(self, model: FrameModel) -> None:
        config, talker = model.config.talker, model.talker
        weight = talker.codec_head.weight
        self.layers = [FusedLayer.of(cast(TransformerLayer, layer)) for layer in talker.layers]
        self._norm = talker.norm
        self.heads = _heads(config, talker, config.max_position_embeddings, weight)
        # By the number of rows.
        self._scratch: dict[int, Scratch] = {}
        # By the number of positions of prompts.
        self._together: dict[int, Scratch] = {}

    def step(self, x: Tensor, positions: Tensor, cache: Cache, rows: Tensor | None = None) -> Tensor:
        return self._run(x, cache, self._frames(positions, cache, rows))

    def step_mixed(
        self, x: Tensor, positions: Tensor, cache: Cache, rows: Tensor | None, prompts: PromptPositions
    ) -> Tensor:
        """A mixed batch: the result of `step`. No row is in both parts."""
        queries = self._frames(positions, cache, rows), self._prompts(prompts, cache)
        return self._run(torch.cat((x, prompts.x)), cache, *queries)[: len(x)]

    def prefill(self, prompts: PromptPositions, cache: Cache, span: int | None) -> None:
        """Of any rows; each position reads those before it, so `span` is ignored."""
        self._run(prompts.x.clone(), cache, self._prompts(prompts, cache))

    def _frames(self, positions: Tensor, cache: Cache, rows: Tensor | None) -> _Queries:
        size, block_table = len(positions), cache.block_table if rows is None else cache.block_table[rows]
        if size not in self._scratch:
            self._scratch[size] = Scratch.empty(size, cache.padding_position + 1, self.heads, positions.device)
        return _Queries(positions, block_table, self._scratch[size], attend)

    def _prompts(self, prompts: PromptPositions, cache: Cache) -> _Queries:
        size = len(prompts.x)
        if size not in self._together:
            self._together[size] = Scratch.together(size, cache.padding_position + 1, self.heads, prompts.x.device)
        return _Queries(prompts.positions, cache.block_table[prompts.rows], self._together[size], attend_together)

    def _run(self, x: Tensor, cache: Cache, *queries: _Queries) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = layer.run(
                x, partial(self._attend, layer, cache.keys[index], cache.values[index], cache.padding_position, queries)
            )
        return rms_norm(x, self._norm.weight, self._norm.eps)

    def _attend(
        self,
        layer: FusedLayer,
        keys: Tensor,
        values: Tensor,
        padding_position: int,
        queries: Sequence[_Queries],
        qkv: Tensor,
    ) -> Tensor:
        """Attention of all queries over one layer of the cache, one group after the other."""
        out = qkv.new_empty(len(qkv), self.heads.queries * self.heads.dim)
        sizes = [len(those.positions) for those in queries]
        for those, mine, found in zip(queries, torch.split(qkv, sizes), torch.split(out, sizes), strict=True):
            place = Place(those.positions, keys, values, those.block_table, padding_position)
            those.attend(layer.q_norm, layer.k_norm, self.heads, place, those.scratch, mine, found)
        return out


class FusedPredictor:
    """`Predictor.forward`."""

    def __init__(self, model: FrameModel) -> None:
        predictor = model.predictor
        self._codebooks = predictor.codebooks
        self.layers = [FusedLayer.of(cast(TransformerLayer, layer)) for layer in predictor.layers]
        self._norm = _norm(predictor.norm)
        self.heads = _heads(predictor.shape, predictor, predictor.codebooks, predictor.norm.weight)
        self._lm_heads = [head.get_parameter("weight") for head in predictor.lm_head]
        self._embedding = joined(*predictor.codec_embedding)  # [15 * codes, H]
        self._starts = torch.arange(predictor.codebooks - 1, device=self._embedding.device) * predictor.shape.vocab_size
        self._projection = predictor.small_to_mtp_projection
        # The inputs of positions 2 and up for every code, projected ahead.
        with torch.inference_mode():
            self._inputs = [
                self._projection(embedding.get_parameter("weight")) for embedding in predictor.codec_embedding
            ]

    def step(self, state: PredictorState, hidden: Tensor, first: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        rows = len(hidden)
        codes: list[Tensor] = []
        x = self._projection(torch.stack((hidden, first), dim=1).flatten(0, 1))
        for index in range(self._codebooks - 1):
            if index:
                x = F.embedding(codes[-1], self._inputs[index - 1])
            for number, layer in enumerate(self.layers):
                keys, values = state.cache.keys[number], state.cache.values[number]
                frame = FramePlace(len(x) // rows, index + 1, keys, values)
                x = layer.run(x, partial(attend_in_frame, layer.q_norm, layer.k_norm, self.heads, frame))
            last = x.view(rows, -1, x.shape[1])[:, -1].contiguous()
            codes.append(draw(linear(last, self._lm_heads[index], norm=self._norm), index + 1))
        others = torch.stack(codes, dim=1)
        embedded = F.embedding(others + self._starts, self._embedding)
        return others, torch.cat((first[:, None], embedded), dim=1)


def _norm(norm: RMSNorm) -> Norm:
    return Norm(norm.weight, norm.eps)


def _heads(shape: TransformerConfig, transformer: Transformer, positions: int, like: Tensor) -> Heads:
    cos, sin = transformer.rope(torch.arange(positions, device=like.device)[None], like.dtype)
    half = shape.head_dim // 2
    rope = torch.stack((cos[0, :, 0, :half], sin[0, :, 0, :half]), dim=1).contiguous()
    return Heads(shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim, shape.rms_norm_eps, rope)
