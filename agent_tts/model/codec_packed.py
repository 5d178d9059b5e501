"""Convolutions and linear layers packed for the kernels of the codec step, and how each is cut into tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
import triton
from torch import Tensor, nn

from agent_tts.model import codec_kernels as kernels
from agent_tts.model.codec_layers import CausalConv, CausalUpsample, ResidualUnit, SnakeBeta
from agent_tts.model.kernels.launch import launch
from agent_tts.model.layers import RMSNorm


class ConvTile(NamedTuple):
    """What one program of a matrix product computes, and how."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


# A unit of fewer steps is quicker in two kernels, and a tile of more channels does not fit the registers.
FUSED_STEPS, FUSED_CHANNELS = 8192, 128


def conv_tile(m: int, n: int, channels: int) -> ConvTile:
    """The tile for [m, taps * channels] x [taps * channels, n], as measured on an H200."""
    if m * n < 1 << 17:
        tile = ConvTile(16, 32, 128, 4, 5)
    elif m * n < 1 << 19 and not (n >= 2048 and channels <= 512):  # wide and shallow
        tile = ConvTile(64, 32, 128, 4, 4)
    elif m * n < 1 << 20:
        tile = ConvTile(64, 64, 64, 4, 5)
    elif m * n < 1 << 21:
        tile = ConvTile(64, 256, 64, 8, 4)
    elif n >= 512:
        tile = ConvTile(128, 256, 64, 8, 4)
    elif n % 128 == 0:
        tile = ConvTile(256, 128, 64, 8, 3)
    else:
        tile = ConvTile(128, 64, 64, 4, 4)
    # A step of the sum has channels of one tap alone.
    return tile._replace(n=min(tile.n, triton.next_power_of_2(n)), k=min(tile.k, channels & -channels))


def fused_tile(m: int, channels: int) -> ConvTile | None:
    """The tile for both convolutions of a residual unit in one kernel, where that pays: it has all channels."""
    if m < FUSED_STEPS or channels > FUSED_CHANNELS:
        return None
    return ConvTile(64, triton.next_power_of_2(channels), min(64, channels & -channels), 4, 4)


class PackedSnake(NamedTuple):
    """SnakeBeta as factor and reciprocal height, float32, for each column of a product."""

    alpha: Tensor
    beta: Tensor

    @classmethod
    def of(cls, snake: nn.Module, repeat: int = 1) -> PackedSnake:
        assert isinstance(snake, SnakeBeta)
        alpha, beta = snake.alpha.float().exp(), snake.beta.float().exp()
        return cls(alpha.repeat(repeat), (1.0 / (beta + 1e-9)).repeat(repeat))


class Streams(NamedTuple):
    """Whose frame a batch is."""

    rows: Tensor | None  # int64[B]: the row of each stream in the state; None is its own number
    position: Tensor  # int64[B]: of the frame

    def of(self, x: Tensor, rate: int) -> Tensor | None:
        """Whose rows a tensor of `rate` steps a frame has: a ring, which holds more than the frame, has the state's."""
        return self.rows if x.shape[1] > rate else None


