"""The codec decoder: the 16 codes of a frame in, its 80 ms of sound out.

* codes -> sum of codebook vectors -> conv -> transformer, window 72 -> upsampling x4 -> upsampling x480 -> samples
* causal: frame n is samples [1920 n, 1920 (n + 1)) and does not depend on frame n + 1
* exact: decoding frame by frame equals decoding the whole clip, because the state keeps all that a frame depends on
* a stream is a row; rows are paused and released by masks, so that a step is always the same work on the same tensors
* a whole clip and one frame of a stream run the same layers with a different `Past`: so a stream equals the clip

Parameters except codebooks are named as in the released checkpoints. Shapes: B clips or rows, T steps of the layer's
own rate, C channels.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate, pairwise
from operator import mul
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_tts.model.config import CodecConfig, TransformerConfig
from agent_tts.model.layers import MLP, Projections, RMSNorm, rope, rotate
from agent_tts.model.weights import Loadable

# Prefixes in speech_tokenizer/model.safetensors of what only encoding needs.
ENCODING = ("encoder.", "decoder.quantizer.rvq_first.input_proj.", "decoder.quantizer.rvq_rest.input_proj.")


class History(nn.Module):
    """The last `size` inputs of a convolution, each of `channels`; a frame adds `rate` more."""

    def __init__(self, channels: int, size: int, rate: int) -> None:
        super().__init__()
        self.channels = channels
        self.size = size
        self.rate = rate
        self.index = -1  # the index among the histories of a `Streamed` module, which sets it

    @property
    def frames(self) -> int:
        """Frames of a ring that holds a frame and what it needs of the past."""
        return 1 + -(-self.size // self.rate)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        return past.extend(self, x) if self.size else x


class CausalConv(nn.Module):
    """[B, C_in, T] -> [B, C_out, T / stride]; a frame is `rate` steps of the input."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, rate: int, stride: int = 1, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.history = History(inputs, (kernel - 1) * dilation + 1 - stride, rate)
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride, dilation=dilation, groups=groups)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        return self.conv(self.history(x, past))


class CausalUpsample(nn.Module):
    """A transposed convolution cut on the right: [B, C_in, T] -> [B, C_out, T * stride]; `rate` is that of the inputs.

    The history keeps inputs, not their part of outputs to come: fewer numbers, and the bias is added once.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, *, rate: int) -> None:
        super().__init__()
        if kernel % stride:
            raise ValueError(f"the kernel {kernel} is not a multiple of the stride {stride}")
        self.history = History(inputs, kernel // stride - 1, rate)
        self.stride = stride
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride=stride)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        out: Tensor = self.conv(self.history(x, past))
        first = self.history.size * self.stride  # outputs before it belong to the past
        return out[..., first : first + x.shape[-1] * self.stride]


class SnakeBeta(nn.Module):
    """x + sin(exp(alpha) x)^2 / exp(beta), by channel: [B, C, T] -> [B, C, T]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        alpha, beta = self.alpha.exp()[:, None], self.beta.exp()[:, None]
        return x + (1.0 / (beta + 1e-9)) * torch.sin(x * alpha).pow(2)


