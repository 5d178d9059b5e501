"""The layers of the codec decoder, all causal; parameters except codebooks are named as in the released checkpoints.

A whole clip and one frame of a stream run the same layers with a different `Past`: so a stream equals the clip.

Shapes: B clips or rows, T steps of the layer's own rate, C channels.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_tts.model.config import CodecConfig
from agent_tts.model.layers import Projections, rotate


class Past(Protocol):
    """What precedes the inputs of one forward pass."""

    # int64[1 or B, T]: the positions of the frames, counted from the start of the clip or stream.
    positions: Tensor

    def extend(self, history: History, x: Tensor) -> Tensor:
        """[B, C, T] -> [B, C, size + T]: prepends the inputs of the history."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Arguments and result [B, T, heads, head_dim]: a frame attends to the window that ends with it."""


class History(nn.Module):
    """The last `size` inputs of a convolution, each of `channels`; a frame adds `rate` more."""

    def __init__(self, channels: int, size: int, rate: int) -> None:
        super().__init__()
        self.channels = channels
        self.size = size
        self.rate = rate
        self.index = -1  # the index among the histories of the codec, which sets it

    @property
    def frames(self) -> int:
        """Frames of a ring that holds a frame and what it needs of the past."""
        return 1 + -(-self.size // self.rate)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        return past.extend(self, x) if self.size else x


class CausalConv(nn.Module):
    """[B, C_in, T] -> [B, C_out, T]; a frame is `rate` steps."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, rate: int, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.history = History(inputs, (kernel - 1) * dilation, rate)
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, groups=groups)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        out: Tensor = self.conv(self.history(x, past))
        return out


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
        out: Tensor = block(upsample(x, past), past)
        return out


class LayerScale(nn.Module):
    """[..., C] -> [..., C]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((channels,), 0.01))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class CodecAttention(Projections):
    """[B, T, C] -> [B, T, C]: as many key as query heads, no norm on either."""

    def __init__(self, layer: int, config: CodecConfig) -> None:
        super().__init__(config, bias=config.attention_bias)
        self.layer = layer

    def forward(self, x: Tensor, past: Past, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, T, C]; cos and sin [1 or B, T, 1, head_dim]."""
        query, key, value = self.heads(x)
        mixed = past.attend(self.layer, rotate(query, cos, sin), rotate(key, cos, sin), value)
        out: Tensor = self.o_proj(mixed.flatten(2))
        return out


class Codebook(nn.Module):
    """Codes [B, T] -> vectors [B, T, D]: means, stored as a sum and a count."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.ones(size))
        self.embedding_sum = nn.Parameter(torch.empty(size, dim))

    def forward(self, codes: Tensor) -> Tensor:
        return self.embedding_sum[codes] / self.cluster_usage[codes].clamp(min=1e-5)[..., None]
