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

from agent_tts.model.adapters import PARALLEL, AdapterBank, LowRank
from agent_tts.model.frame import CONTROL_CODES, Frame, FrameModel, StepOps
from agent_tts.model.frame_state import FrameState
from agent_tts.model.kernels import frame as kernels
from agent_tts.model.kernels.attention import TOGETHER, Heads, Queries, Scratch, attend, attend_in_frame
from agent_tts.model.kernels.launch import has_warpgroups
from agent_tts.model.kernels.linear import Hidden, linear, linear_before, rms_norm
from agent_tts.model.kernels.low_rank import add_low_rank
from agent_tts.model.kernels.sampling import draw, draw_following
from agent_tts.model.kernels.tiles import VECTOR_ROWS
from agent_tts.model.layers import Cache, RMSNorm, Transformer, TransformerLayer, rope
from agent_tts.model.quantised import E4M3, INTERLEAVED, NOTHING, EightBits, Quantised
from agent_tts.model.talker import Choose, PredictorState, PromptPositions

LayOut = Callable[..., Tensor | Quantised]  # the weights of modules as one matrix

_PROJECTED = 4_096  # tokens at a time
WHOLE = 128  # outputs: a multiple of the widths of tiles


def fuse(model: FrameModel, adapters: AdapterBank | None = None, eight: EightBits = NOTHING) -> None:
    """Makes a loaded model run on the kernels: on a GPU, in bfloat16, and in e4m3 what `eight` says.

    With the adapters of its rows, if any.
    """
    project_text(model)
    lay_out = quantised if eight.weights else joined
    talker, predictor = FusedTalker(model, adapters, lay_out), FusedPredictor(model, lay_out)
    step = FusedStep(model, talker, predictor).step
    dtype = torch.uint8 if eight.cache else None
    model.ops = StepOps(
        talker.step, talker.prefill, predictor.step, draw, mixes=True, cache_dtype=dtype, step=step,
    )  # fmt: skip


@torch.inference_mode()
def project_text(model: FrameModel) -> None:
    """Replaces the embedding of text by its projection, computed once for each token: a look-up has no product."""
    embedding, project = model.talker.text_embedding, model.talker.text_projection
    weight = embedding.get_parameter("weight")
    table = weight.new_empty(len(weight), model.config.talker.hidden_size)
    for tokens, sides in zip(torch.split(weight, _PROJECTED), torch.split(table, _PROJECTED), strict=True):
        sides.copy_(project(tokens))
    embedding.weight = nn.Parameter(table, requires_grad=False)
    model.talker.text_projection = nn.Identity()


class FusedStep:
    """`FrameModel.step` that draws its codes: the state of the rows is read and written in place."""

    def __init__(self, model: FrameModel, talker: FusedTalker, predictor: FusedPredictor) -> None:
        self._talker, self._predictor = talker, predictor
        self._text = model.talker.text_embedding.get_parameter("weight")  # [tokens, H]: the text side
        self._head = model.talker.codec_head.get_parameter("weight")
        self._embedding = model.talker.codec_embedding.get_parameter("weight")
        self._pad, self._end = model.config.tts_pad_token_id, model.config.talker.codec_eos_token_id
        self._control = model.config.talker.vocab_size - CONTROL_CODES
        self._codebooks = model.config.talker.num_code_groups

    def step(self, state: FrameState, run: Tensor, rows: Tensor | None, prompts: PromptPositions | None) -> Frame:
        begun = kernels.begin(state, run, rows, self._text, self._pad)
        hidden = self._talker.mixed(begun.x, begun.positions, begun.block_table, state.cache, rows, prompts)
        codes = begun.positions.new_empty(len(run), self._codebooks)
        predictor, how = self._predictor, state.sampling.predictor
        x, finite = kernels.draw_first(
            state, begun, rows, linear(hidden, self._head), hidden, predictor.enter(hidden), predictor.firsts, codes,
            self._end, self._control,
        )  # fmt: skip

        # Of fewer rows, products have the norm of their inputs.
        norm = predictor.layers[0].input_norm if len(run) > VECTOR_ROWS else None

        def follow(logits: Tensor, codebook: int, table: Tensor | None) -> Hidden:
            seed = state.sampling.seed
            return draw_following(logits, how, seed, state.frame, codebook, rows, codes, codebook, table, norm)

        predictor.complete(state.scratch.first(len(run)), x, follow)
        spoke, ended = kernels.end(state, begun, rows, codes, self._embedding, predictor.embedding, self._end)
        return Frame(codes, spoke, finite, ended, begun.starved, begun.full)