class ResidualUnit(nn.Module):
    """[B, C, T] -> [B, C, T]."""

    def __init__(self, channels: int, dilation: int, *, rate: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv(channels, channels, 7, rate=rate, dilation=dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv(channels, channels, 1, rate=rate)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        out: Tensor = self.conv2(self.act2(self.conv1(self.act1(x), past)), past)
        return x + out


class DecoderBlock(nn.Module):
    """[B, C_in, T] -> [B, C_out, T * stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, rate: int) -> None:
        super().__init__()
        upsample = CausalUpsample(inputs, outputs, 2 * stride, stride, rate=rate)
        units = [ResidualUnit(outputs, dilation, rate=rate * stride) for dilation in (1, 3, 9)]
        self.block = nn.ModuleList([SnakeBeta(inputs), upsample, *units])

    def forward(self, x: Tensor, past: Past) -> Tensor:
        snake, upsample, *units = self.block
        x = upsample(snake(x), past)
        for unit in units:
            x = unit(x, past)
        return x


class ConvNeXtBlock(nn.Module):
    """[B, C, T] -> [B, C, T]."""

    def __init__(self, channels: int, *, rate: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(channels, channels, 7, rate=rate, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, x: Tensor, past: Past) -> Tensor:
        hidden: Tensor = self.norm(self.dwconv(x, past).transpose(1, 2))
        hidden = self.gamma * self.pwconv2(F.gelu(self.pwconv1(hidden)))
        return x + hidden.transpose(1, 2)


class Upsampling(nn.ModuleList):
    """[B, C, T] -> [B, C, T * ratio]."""

    def __init__(self, channels: int, ratio: int, *, rate: int) -> None:
        upsample = CausalUpsample(channels, channels, ratio, ratio, rate=rate)
        super().__init__([upsample, ConvNeXtBlock(channels, rate=rate * ratio)])

    def forward(self, x: Tensor, past: Past) -> Tensor:
        upsample, block = self
        return block(upsample(x, past), past)


class LayerScale(nn.Module):
    """[..., C] -> [..., C]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((channels,), 0.01))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class Codebook(nn.Module):
    """Codes [B, T] -> vectors [B, T, D], or a slice of all codes: means, stored as a sum and a count."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.ones(size))
        self.embedding_sum = nn.Parameter(torch.empty(size, dim))

    def forward(self, codes: Tensor | slice) -> Tensor:
        return self.embedding_sum[codes] / self.cluster_usage[codes].clamp(min=1e-5)[..., None]


@dataclass(frozen=True, slots=True)
class CodecState:
    """The streams of all rows. The tensors are written in place, for captured steps."""

    # int64[rows]: frames decoded, which is the position of the next one.
    position: Tensor
    # [layers, rows, window, heads, head_dim], keys after rope: the frame at position p is in slot p % window. A slot
    # that its stream has not written, which `position` tells, holds any finite values.
    keys: Tensor
    values: Tensor
    # [rows, frames * rate, channels] for each `History` of the codec, likewise: input t is in slot t % (frames * rate).
    histories: tuple[Tensor, ...]

    @torch.inference_mode()
    def reset(self, rows: Tensor) -> None:
        """Puts rows, int64[n], back to the start of a stream."""
        self.position.index_fill_(0, rows, 0)

    @torch.inference_mode()
    def put(self, row: int, source: CodecState) -> None:
        """Copies a state of one row of the same codec into `row`."""
        self.position[row] = source.position[0]
        self.keys[:, row] = source.keys[:, 0]
        self.values[:, row] = source.values[:, 0]
        # Some twenty copies as one launch.
        torch._foreach_copy_([ring[row] for ring in self.histories], [ring[0] for ring in source.histories])


class NextFrame:
    """The past of one frame of the rows int64[B], or of all.

    A row that is not advanced stays as it was: it wrote only slots that its next frame writes before it reads them.
    """

    def __init__(self, state: CodecState, rows: Tensor | None = None) -> None:
        all_rows, window = state.keys.shape[1:3]
        slots = torch.arange(window, device=state.position.device)
        self._state = state
        self._all = rows is None
        # int64[B] each: row and slot of the frame's key and value.
        self._rows = torch.arange(all_rows, device=state.position.device) if rows is None else rows
        position = state.position[self._rows]
        self._slot = position % window
        self.positions = position[:, None]  # int64[B, 1], counted from the start of the stream
        # bool[B, 1, 1, window]: the slots that the stream has written, this frame's included.
        self._written = (slots <= self.positions)[:, None, None]

    def advance(self, run: Tensor) -> None:
        """The rows bool[B] have decoded their frame."""
        self._state.position[self._rows] = self.positions[:, 0] + run

    def extend(self, history: History, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C, size + T]: prepends the inputs of the history."""
        ring = self._state.histories[history.index]
        steps = torch.arange(-history.size, history.rate, device=x.device)
        times = self.positions * history.rate + steps  # [rows, size + T], counted from the start of the stream
        rows, slots = self._rows[:, None], times % ring.shape[1]
        ring[rows, slots[:, history.size :]] = x.transpose(1, 2)
        return ring[rows, slots].masked_fill(times[..., None] < 0, 0).transpose(1, 2)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Arguments and result [B, T, heads, head_dim]: a frame attends to the window that ends with it."""
        keys, values = self._state.keys[layer], self._state.values[layer]
        keys[self._rows, self._slot] = key[:, 0]
        values[self._rows, self._slot] = value[:, 0]
        if not self._all:
            keys, values = keys[self._rows], values[self._rows]
        return attention(query, keys, values, self._written)


class WholeClip:
    """The past of whole clips: silence."""

    def __init__(self, frames: int, window: int, device: torch.device) -> None:
        positions = torch.arange(frames, device=device)
        age = positions[:, None] - positions
        self.positions = positions[None]  # int64[1, T]
        self._seen = (age >= 0) & (age < window)  # bool[T, T]: the frames (columns) that a frame (row) looks at

    def extend(self, history: History, x: Tensor) -> Tensor:
        return F.pad(x, (history.size, 0))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(query, key, value, self._seen)


Past = NextFrame | WholeClip  # what precedes the inputs of one forward pass


def attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Queries [B, T, heads, head_dim] over keys and values [B, S, heads, head_dim], masked by bool[..., T, S].

    Without a mask, each step looks at all steps up to its own.
    """
    query, keys, values = (part.transpose(1, 2) for part in (query, keys, values))
    return F.scaled_dot_product_attention(query, keys, values, mask, is_causal=mask is None).transpose(1, 2)


class Quantizer(nn.Module):
    """Codes [B, T, K] -> [B, C, T]."""

    def __init__(self, codebooks: int, config: CodecConfig) -> None:
        super().__init__()
        dim = config.codebook_dim // 2
        self.codebooks = nn.ModuleList(Codebook(config.codebook_size, dim) for _ in range(codebooks))
        self.output_proj = nn.Conv1d(dim, config.codebook_dim, 1, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        vectors = [codebook(codes[..., index]) for index, codebook in enumerate(self.codebooks)]
        return self.output_proj(reduce(torch.add, vectors).transpose(1, 2))


class CodecTransformerLayer(nn.Module):
    """[B, T, C] -> [B, T, C], of decoder and encoder: as many key as query heads, no norm on either."""

    def __init__(self, shape: TransformerConfig, norm: Callable[[], Any], mlp: Any, *, bias: bool) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        self.self_attn = Projections(shape, bias=bias)
        self.self_attn_layer_scale, self.mlp_layer_scale = LayerScale(shape.hidden_size), LayerScale(shape.hidden_size)
        self.mlp = mlp

    def forward(self, x: Tensor, attend: Callable[..., Tensor], cos: Tensor, sin: Tensor) -> Tensor:
        """cos and sin [1 or B, T, 1, head_dim]; `attend` is that of a `Past` in this layer, or `attention`."""
        query, key, value = self.self_attn.heads(self.input_layernorm(x))
        mixed = attend(rotate(query, cos, sin), rotate(key, cos, sin), value)
        x = x + self.self_attn_layer_scale(self.self_attn.o_proj(mixed.flatten(2)))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


class CodecTransformer(nn.Module):
    """[B, T, latent] -> [B, T, latent]."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.shape = config
        self.input_proj = nn.Linear(config.latent_dim, config.hidden_size)
        norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(
            CodecTransformerLayer(config, norm, MLP(config), bias=config.attention_bias)
            for _ in range(config.num_hidden_layers)
        )
        self.norm = norm()
        self.output_proj = nn.Linear(config.hidden_size, config.latent_dim)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        cos, sin = rope(past.positions, self.shape, x.dtype)
        x = self.input_proj(x)
        for index, layer in enumerate(self.layers):
            x = layer(x, partial(past.attend, index), cos, sin)
        return self.output_proj(self.norm(x))


class Streamed(Loadable):
    """A module whose layers keep what they need of the past in a `CodecState`.

    Args:
        attention: layers, window, heads and head_dim of its keys and values; it may have no layer.
    """

    def __init__(self, attention: tuple[int, int, int, int] = (0, 1, 1, 1)) -> None:
        super().__init__()
        self._attention = attention
        # Those that look back, by their index in the state.
        self._histories: list[History] = []

    def number_histories(self) -> None:
        """To be called when all layers are there."""
        self._histories = [module for module in self.modules() if isinstance(module, History) and module.size]
        for index, history in enumerate(self._histories):
            history.index = index

    def init_state(self, rows: int, device: torch.device | str, dtype: torch.dtype) -> CodecState:
        """A state of `rows` streams at their start, in the dtype of the weights."""
        layers, *ring = self._attention
        rings = [(rows, history.frames * history.rate, history.channels) for history in self._histories]
        return CodecState(
            position=torch.zeros(rows, dtype=torch.int64, device=device),
            keys=torch.zeros(layers, rows, *ring, dtype=dtype, device=device),
            values=torch.zeros(layers, rows, *ring, dtype=dtype, device=device),
            histories=tuple(torch.zeros(ring, dtype=dtype, device=device) for ring in rings),
        )


class Codec(Streamed):
    """Decodes codes of many streams at once, a frame of each a step."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__((config.num_hidden_layers, config.sliding_window, config.num_attention_heads, config.head_dim))
        self.config = config
        # The first, semantic code has a projection of its own.
        first_code, others = Quantizer(1, config), Quantizer(config.num_quantizers - 1, config)
        self.quantizer = nn.ModuleDict({"rvq_first": first_code, "rvq_rest": others})
        self.pre_conv = CausalConv(config.codebook_dim, config.latent_dim, 3, rate=1)
        self.pre_transformer = CodecTransformer(config)
        latent = config.latent_dim
        # Steps a frame before and after each upsampling.
        *latent_rates, rate = accumulate(config.upsampling_ratios, mul, initial=1)
        *rates, samples = accumulate(config.upsample_rates, mul, initial=rate)
        self.upsample = nn.ModuleList(
            Upsampling(latent, ratio, rate=rate)
            for ratio, rate in zip(config.upsampling_ratios, latent_rates, strict=True)
        )
        widths = [config.decoder_dim >> level for level in range(len(config.upsample_rates) + 1)]
        blocks = [
            DecoderBlock(*io, stride, rate=rate)
            for io, stride, rate in zip(pairwise(widths), config.upsample_rates, rates, strict=True)
        ]
        first, last = CausalConv(latent, widths[0], 7, rate=rate), CausalConv(widths[-1], 1, 7, rate=samples)
        self.decoder = nn.ModuleList([first, *blocks, SnakeBeta(widths[-1]), last])
        self.number_histories()

    @torch.inference_mode()
    def step(self, state: CodecState, codes: Tensor, run: Tensor, rows: Tensor | None = None) -> Tensor:
        """One frame of the rows of `run`; the batch are the rows int64[B], or all.

        `codes` int64[B, 16] and `run` bool[B] give float32[B, 1920] within -1 and 1. The other rows stay unchanged and
        give zeros. A row that occurs twice must not run. Nothing waits for the device, and no shape depends on a value.
        """
        codes = codes.masked_fill(~run[:, None], 0)
        past = NextFrame(state, rows)
        pcm = self(codes[:, None], past)
        past.advance(run)
        return pcm.masked_fill(~run[:, None], 0)

    def forward(self, codes: Tensor, past: Past) -> Tensor:
        """int64[B, T, 16] after what is past -> float32[B, T * 1920]."""
        first_code, others = self.quantizer.values()
        x = self.pre_conv(first_code(codes[..., :1]) + others(codes[..., 1:]), past)
        x = self.pre_transformer(x.transpose(1, 2), past).transpose(1, 2)
        for upsampling in self.upsample:
            x = upsampling(x, past)
        first, *blocks, snake, last = self.decoder
        x = first(x, past)
        for block in blocks:
            x = block(x, past)
        samples: Tensor = last(snake(x), past)
        return samples.squeeze(1).clamp(-1, 1).float()

    def checkpoint_name(self, name: str) -> str:
        return "decoder." + re.sub(r"codebooks\.(\d+)", r"vq.layers.\1._codebook", name)
