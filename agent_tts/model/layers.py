"""The transformer that the talker and the code predictor are made of, over a cache with one row per request.

Letters: B rows, T positions of one call, S positions of the cache, H hidden size. Upstream's rounding points are kept:
norm statistics and rope angles are float32, everything else is in the dtype of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from agent_tts.model.config import TransformerConfig

BLOCK_SIZE = 32  # of the talker's cache: 2.6 s of speech


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values of all rows, in blocks of `size` positions: p is place p % size of block_table[row, p // size].

    The padding position is past what a row may use: what must not be kept (a paused row, the padding of a prompt) is
    written there. A query at position p reads positions 0..p, so it never reads the padding position, nor what a former
    owner of the block left behind.
    """

    keys: Tensor  # [layers, blocks, size, key/value heads, head_dim], rotated; uint8 is the bits of e4m3
    values: Tensor  # same shape
    block_table: Tensor  # int64[B, blocks of a row]
    contiguous: bool  # block r is row r, all of it

    @staticmethod
    def empty(
        shape: TransformerConfig, rows: int, positions: int, like: Tensor, dtype: torch.dtype | None = None
    ) -> Cache:
        """A block for each row, as long as the row, the padding position included."""
        block_table = torch.arange(rows, device=like.device)[:, None]
        return Cache._of(shape, block_table, rows, positions, dtype or like.dtype, contiguous=True)

    @staticmethod
    def paged(
        shape: TransformerConfig,
        rows: int,
        max_model_len: int,
        blocks: int,
        size: int,
        like: Tensor,
        dtype: torch.dtype | None = None,
    ) -> Cache:
        """`blocks` blocks of `size` positions, which rows of at least `max_model_len` are given and give back.

        Block 0 belongs to no row: it has the padding position, and stands for all blocks that a row has not been given.
        """
        block_table = torch.zeros(rows, -(-max_model_len // size) + 1, dtype=torch.int64, device=like.device)
        return Cache._of(shape, block_table, blocks, size, dtype or like.dtype, contiguous=False)

    @staticmethod
    def _of(
        shape: TransformerConfig, block_table: Tensor, blocks: int, size: int, dtype: torch.dtype, *, contiguous: bool
    ) -> Cache:
        extent = (shape.num_hidden_layers, blocks, size, shape.num_key_value_heads, shape.head_dim)
        keys, values = (torch.zeros(extent, dtype=dtype, device=block_table.device) for _ in range(2))
        return Cache(keys, values, block_table, contiguous)

    @property
    def block_size(self) -> int:
        return self.keys.shape[2]

    @property
    def padding_position(self) -> int:
        size = self.block_size
        return size - 1 if self.contiguous else (self.block_table.shape[1] - 1) * size

    def first(self, rows: int) -> Cache:
        """The first rows, over the same blocks."""
        return replace(self, block_table=self.block_table[:rows])

    @torch.inference_mode()
    def read(self, row: int, positions: int) -> tuple[Tensor, Tensor]:
        """A copy of the first positions of a row: keys and values [layers, T, key/value heads, head_dim]."""
        at = torch.arange(positions, device=self.block_table.device)
        blocks, places = self.block_table[row, at // self.block_size], at % self.block_size
        return self.keys[:, blocks, places], self.values[:, blocks, places]

    def places(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where `write` puts positions that are counted through all blocks: int64[T] -> int64[layers * T]."""
        layers, blocks, size = self.keys.shape[:3]
        return (np.arange(layers)[:, None] * (blocks * size) + positions).ravel()

    def write(self, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Puts [layers, T, key/value heads, head_dim] at `places`.

        One index for all dimensions before the heads: with one for each, torch would launch a kernel for every 2 GB.
        """
        self.keys.flatten(0, 2).index_copy_(0, places, keys.flatten(0, 1))
        self.values.flatten(0, 2).index_copy_(0, places, values.flatten(0, 1))


@dataclass(frozen=True, slots=True)
class Window:
    """Places of the tokens of one call in the cache, and what each may read: the same for all layers."""

    blocks: Tensor  # int64[B, T]: the block that a token is in
    places: Tensor  # int64[B, T]: its place there
    read: Tensor | None  # int64[B, blocks of a row]: what the rows read; None is the first B blocks, in place
    span: int | None  # how many leading positions the call reads; None reads the call itself, of rows at their start
    cos: Tensor  # [B, T, 1, head_dim]
    sin: Tensor  # [B, T, 1, head_dim]
    mask: Tensor  # bool[B, 1, T, span]

    def seen(self, layer: Tensor, own: Tensor) -> Tensor:
        """What it reads of a layer [blocks, size, heads, head_dim], its `own` included: [B, span, heads, head_dim]."""
        if self.span is None:
            return own
        rows = layer[: len(self.blocks)] if self.read is None else layer[self.read].flatten(1, 2)
        return rows[:, : self.span]

    def first(self, rows: int) -> Window:
        """The first rows: a view."""
        views = {name: getattr(self, name)[:rows] for name in ("blocks", "places", "cos", "sin", "mask")}
        return replace(self, read=None if self.read is None else self.read[:rows], **views)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis: float32 statistics, and the scale after rounding back."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rope(positions: Tensor, shape: TransformerConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rotary position embedding: int64[B, T] -> cosine and sine [B, T, 1, head_dim], float32 rounded to `dtype`.

    The talker's three interleaved axes carry equal positions, so one is enough.
    """
    steps = torch.arange(0, shape.head_dim, 2, device=positions.device, dtype=torch.float32)
    angles = positions[..., None].float() * (1.0 / shape.rope_theta ** (steps / shape.head_dim))
    angles = torch.cat((angles, angles), dim=-1)[:, :, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns [B, T, heads, head_dim]; the pairs are (i, i + head_dim / 2)."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class Projections(nn.Module):
    def __init__(self, shape: TransformerConfig, *, bias: bool) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        queries, pairs = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, queries, bias=bias)
        self.k_proj = nn.Linear(shape.hidden_size, pairs, bias=bias)
        self.v_proj = nn.Linear(shape.hidden_size, pairs, bias=bias)
        self.o_proj = nn.Linear(queries, shape.hidden_size, bias=bias)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, H] -> queries, keys and values [B, T, heads, head_dim]."""
        heads = (*x.shape[:2], -1, self.head_dim)
        return self.q_proj(x).view(heads), self.k_proj(x).view(heads), self.v_proj(x).view(heads)


class Attention(Projections):
    """Grouped-query attention with a norm on each head of q and k before the rotation."""

    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__(shape, bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, window: Window) -> Tensor:
        """x [B, T, H]; keys and values [blocks, size, heads, head_dim] are one layer of the cache, written in place."""
        query, key, value = self.heads(x)
        query = rotate(self.q_norm(query), window.cos, window.sin)
        key = rotate(self.k_norm(key), window.cos, window.sin)
        keys[window.blocks, window.places] = key
        values[window.blocks, window.places] = value
        out = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            window.seen(keys, key).transpose(1, 2),
            window.seen(values, value).transpose(1, 2),
            attn_mask=window.mask,
            enable_gqa=True,
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Gated feed-forward: down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class TransformerLayer(nn.Module):
    """One pre-norm layer: attention, then the feed-forward, each added to its input."""

    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, window: Window) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), keys, values, window)
        return x + self.mlp(self.post_attention_layernorm(x))


class Transformer(nn.Module):
    """Layers and the final norm. Subclasses add embeddings; parameters have the names of the checkpoint."""

    def __init__(self, shape: TransformerConfig) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(TransformerLayer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def window(self, positions: Tensor, span: int | None, cache: Cache, rows: Tensor | None = None) -> Window:
        """The window of int64[B, T] positions of all rows of a cache, or of the rows int64[B].

        `span` None is for rows at positions 0 to T - 1, or at the padding position.
        """
        block_table = cache.block_table if rows is None else cache.block_table[rows]
        size, seen = cache.block_size, positions.shape[1] if span is None else span
        read = None if span is None or (rows is None and cache.contiguous) else block_table[:, : -(-span // size)]
        mask = torch.arange(seen, device=positions.device) <= positions[..., None]
        cos, sin = rope(positions, self.shape, cache.keys.dtype)
        return Window(block_table.gather(1, positions // size), positions % size, read, span, cos, sin, mask[:, None])

    def run(self, x: Tensor, cache: Cache, window: Window) -> Tensor:
        """x [B, T, H] -> hidden state after the final norm [B, T, H]; writes the cache at the window's positions."""
        for index, layer in enumerate(self.layers):
            x = layer(x, cache.keys[index], cache.values[index], window)
        return self.norm(x)