# It holds for each of a layer's four products `low_rank.add_low_rank` with the adapters of the rows.
Adapted = Sequence[Callable[..., Hidden]]


class FusedLayer:
    """The weights of a `layers.TransformerLayer`, concatenated, with the low-rank matrices of its adapters, if any."""

    def __init__(
        self, layer: TransformerLayer, lay_out: LayOut, lows: list[LowRank] | None = None, *, cached: bool = False
    ) -> None:
        attention = layer.self_attn
        self._cached = cached  # its output matrix, in the second-level cache
        self.input_norm, self.mlp_norm = layer.input_layernorm, layer.post_attention_layernorm
        self.q_norm, self.k_norm = attention.q_norm.weight, attention.k_norm.weight
        parallel = [[layer.get_submodule(name) for name in names] for names in PARALLEL]
        self._lows = lows
        if lows is None or lay_out is not joined:
            matrices = [lay_out(*modules) for modules in parallel]
        else:
            matrices = [joined_above(lows, place, *modules) for place, modules in enumerate(parallel)]
        self.qkv, self.out, self.gate_up, self.down = matrices

    def run(
        self,
        x: Hidden,
        attend: Callable[[Tensor], Tensor],
        norm: RMSNorm,
        adapted: Adapted | None = None,
        *,
        first: bool = False,
    ) -> Hidden:
        """[M, H] -> [M, H]; `attend` maps queries, keys and values to the attention's result, and `norm` follows.

        `first`: the kernel before it writes what `attend` reads ahead.
        """
        if adapted is not None:
            return self._run_adapted(x, attend, norm, adapted)
        mixed = attend(linear(x, self.qkv, norm=self.input_norm, early=not first))
        x = linear_before(mixed, self.out, x, self.mlp_norm, cached=self._cached)
        hidden = linear(x, self.gate_up, norm=self.mlp_norm, gated=True)
        return linear_before(hidden, self.down, x, norm)

    def _run_adapted(self, x: Hidden, attend: Callable[[Tensor], Tensor], norm: RMSNorm, adapted: Adapted) -> Hidden:
        """The same, where adapters add to each product before what follows it."""
        qkv, out, gate_up, down = adapted
        mixed = attend(qkv(*self._products(0, x, self.qkv, self.input_norm)).x)
        x = out(*self._products(1, mixed, self.out), residual=x.x, norm=self.mlp_norm)
        hidden = gate_up(*self._products(2, x, self.gate_up, self.mlp_norm), gated=True)
        return down(*self._products(3, hidden.x, self.down), residual=x.x, norm=norm)

    def _products(
        self, place: int, x: Tensor | Hidden, matrix: Tensor | Quantised, norm: RMSNorm | None = None
    ) -> tuple[Tensor, Tensor]:
        """With a matrix, and with the low-rank ones of its adapters."""
        assert self._lows is not None
        product = linear(x, matrix, norm=norm)
        if isinstance(matrix, Quantised):
            return product, linear(x, self._lows[place].down, norm=norm)
        return product, product[:, len(self._lows[place].up) :]


def following(layers: Sequence[FusedLayer], last: RMSNorm) -> list[RMSNorm]:
    return [*(layer.input_norm for layer in layers[1:]), last]


def joined(*modules: nn.Module) -> Tensor:
    """The weights of layers or embeddings of equal width as one [sum of lengths, width], which they become views of."""
    whole = torch.cat([module.get_parameter("weight").detach() for module in modules])
    _share(whole, modules)
    return whole


def joined_above(lows: list[LowRank], place: int, *modules: nn.Module) -> Tensor:
    """As `joined`, with what adapters have at this place below it, up to a whole tile; the list then has a view."""
    weights = [module.get_parameter("weight").detach() for module in modules]
    size, down = sum(map(len, weights)), lows[place].down
    padding = down.new_zeros(-(size + len(down)) % WHOLE, down.shape[1])
    whole = torch.cat([*weights, down, padding])
    _share(whole[:size], modules)
    lows[place] = lows[place]._replace(down=whole[size : size + len(down)])
    return whole


