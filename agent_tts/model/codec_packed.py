"""Layers of the codec, packed for the kernels of its step: weights as the operands of matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from agent_tts.model.codec_layers import CausalConv, CausalUpsample, ResidualUnit, SnakeBeta
from agent_tts.model.kernels import codec as kernels
from agent_tts.model.kernels import tiles
from agent_tts.model.kernels.launch import launch
from agent_tts.model.layers import RMSNorm


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
        """The rows of the streams in a ring of the state; None in a tensor of the batch, of `rate` steps."""
        return self.rows if x.shape[1] > rate else None


class RingOutput(NamedTuple):
    """The frame of a ring that takes a result, after SnakeBeta if there is one. No ring takes nothing."""

    ring: Tensor | None = None
    snake: PackedSnake | None = None

    def arguments(self, rate: int, outputs: int) -> dict[str, Any]:
        """For a kernel whose result is [streams, rate, outputs]."""
        frames = 1 if self.ring is None else self.ring[0].numel() // (rate * outputs)
        alpha, beta = self.snake or (None, None)
        return {"ring": self.ring, "ring_frames": frames, "alpha": alpha, "beta": beta}

    def rows(self, streams: Streams, rate: int, outputs: int) -> Tensor | None:
        """The rows of the streams in the ring."""
        return None if self.ring is None else streams.of(self.ring, rate * outputs // self.ring.shape[2])


NO_RING = RingOutput()


def _run(kernel: Any, m: int, n: int, tile: tiles.Tile, **arguments: Any) -> None:
    """Launches a kernel of a product [m, n]."""
    launch(
        kernel, (-(-m // tile.rows) * -(-n // tile.outputs),),
        M=m, BM=tile.rows, BN=tile.outputs, BK=tile.inputs, STAGES=tile.stages, num_warps=tile.warps, **arguments,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """A linear layer of `rate` steps a frame, and what comes before and after it."""

    weight: Tensor  # [K, N], twice as wide if gated
    bias: Tensor | None = None  # [N], as the scale
    rate: int = 1
    scale: Tensor | None = None
    eps: float = 0.0  # of a root-mean-square norm before it, whose weight is in `weight`
    gelu: bool = False
    gated: bool = False

    def __call__(
        self, x: Tensor, streams: Streams, *, residual: Tensor | None = None, to: RingOutput = NO_RING, raw: bool = True
    ) -> Tensor:
        """x [streams, rate, K] -> [streams, rate, N] if `raw`, and into a ring."""
        count, (inputs, width) = len(streams.position), self.weight.shape
        m, n = count * self.rate, width // (1 + self.gated)
        out = x.new_empty(count, self.rate, n) if raw else None
        _run(
            kernels.linear, m, n, tiles.codec_tile(m, n, inputs),
            x=x, weight=self.weight, bias=self.bias, scale=self.scale, residual=residual, out=out,
            rows=to.rows(streams, self.rate, n), position=streams.position, **to.arguments(self.rate, n),
            T=self.rate, K=inputs, N=n, EPS=self.eps, GELU=self.gelu, GATED=self.gated,
        )  # fmt: skip
        return cast(Tensor, out)

    @classmethod
    def of(
        cls,
        *linears: nn.Linear,
        rate: int = 1,
        norm: RMSNorm | None = None,
        scale: Tensor | None = None,
        gelu: bool = False,
        gated: bool = False,
    ) -> PackedLinear:
        """Layers of one input side by side, after a norm if there is one."""
        weight = torch.cat([linear.weight for linear in linears]).t()
        if norm is not None:
            weight = (weight.float() * norm.weight.float()[:, None]).to(weight.dtype)
        bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
        return cls(weight.contiguous(), bias, rate, scale, norm.eps if norm else 0.0, gelu, gated)

    @classmethod
    def of_conv(cls, conv: CausalConv | CausalUpsample) -> PackedLinear:
        """A convolution of one tap."""
        packed = PackedConv.of(conv)
        assert packed.taps == 1
        return cls(packed.weight, packed.bias, packed.rate)


@dataclass(frozen=True, slots=True, eq=False)
class PackedConv:
    """A causal convolution of `rate` steps a frame, whose input is in a ring."""

    weight: Tensor  # [taps * channels, N]
    bias: Tensor  # [N]
    rate: int
    taps: int
    dilation: int = 1

    def ring_arguments(self, x: Tensor, streams: Streams) -> dict[str, Any]:
        """For a kernel that reads the ring x."""
        channels = len(self.weight) // self.taps
        return {
            "x": x, "rows": streams.of(x, self.rate), "position": streams.position, "weight": self.weight,
            "bias": self.bias, "dilation": self.dilation, "frames": x[0].numel() // (self.rate * channels),
            "T": self.rate, "C": channels, "TAPS": self.taps,
        }  # fmt: skip

    def __call__(self, x: Tensor, streams: Streams, *, to: RingOutput = NO_RING, raw: bool = True) -> Tensor:
        """The ring x -> [streams, rate, N] if `raw`, and into a ring."""
        count, n = len(streams.position), self.weight.shape[1]
        m = count * self.rate
        out = x.new_empty(count, self.rate, n) if raw else None
        _run(
            kernels.conv, m, n, tiles.codec_tile(m, n, len(self.weight) // self.taps),
            **self.ring_arguments(x, streams), N=n, out=out,
            ring_rows=to.rows(streams, self.rate, n), **to.arguments(self.rate, n),
        )  # fmt: skip
        return cast(Tensor, out)

    @classmethod
    def of(cls, conv: CausalConv | CausalUpsample) -> PackedConv:
        """In an upsampling the first taps reach the `stride` outputs of an input's own step, the others later ones."""
        bias, rate = cast(Tensor, conv.conv.bias), conv.history.rate
        if isinstance(conv, CausalConv):
            outputs, _, taps = conv.conv.weight.shape
            weight = conv.conv.weight.permute(2, 1, 0).reshape(-1, outputs).contiguous()
            return cls(weight, bias, rate, taps, conv.conv.dilation[0])
        inputs, outputs, kernel = conv.conv.weight.shape
        stride = conv.stride
        taps = kernel // stride
        phases = conv.conv.weight.view(inputs, outputs, taps, stride).flip(2)
        weight = phases.permute(2, 0, 3, 1).reshape(taps * inputs, stride * outputs).contiguous()
        return cls(weight, bias.repeat(stride), rate, taps)


