"""The codec's step on a GPU: the same function as `Codec.step`, over the same state, by few fused kernels.

* channels last, weights as the operands of matrix products: a transposed convolution of kernel 2s is a convolution of
  two taps whose outputs are s steps of all channels
* a convolution reads what came before from the ring that the layer before it wrote, already activated
* sums, norms, activations and residuals are float32 within a kernel; rounding happens where a tensor is stored
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
import triton
from torch import Tensor, nn

from agent_tts.model import codec_kernels as kernels
from agent_tts.model.codec import Codec, Quantizer, TransformerLayer
from agent_tts.model.codec_layers import (
    CausalConv,
    CausalUpsample,
    ConvNeXtBlock,
    DecoderBlock,
    ResidualUnit,
    SnakeBeta,
    Upsampling,
)
from agent_tts.model.codec_state import CodecState
from agent_tts.model.layers import RMSNorm


class Tile(NamedTuple):
    """What one program of a matrix product computes, and how."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


def conv_tile(m: int, n: int, channels: int) -> Tile:
    """The tile for [m, taps * channels] x [taps * channels, n]."""
    k = min(64, channels & -channels)
    if m <= 16:
        return Tile(16, 32, min(128, channels & -channels), 4, 4)
    if m * n < 1 << 18:
        return Tile(32, 32, k, 4, 4)
    if m * n < 1 << 20:
        return Tile(64, 64, k, 4, 4)
    return Tile(128, 128, k, 8, 3)


def unit_tile(m: int, channels: int) -> Tile:
    """The tile of a fused residual unit: all channels of m steps."""
    k = min(64, channels & -channels)
    return Tile(32 if m <= 2048 else 64, channels, k, 4, 3)


# Channels up to which a residual unit is one kernel: a tile of all channels has to stay on the chip.
FUSED_CHANNELS = 192


class Snake(NamedTuple):
    """SnakeBeta as factor and reciprocal height, float32, for each column of a product."""

    alpha: Tensor
    beta: Tensor

    @classmethod
    def of(cls, snake: nn.Module, repeat: int = 1) -> Snake:
        assert isinstance(snake, SnakeBeta)
        alpha, beta = snake.alpha.float().exp(), snake.beta.float().exp()
        return cls(alpha.repeat(repeat), (1.0 / (beta + 1e-9)).repeat(repeat))


@dataclass(frozen=True, slots=True, eq=False)
class Conv:
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
        position: Tensor,
        *,
        residual: Tensor | None = None,
        ring: Tensor | None = None,
        snake: Snake | None = None,
        raw: bool = True,
    ) -> Tensor:
        """x, a ring or the frame alone -> [rows, rate, N] if `raw`, and the same after `snake` into `ring`."""
        rows, channels = len(position), len(self.weight) // self.taps
        m, n = rows * self.rate, self.weight.shape[1] // (1 + self.gated)
        out = x.new_empty(rows, self.rate, n) if raw else None
        tile = conv_tile(m, n, channels)
        kernels.conv[triton.cdiv(m, tile.m) * triton.cdiv(n, tile.n),](
            x,
            position,
            self.weight,
            self.bias,
            residual,
            self.scale,
            out,
            ring,
            *(snake or (None, None)),
            m,
            self.dilation,
            x.numel() // (m * channels),
            1 if ring is None else ring.numel() // (m * n),
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
    def of(cls, conv: CausalConv, **options: object) -> Conv:
        outputs, _, taps = conv.conv.weight.shape
        weight = conv.conv.weight.permute(2, 1, 0).reshape(-1, outputs).contiguous()
        return cls(weight, conv.conv.bias, conv.history.rate, taps, conv.conv.dilation[0])

    @classmethod
    def of_upsample(cls, upsample: CausalUpsample) -> Conv:
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
    ) -> Conv:
        """Layers of one input side by side, after a norm if there is one."""
        weight = torch.cat([linear.weight for linear in linears]).t()
        if norm is not None:
            weight = (weight.float() * norm.weight.float()[:, None]).to(weight.dtype)
        bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
        eps = norm.eps if norm else 0.0
        return cls(weight.contiguous(), bias, rate, scale=scale, eps=eps, gelu=gelu, gated=gated)


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A residual unit whose input, activated, is in a ring of its own."""

    history: int  # that ring
    before: Snake
    first: Conv
    between: Snake
    second: Conv

    @classmethod
    def of(cls, unit: ResidualUnit) -> Unit:
        return cls(
            unit.conv1.history.index,
            Snake.of(unit.act1),
            Conv.of(unit.conv1),
            Snake.of(unit.act2),
            Conv.of(unit.conv2),
        )

    def __call__(
        self, x: Tensor, position: Tensor, residual: Tensor, ring: Tensor, snake: Snake, raw: bool = True
    ) -> Tensor:
        """As a `Conv`; the residual is the unit's input before activation."""
        channels = len(self.second.weight)
        third = channels // 3
        if channels % 3 or third & (third - 1) or channels > FUSED_CHANNELS:
            hidden = torch.empty_like(residual)
            self.first(x, position, ring=hidden, snake=self.between, raw=False)
            return self.second(hidden, position, residual=residual, ring=ring, snake=snake, raw=raw)
        m = residual.numel() // channels
        out = torch.empty_like(residual) if raw else None
        tile = unit_tile(m, channels)
        kernels.residual_unit[triton.cdiv(m, tile.m),](
            x,
            position,
            self.first.weight,
            self.first.bias,
            *self.between,
            self.second.weight,
            self.second.bias,
            residual,
            out,
            ring,
            *snake,
            m,
            self.first.dilation,
            x.numel() // (m * channels),
            ring.numel() // (m * channels),
            T=self.first.rate,
            C=channels,
            TAPS=self.first.taps,
            BM=tile.m,
            BK=tile.k,
            STAGES=tile.stages,
            num_warps=tile.warps,
        )
        return cast(Tensor, out)