def quantised(*modules: nn.Module) -> Quantised:
    """As `joined`, of linear layers, which then hold the `values` and cannot run."""
    whole = Quantised.of(torch.cat([module.get_parameter("weight").detach() for module in modules]))
    if has_warpgroups(whole.values.device) and whole.values.shape[1] % INTERLEAVED == 0:
        whole = whole.interleaved()
    _share(whole.values, modules)
    return whole


def _share(whole: Tensor, modules: Sequence[nn.Module]) -> None:
    sizes = [len(module.get_parameter("weight")) for module in modules]
    for module, part in zip(modules, torch.split(whole, sizes), strict=True):
        module.weight = nn.Parameter(part, requires_grad=False)


class FusedTalker:
    """`Talker.step` and `Talker.prefill`, one after the other or both at once."""

    def __init__(self, model: FrameModel, adapters: AdapterBank | None = None, lay_out: LayOut = joined) -> None:
        talker = model.talker
        self._adapters = adapters
        lows = adapters.layers if adapters is not None else [None] * len(talker.layers)
        self.layers = [
            FusedLayer(cast(TransformerLayer, layer), lay_out, its)
            for layer, its in zip(talker.layers, lows, strict=True)
        ]
        self._norm = talker.norm
        self.heads = _heads(talker, model.config.talker.max_position_embeddings)
        # They are kept by the number of positions, and by whether several may belong to one row.
        self._scratch: dict[tuple[int, bool], Scratch] = {}

    def step(
        self, x: Tensor, positions: Tensor, cache: Cache, rows: Tensor | None, prompts: PromptPositions | None
    ) -> Tensor:
        """As `Talker.step`, and with `prompts` a mixed batch. No row is in both parts."""
        block_table = cache.block_table if rows is None else cache.block_table[rows]
        return self.mixed(x, positions, block_table, cache, rows, prompts)

    def mixed(
        self,
        x: Tensor,
        positions: Tensor,
        block_table: Tensor,
        cache: Cache,
        rows: Tensor | None,
        prompts: PromptPositions | None,
    ) -> Tensor:
        """The same, with the block table of the rows."""
        queries = [self._queries(positions, block_table, cache, together=False)]
        if prompts is None:
            return self._run(x, cache, queries, rows)
        queries.append(self._queries(prompts.positions, cache.block_table[prompts.rows], cache, together=True))
        if self._adapters is not None:
            everyone = torch.arange(len(x), device=x.device) if rows is None else rows
            rows = torch.cat((everyone, prompts.rows))
        return self._run(torch.cat((x, prompts.x)), cache, queries, rows)[: len(x)]

    def prefill(self, prompts: PromptPositions, cache: Cache, span: int | None) -> None:
        """Of any rows; each position reads those before it, so `span` is ignored."""
        queries = self._queries(prompts.positions, cache.block_table[prompts.rows], cache, together=True)
        self._run(prompts.x.clone(), cache, [queries], prompts.rows)

    def _queries(self, positions: Tensor, block_table: Tensor, cache: Cache, *, together: bool) -> Queries:
        kind, longest = (len(positions), together), cache.padding_position + 1
        if kind not in self._scratch:
            split = TOGETHER if together else None
            self._scratch[kind] = Scratch.empty(len(positions), longest, self.heads, positions.device, split)
        return Queries(positions, block_table, cache.padding_position, self._scratch[kind], together)

    def _run(self, x: Tensor, cache: Cache, queries: Sequence[Queries], rows: Tensor | None) -> Tensor:
        adapted = self._adapted(rows)
        both = (part.view(E4M3) if part.dtype == torch.uint8 else part for part in (cache.keys, cache.values))
        hidden, norms = Hidden(x), following(self.layers, self._norm)
        for layer, keys, values, norm, its in zip(self.layers, *both, norms, adapted, strict=True):
            attending = partial(self._attend, layer, keys, values, queries)
            hidden = layer.run(hidden, attending, norm, its, first=layer is self.layers[0])
        return rms_norm(hidden.x, self._norm)

    def _adapted(self, rows: Tensor | None) -> Sequence[Adapted | None]:
        """What adapters add in each layer to the products of these rows; None is all."""
        if self._adapters is None:
            return [None] * len(self.layers)
        rank, places = self._adapters.rank, self._adapters.places
        places = places if rows is None else places[rows]
        return [
            [partial(add_low_rank, low=low, rank=rank, places=places) for low in several]
            for several in self._adapters.layers
        ]

    def _attend(
        self, layer: FusedLayer, keys: Tensor, values: Tensor, queries: Sequence[Queries], qkv: Tensor
    ) -> Tensor:
        out = qkv.new_empty(len(qkv), self.heads.queries * self.heads.dim)
        sizes = [len(group.positions) for group in queries]
        for group, its_qkv, its_out in zip(queries, torch.split(qkv, sizes), torch.split(out, sizes), strict=True):
            attend(layer.q_norm, layer.k_norm, self.heads, group, keys, values, its_qkv, its_out)
        return out