@dataclass(frozen=True, slots=True, eq=False)
class PackedUnit:
    """A residual unit whose input, activated, is in a ring of its own."""

    history: int  # that ring
    before: PackedSnake
    first: PackedConv
    between: PackedSnake
    second: PackedLinear

    @classmethod
    def of(cls, unit: ResidualUnit) -> PackedUnit:
        return cls(
            unit.conv1.history.index,
            PackedSnake.of(unit.act1),
            PackedConv.of(unit.conv1),
            PackedSnake.of(unit.act2),
            PackedLinear.of_conv(unit.conv2),
        )

    def __call__(self, x: Tensor, streams: Streams, residual: Tensor, to: RingOutput, *, raw: bool = True) -> Tensor:
        """As a `PackedConv`; the residual is the unit's input before activation."""
        channels, rate = len(self.second.weight), self.first.rate
        m = residual.numel() // channels
        tile = tiles.unit_tile(m, channels)
        if tile is None:
            hidden = torch.empty_like(residual)
            self.first(x, streams, to=RingOutput(hidden, self.between), raw=False)
            return self.second(hidden, streams, residual=residual, to=to, raw=raw)
        out = torch.empty_like(residual) if raw else None
        _run(
            kernels.unit, m, channels, tile,
            **self.first.ring_arguments(x, streams), between_alpha=self.between.alpha, between_beta=self.between.beta,
            pointwise=self.second.weight, pointwise_bias=self.second.bias, residual=residual, out=out,
            **to.arguments(rate, channels),
        )  # fmt: skip
        return cast(Tensor, out)