class Layer(NamedTuple):
    """A transformer layer."""

    qkv: Conv
    out: Conv
    gate: Conv
    down: Conv

    @classmethod
    def of(cls, layer: TransformerLayer) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            Conv.of_linear(attention.q_proj, attention.k_proj, attention.v_proj, norm=layer.input_layernorm),
            Conv.of_linear(attention.o_proj, scale=layer.self_attn_layer_scale.scale),
            Conv.of_linear(mlp.gate_proj, mlp.up_proj, norm=layer.post_attention_layernorm, gated=True),
            Conv.of_linear(mlp.down_proj, scale=layer.mlp_layer_scale.scale),
        )


class Stretch(NamedTuple):
    """A doubling of the rate, and the ConvNeXt block after it."""

    upsample: Conv
    history: int
    rate: int
    depthwise: tuple[Tensor, Tensor]  # weight [taps, C] and bias
    norm: tuple[Tensor, Tensor]
    eps: float
    expand: Conv
    reduce: Conv

    @classmethod
    def of(cls, upsampling: Upsampling) -> Stretch:
        upsample, block = upsampling
        assert isinstance(upsample, CausalUpsample) and isinstance(block, ConvNeXtBlock)
        conv, rate = block.dwconv, block.dwconv.history.rate
        return cls(
            Conv.of_upsample(upsample),
            conv.history.index,
            rate,
            (conv.conv.weight[:, 0].t().contiguous(), cast(Tensor, conv.conv.bias)),
            (block.norm.weight, block.norm.bias),
            block.norm.eps,
            Conv.of_linear(block.pwconv1, rate=rate, gelu=True),
            Conv.of_linear(block.pwconv2, rate=rate, scale=block.gamma),
        )


class Block(NamedTuple):
    """A decoder block, but for the activation that it begins with."""

    history: int
    upsample: Conv
    after: Snake  # the first unit's, for each step of the upsampling's output
    units: list[Unit]

    @classmethod
    def of(cls, block: DecoderBlock) -> Block:
        _, upsample, first, *others = block.block
        assert isinstance(upsample, CausalUpsample) and isinstance(first, ResidualUnit)
        return cls(
            upsample.history.index,
            Conv.of_upsample(upsample),
            Snake.of(first.act1, upsample.stride),
            [Unit.of(cast(ResidualUnit, unit)) for unit in (first, *others)],
        )