class FusedPredictor:
    def __init__(self, model: FrameModel, lay_out: LayOut) -> None:
        predictor = model.predictor
        # A frame reads all weights 15 times: the output matrices, 21 MB of 157, fit the second-level cache.
        self.layers = [FusedLayer(cast(TransformerLayer, layer), lay_out, cached=True) for layer in predictor.layers]
        self._norm = predictor.norm
        self.heads = _heads(predictor, predictor.codebooks)
        self._lm_heads = [head.get_parameter("weight") for head in predictor.lm_head]
        self.embedding = joined(*predictor.codec_embedding)  # [15 * codes, H]
        self._projection = predictor.small_to_mtp_projection
        # The inputs behind the hidden state for every code, projected ahead.
        with torch.inference_mode():
            self.firsts, *self.inputs = (
                self._projection(embedding.get_parameter("weight"))
                for embedding in (model.talker.codec_embedding, *predictor.codec_embedding)
            )

    def enter(self, hidden: Tensor) -> Tensor:
        """The talker's hidden state [B, H] as an input of the predictor, [B, W]."""
        if isinstance(self._projection, nn.Linear):
            return linear(hidden, self._projection.weight, bias=self._projection.bias)
        return hidden

    def complete(
        self, state: PredictorState, x: Tensor, follow: Callable[[Tensor, int, Tensor | None], Hidden]
    ) -> None:
        """Draws all codes of a frame but the first, given the inputs [2 B, W] of hidden state and first code.

        `follow` draws from the logits [B, V] of a codebook and gives the row of the table [V, W] at each code: the next
        input. There is no table behind the last code.
        """
        rows, hidden = len(x) // 2, Hidden(x)
        for index, lm_head in enumerate(self._lm_heads):
            tokens, position = len(hidden.x) // rows, index + 1
            norms = following(self.layers, self._norm)
            for layer, keys, values, norm in zip(self.layers, state.cache.keys, state.cache.values, norms, strict=True):
                q_norm, k_norm, heads = layer.q_norm, layer.k_norm, self.heads
                attending = partial(attend_in_frame, q_norm, k_norm, heads, keys, values, tokens, position)
                hidden = layer.run(hidden, attending, norm)
            table = self.inputs[index] if position < len(self._lm_heads) else None
            hidden = follow(linear(hidden.last(rows), lm_head, norm=self._norm), position, table)

    def step(self, state: PredictorState, hidden: Tensor, first: Tensor, choose: Choose) -> tuple[Tensor, Tensor]:
        """`Predictor.forward`, for codes that are not drawn."""
        codes: list[Tensor] = []

        def follow(logits: Tensor, codebook: int, table: Tensor | None) -> Hidden:
            codes.append(choose(logits, codebook))
            return Hidden(logits if table is None else F.embedding(codes[-1], table))

        self.complete(state, torch.cat((self.enter(hidden), self._projection(first))), follow)
        others = torch.stack(codes, dim=1)
        starts = torch.arange(len(codes), device=others.device) * len(self._lm_heads[0])
        embedded = F.embedding(others + starts, self.embedding)
        return others, torch.cat((first[:, None], embedded), dim=1)


def _heads(transformer: Transformer, positions: int) -> Heads:
    shape, weight = transformer.shape, transformer.norm.weight
    cos, sin = rope(torch.arange(positions, device=weight.device)[None], shape, weight.dtype)
    half = shape.head_dim // 2
    turns = torch.stack((cos[0, :, 0, :half], sin[0, :, 0, :half]), dim=1).contiguous()
    return Heads(shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim, shape.rms_norm_eps, turns)
