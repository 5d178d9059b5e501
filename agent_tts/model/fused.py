"""The frame step by fused kernels, for a GPU with triton: the values of the modules, up to the order of sums.

A position of a prompt is one more row of the talker's step, so a mixed batch shares the products of a frame. Weights of
parallel layers are concatenated, and the modules keep views of them: no weight is in memory twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent_tts.model.frame import FrameModel, StepOps
from agent_tts.model.kernels.attention import TOGETHER, Heads, Queries, Scratch, attend, attend_in_frame
from agent_tts.model.kernels.linear import linear, rms_norm
from agent_tts.model.kernels.sampling import draw
from agent_tts.model.layers import Cache, Transformer, TransformerLayer
from agent_tts.model.predictor import Choose, PredictorState
from agent_tts.model.talker import PromptPositions


def fuse(model: FrameModel) -> None:
    """Makes a loaded model run on the kernels: on a GPU, in bfloat16."""
    talker = FusedTalker(model)
    model.ops = StepOps(talker.step, talker.prefill, FusedPredictor(model).step, draw, mixes=True)


class FusedLayer:
    """The weights of a `layers.TransformerLayer`, concatenated."""

    def __init__(self, layer: TransformerLayer) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.input_norm, self.mlp_norm = layer.input_layernorm, layer.post_attention_layernorm
        self.q_norm, self.k_norm = attention.q_norm.weight, attention.k_norm.weight
        self.qkv = joined(attention.q_proj, attention.k_proj, attention.v_proj)  # [(queries + 2 pairs) dim, H]
        self.out = attention.o_proj.weight  # [H, queries dim]
        self.gate_up = joined(mlp.gate_proj, mlp.up_proj)  # [2 I, H]
        self.down = mlp.down_proj.weight  # [H, I]

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


class FusedTalker:
    """`Talker.step` and `Talker.prefill`, one after the other or both at once."""

    def __init__(self, model: FrameModel) -> None:
        talker = model.talker
        self.layers = [FusedLayer(cast(TransformerLayer, layer)) for layer in talker.layers]
        self._norm = talker.norm
        self.heads = _heads(talker, model.config.talker.max_position_embeddings)
        # By the number of positions, and whether several may belong to one row.
        self._scratch: dict[tuple[int, bool], Scratch] = {}

    def step(
        self, x: Tensor, positions: Tensor, cache: Cache, rows: Tensor | None, prompts: PromptPositions | None
    ) -> Tensor:
        """As `Talker.step`, and with `prompts` a mixed batch. No row is in both parts."""
        queries = [self._queries(positions, cache, rows, together=False)]
        if prompts is None:
            return self._run(x, cache, queries)
        queries.append(self._queries(prompts.positions, cache, prompts.rows, together=True))
        return self._run(torch.cat((x, prompts.x)), cache, queries)[: len(x)]

    def prefill(self, prompts: PromptPositions, cache: Cache, span: int | None) -> None:
        """Of any rows; each position reads those before it, so `span` is ignored."""
        queries = self._queries(prompts.positions, cache, prompts.rows, together=True)
        self._run(prompts.x.clone(), cache, [queries])

    def _queries(self, positions: Tensor, cache: Cache, rows: Tensor | None, *, together: bool) -> Queries:
        kind, longest = (len(positions), together), cache.padding_position + 1
        if kind not in self._scratch:
            split = TOGETHER if together else None
            self._scratch[kind] = Scratch.empty(len(positions), longest, self.heads, positions.device, split)
        block_table = cache.block_table if rows is None else cache.block_table[rows]
        return Queries(positions, block_table, cache.padding_position, self._scratch[kind], together)

    def _run(self, x: Tensor, cache: Cache, queries: Sequence[Queries]) -> Tensor:
        for layer, keys, values in zip(self.layers, cache.keys, cache.values, strict=True):
            x = layer.run(x, partial(self._attend, layer, keys, values, queries))
        return rms_norm(x, self._norm)

    def _attend(
        self, layer: FusedLayer, keys: Tensor, values: Tensor, queries: Sequence[Queries], qkv: Tensor
    ) -> Tensor:
        out = qkv.new_empty(len(qkv), self.heads.queries * self.heads.dim)
        sizes = [len(group.positions) for group in queries]
        for group, its_qkv, its_out in zip(queries, torch.split(qkv, sizes), torch.split(out, sizes), strict=True):
            attend(layer.q_norm, layer.k_norm, self.heads, group, keys, values, its_qkv, its_out)
        return out


class FusedPredictor:
    """`Predictor.forward`."""

    def __init__(self, model: FrameModel) -> None:
        predictor = model.predictor
        self.layers = [FusedLayer(cast(TransformerLayer, layer)) for layer in predictor.layers]
        self._norm = predictor.norm
        self.heads = _heads(predictor, predictor.codebooks)
        self._lm_heads = [head.get_parameter("weight") for head in predictor.lm_head]
        self._embedding = joined(*predictor.codec_embedding)  # [15 * codes, H]
        self._starts = torch.arange(len(self._lm_heads), device=self._embedding.device) * len(self._lm_heads[0])
        self._projection = predictor.small_to_mtp_projection
        # The inputs of positions 2 and up for every code, projected ahead.
        with torch.inference_mode():
            self._inputs = [
                self._projection(embedding.get_parameter("weight")) for embedding in predictor.codec_embedding
            ]

    def step(self, state: PredictorState, hidden: Tensor, first: Tensor, choose: Choose) -> tuple[Tensor, Tensor]:
        rows = len(hidden)
        codes: list[Tensor] = []
        x = self._projection(torch.stack((hidden, first), dim=1).flatten(0, 1))
        for index, lm_head in enumerate(self._lm_heads):
            if index:
                x = F.embedding(codes[-1], self._inputs[index - 1])
            tokens, position = len(x) // rows, index + 1
            for layer, keys, values in zip(self.layers, state.cache.keys, state.cache.values, strict=True):
                norms = layer.q_norm, layer.k_norm
                x = layer.run(x, partial(attend_in_frame, *norms, self.heads, keys, values, tokens, position))
            last = x.view(rows, -1, x.shape[1])[:, -1].contiguous()
            codes.append(choose(linear(last, lm_head, norm=self._norm), index + 1))
        others = torch.stack(codes, dim=1)
        embedded = F.embedding(others + self._starts, self._embedding)
        return others, torch.cat((first[:, None], embedded), dim=1)


def _heads(transformer: Transformer, positions: int) -> Heads:
    shape, weight = transformer.shape, transformer.norm.weight
    cos, sin = transformer.rope(torch.arange(positions, device=weight.device)[None], weight.dtype)
    half = shape.head_dim // 2
    rope = torch.stack((cos[0, :, 0, :half], sin[0, :, 0, :half]), dim=1).contiguous()
    return Heads(shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim, shape.rms_norm_eps, rope)