class FastCodec:
    """The step of a codec whose weights are loaded. It has a copy of them: the codec's own are no longer read."""

    def __init__(self, codec: Codec) -> None:
        config, transformer = codec.config, codec.pre_transformer
        first, *blocks, snake, last = codec.decoder
        assert isinstance(first, CausalConv) and isinstance(last, CausalConv)
        self._config = config
        self._table = _projected_codebooks(codec)
        self._start = codec.pre_conv.history.index
        self._pre_conv = Conv.of(codec.pre_conv)
        self._enter = Conv.of_linear(transformer.input_proj)
        self._layers = [Layer.of(cast(TransformerLayer, layer)) for layer in transformer.layers]
        self._leave = Conv.of_linear(transformer.output_proj, norm=transformer.norm)
        steps = torch.arange(0, config.head_dim, 2, device=self._table.device, dtype=torch.float32)
        self._frequencies = 1.0 / config.rope_theta ** (steps / config.head_dim)
        self._stretches = [Stretch.of(cast(Upsampling, upsampling)) for upsampling in codec.upsample]
        self._first_history = first.history.index
        self._first = Conv.of(first)
        self._blocks = [Block.of(cast(DecoderBlock, block)) for block in blocks]
        # What a block's last unit, or the first convolution, is followed by.
        self._next = [Snake.of(cast(DecoderBlock, block).block[0]) for block in blocks] + [Snake.of(snake)]
        self._last_history = last.history.index
        self._last = Conv.of(last)

    @torch.inference_mode()
    def step(self, state: CodecState, codes: Tensor, run: Tensor) -> Tensor:
        """As `Codec.step`, on the state of that codec."""
        position, rings = state.position, state.histories
        x = self._transform(self._quantize(state, codes, run), state)
        for index, stretch in enumerate(self._stretches):
            last = index == len(self._stretches) - 1
            x = _stretch(stretch, x, position, rings, rings[self._first_history] if last else None)
        entries = [rings[block.history] for block in self._blocks] + [rings[self._last_history]]
        self._first(rings[self._first_history], position, ring=entries[0], snake=self._next[0], raw=False)
        for index, block in enumerate(self._blocks):
            self._block(block, entries[index], position, rings, entries[index + 1], self._next[index + 1])
        pcm = self._waveform(entries[-1], position, run)
        position.add_(run)
        return pcm

    def _quantize(self, state: CodecState, codes: Tensor, run: Tensor) -> Tensor:
        """Codes -> [rows, 1, latent]."""
        books, size, channels = self._table.shape
        ring = state.histories[self._start]
        block = min(256, triton.next_power_of_2(channels))
        kernels.quantize[len(run), triton.cdiv(channels, block)](
            codes, run, state.position, self._table, ring, SIZE=size, BOOKS=books, C=channels, FRAMES=ring.shape[1],
            BLOCK=block, num_warps=1,
        )  # fmt: skip
        return self._pre_conv(ring, state.position)

    def _transform(self, x: Tensor, state: CodecState) -> Tensor:
        config, position = self._config, state.position
        heads, half = config.num_attention_heads, config.head_dim // 2
        x = self._enter(x, position)
        for layer, keys, values in zip(self._layers, state.keys, state.values, strict=True):
            qkv = layer.qkv(x, position)
            mixed = x.new_empty(len(x), 1, heads * 2 * half)
            kernels.attention[len(x), heads](
                qkv, position, keys, values, mixed, self._frequencies, config.head_dim**-0.5,
                WINDOW=config.sliding_window, HEADS=heads, HALF=half,
                SLOTS=triton.next_power_of_2(config.sliding_window), num_warps=4,
            )  # fmt: skip
            x = layer.out(mixed, position, residual=x)
            x = layer.down(layer.gate(x, position), position, residual=x)
        return self._leave(x, position)

    @staticmethod
    def _block(
        block: Block, x: Tensor, position: Tensor, rings: tuple[Tensor, ...], ring: Tensor, snake: Snake
    ) -> None:
        """A decoder block on its activated input, into `ring` after `snake`."""
        raw = block.upsample(x, position, ring=rings[block.units[0].history], snake=block.after)
        for unit, following in zip(block.units, [*block.units[1:], None], strict=True):
            entry = rings[unit.history]
            if following:
                raw = unit(entry, position, raw, rings[following.history], following.before)
            else:
                unit(entry, position, raw, ring, snake, raw=False)

    def _waveform(self, ring: Tensor, position: Tensor, run: Tensor) -> Tensor:
        conv, channels = self._last, ring.shape[2]
        m, tile = len(run) * conv.rate, 64
        out = torch.empty(len(run), conv.rate, dtype=torch.float32, device=ring.device)
        kernels.waveform[triton.cdiv(m, tile),](
            ring, position, run, conv.weight, conv.bias, out, m,
            T=conv.rate, C=channels, TAPS=conv.taps, FRAMES=ring.shape[1] // conv.rate,
            BM=tile, BLOCK=triton.next_power_of_2(channels), num_warps=8,
        )  # fmt: skip
        return out


def _stretch(
    stretch: Stretch, x: Tensor, position: Tensor, rings: tuple[Tensor, ...], ring: Tensor | None
) -> Tensor:
    """[rows, T, C] -> [rows, T * ratio, C], into `ring` if one is given."""
    entry, channels = rings[stretch.history], x.shape[2]
    x = stretch.upsample(x, position, ring=entry).view(len(x), stretch.rate, channels)
    hidden = torch.empty_like(x)
    weight, bias = stretch.depthwise
    kernels.depthwise_norm[len(x) * stretch.rate,](
        entry, position, weight, bias, *stretch.norm, hidden,
        T=stretch.rate, C=channels, TAPS=len(weight), FRAMES=entry.shape[1] // stretch.rate, EPS=stretch.eps,
        BLOCK=triton.next_power_of_2(channels), num_warps=4,
    )  # fmt: skip
    return stretch.reduce(stretch.expand(hidden, position), position, residual=x, ring=ring, raw=ring is None)


def _projected_codebooks(codec: Codec) -> Tensor:
    """[codebooks, codes, channels]: each code's vector after the projection of its quantizer."""
    tables = []
    for quantizer in (codec.quantizer.rvq_first, codec.quantizer.rvq_rest):
        assert isinstance(quantizer, Quantizer)
        projection = quantizer.output_proj.weight[..., 0].float().t()
        for book in quantizer.codebooks:
            codes = torch.arange(len(book.cluster_usage), device=projection.device)
            tables.append((book(codes).float() @ projection).to(book.embedding_sum.dtype))
    return torch.stack(tables)
