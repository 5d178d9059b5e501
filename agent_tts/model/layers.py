"""The transformer that the talker and the code predictor are made of, over a cache with one row per request.

Letters: B rows, T positions of one call, S positions of the cache, H hidden size. Upstream's rounding points are kept:
norm statistics and rope angles are float32, everything else is in the dtype of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TransformerShape(Protocol):
    """What a transformer has to know of its configuration."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def rope_theta(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values of all rows.

    The last position is the sink: what has to be computed but must not be kept (a paused row, the padding of a
    prompt) is written there. A query at position p reads positions 0..p, so nothing that is used ever reads the sink,
    or what a former owner of the row left behind.
    """

    keys: Tensor  # [layers, B, S, key/value heads, head_dim], rotated
    values: Tensor  # same shape

    @staticmethod
    def empty(shape: TransformerShape, rows: int, positions: int, device: torch.device, dtype: torch.dtype) -> Cache:
        size = (shape.num_hidden_layers, rows, positions, shape.num_key_value_heads, shape.head_dim)
        return Cache(torch.zeros(size, device=device, dtype=dtype), torch.zeros(size, device=device, dtype=dtype))

    @property
    def sink(self) -> int:
        return self.keys.shape[2] - 1

    @property
    def table(self) -> Tensor:
        """int64[B, 1]: the page of each row, which holds all of it."""
        return torch.arange(self.keys.shape[1], device=self.keys.device)[:, None]

    def first(self, rows: int) -> Cache:
        """The first rows: a view."""
        return Cache(self.keys[:, :rows], self.values[:, :rows])


@dataclass(frozen=True, slots=True)
class Window:
    """Where the tokens of one call stand in the cache, and what each may read: the same for all layers."""

    rows: Tensor  # int64[B, 1]: row of the cache
    whole: bool  # the rows are all rows of the cache, in order
    positions: Tensor  # int64[B, T]
    span: int  # how many leading positions of the cache the call reads
    cos: Tensor  # [B, T, 1, head_dim]
    sin: Tensor  # [B, T, 1, head_dim]
    mask: Tensor  # bool[B, 1, T, span]

    def first(self, rows: int) -> Window:
        """The first rows: a view."""
        return replace(
            self,
            rows=self.rows[:rows],
            positions=self.positions[:rows],
            cos=self.cos[:rows],
            sin=self.sin[:rows],
            mask=self.mask[:rows],
        )


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


class Rope(nn.Module):
    """Rotary position embedding. The talker's three interleaved axes carry equal positions, so one is enough."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.theta = theta

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """positions int64[B, T] -> cosine and sine [B, T, 1, head_dim], computed in float32, rounded to `dtype`."""
        # Not a buffer: casting the module to bfloat16 would round the frequencies.
        steps = torch.arange(0, self.head_dim, 2, device=positions.device, dtype=torch.float32)
        angles = positions[..., None].float() * (1.0 / self.theta ** (steps / self.head_dim))
        angles = torch.cat((angles, angles), dim=-1)[:, :, None]
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns [B, T, heads, head_dim]; the pairs are (i, i + head_dim / 2)."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class Attention(nn.Module):
    """Grouped-query attention with a norm on each head of q and k before the rotation."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        queries, pairs = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, pairs, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, pairs, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden_size, bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, window: Window) -> Tensor:
        """x [B, T, H]; keys and values [rows, S, heads, head_dim] are one layer of the cache, written in place."""
        heads = (*x.shape[:2], -1, self.head_dim)
        query = rotate(self.q_norm(self.q_proj(x).view(heads)), window.cos, window.sin)
        key = rotate(self.k_norm(self.k_proj(x).view(heads)), window.cos, window.sin)
        keys[window.rows, window.positions] = key
        values[window.rows, window.positions] = self.v_proj(x).view(heads)
        if not window.whole:
            keys, values = keys[window.rows[:, 0]], values[window.rows[:, 0]]
        out = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            keys[:, : window.span].transpose(1, 2),
            values[:, : window.span].transpose(1, 2),
            attn_mask=window.mask,
            enable_gqa=True,
        )
        projected: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return projected


class MLP(nn.Module):
    """Gated feed-forward: down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One pre-norm layer: attention, then the feed-forward, each added to its input."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, window: Window) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), keys, values, window)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Transformer(nn.Module):
    """Layers and the final norm. Used by subclassing, so that parameters carry the names of the checkpoint."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.rope = Rope(shape.head_dim, shape.rope_theta)

    def window(self, positions: Tensor, span: int, dtype: torch.dtype, rows: Tensor | None = None) -> Window:
        """The window of int64[B, T] positions, over all rows of the cache or over the rows int64[B].

        All rows are read in place; a choice of rows is copied out first, which is for prompts and not for steps.
        """
        device = positions.device
        index = torch.arange(len(positions), device=device) if rows is None else rows
        mask = torch.arange(span, device=device) <= positions[..., None]
        cos, sin = self.rope(positions, dtype)
        return Window(index[:, None], rows is None, positions, span, cos, sin, mask[:, None])

    def run(self, x: Tensor, cache: Cache, window: Window) -> Tensor:
        """x [B, T, H] -> hidden state after the final norm [B, T, H]; writes the cache at the window's positions."""
        for index, layer in enumerate(self.layers):
            x = layer(x, cache.keys[index], cache.values[index], window)
        hidden: Tensor = self.norm(x)
        return hidden