@dataclass(frozen=True, slots=True, eq=False)
class PackedConv:
    """A causal convolution or linear layer, packed: `rate` steps a frame of `channels`."""

    weight: Tensor  # [taps * channels, N], twice as wide if gated
    bias: Tensor | None = None  # [N], as the scale
    rate: int = 1
    taps: int = 1
    dilation: int = 1
    scale: Tensor | None = None
    eps: float = 0.0  # of a root-mean-square norm before it, whose weight is in `weight`
    gelu: bool = False
    gated: bool = False

    def __call__(
        self,
        x: Tensor,
        streams: Streams,
        *,
        residual: Tensor | None = None,
        ring: Tensor | None = None,
        snake: PackedSnake | None = None,
        raw: bool = True,
        pointwise: tuple[PackedSnake, PackedConv] | None = None,
        tile: ConvTile | None = None,
    ) -> Tensor:
        """x, a ring or the frame alone -> [rows, rate, N] if `raw`, and the same after `snake` into `ring`.

        A `pointwise` convolution, after an activation, is done in the same kernel if the `tile` has all channels.
        """
        count, channels = len(streams.position), len(self.weight) // self.taps
        m, n = count * self.rate, self.weight.shape[1] // (1 + self.gated)
        out = x.new_empty(count, self.rate, n) if raw else None
        tile = tile or conv_tile(m, n, channels)
        between, second = pointwise or ((None, None), None)
        launch(
            kernels.conv,
            (triton.cdiv(m, tile.m) * triton.cdiv(n, tile.n),),
            x,
            streams.of(x, self.rate),
            streams.position,
            self.weight,
            self.bias,
            *between,
            *((second.weight, second.bias) if second else (None, None)),
            self.scale,
            residual,
            out,
            ring,
            None if ring is None else streams.of(ring, self.rate * n // ring.shape[2]),
            *(snake or (None, None)),
            m,
            self.dilation,
            x[0].numel() // (self.rate * channels),
            1 if ring is None else ring[0].numel() // (self.rate * n),
            T=self.rate,
            C=channels,
            N=n,
            TAPS=self.taps,
            EPS=self.eps,
            GELU=self.gelu,
            GATED=self.gated,
            BM=tile.m,
            BN=tile.n,
            BK=tile.k,
            STAGES=tile.stages,
            num_warps=tile.warps,
        )
        return cast(Tensor, out)

    @classmethod
    def of(cls, conv: CausalConv) -> PackedConv:
        outputs, _, taps = conv.conv.weight.shape
        weight = conv.conv.weight.permute(2, 1, 0).reshape(-1, outputs).contiguous()
        return cls(weight, conv.conv.bias, conv.history.rate, taps, conv.conv.dilation[0])

    @classmethod
    def of_upsample(cls, upsample: CausalUpsample) -> PackedConv:
        """An input reaches the `stride` outputs of its own step by the first taps, and those of later steps."""
        inputs, outputs, kernel = upsample.conv.weight.shape
        stride = upsample.stride
        taps = kernel // stride
        phases = upsample.conv.weight.view(inputs, outputs, taps, stride).flip(2)
        weight = phases.permute(2, 0, 3, 1).reshape(taps * inputs, stride * outputs).contiguous()
        bias = cast(Tensor, upsample.conv.bias).repeat(stride)
        return cls(weight, bias, upsample.history.rate, taps)

    @classmethod
    def of_linear(
        cls,
        *linears: nn.Linear,
        rate: int = 1,
        norm: RMSNorm | None = None,
        scale: Tensor | None = None,
        gelu: bool = False,
        gated: bool = False,
    ) -> PackedConv:
        """Layers of one input side by side, after a norm if there is one."""
        weight = torch.cat([linear.weight for linear in linears]).t()
        if norm is not None:
            weight = (weight.float() * norm.weight.float()[:, None]).to(weight.dtype)
        bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
        eps = norm.eps if norm else 0.0
        return cls(weight.contiguous(), bias, rate, scale=scale, eps=eps, gelu=gelu, gated=gated)


@dataclass(frozen=True, slots=True, eq=False)
class PackedUnit:
    """A residual unit whose input, activated, is in a ring of its own."""

    history: int  # that ring
    before: PackedSnake
    first: PackedConv
    between: PackedSnake
    second: PackedConv

    @classmethod
    def of(cls, unit: ResidualUnit) -> PackedUnit:
        return cls(
            unit.conv1.history.index,
            PackedSnake.of(unit.act1),
            PackedConv.of(unit.conv1),
            PackedSnake.of(unit.act2),
            PackedConv.of(unit.conv2),
        )

    def __call__(
        self, x: Tensor, streams: Streams, residual: Tensor, ring: Tensor, snake: PackedSnake, raw: bool = True
    ) -> Tensor:
        """As a `PackedConv`; the residual is the unit's input before activation."""
        tile = fused_tile(residual.numel() // len(self.second.weight), len(self.second.weight))
        if tile:
            return self.first(
                x, streams, residual=residual, ring=ring, snake=snake, raw=raw, tile=tile,
                pointwise=(self.between, self.second),
            )  # fmt: skip
        hidden = torch.empty_like(residual)
        self.first(x, streams, ring=hidden, snake=self.between, raw=False)
        return self.second(hidden, streams, residual=residual, ring=ring, snake=snake, raw=raw)
