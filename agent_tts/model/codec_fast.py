"""The codec's step on a GPU: the function of `Codec.step` on the same state, by few fused kernels.

* channels last, weights as the operands of matrix products: a transposed convolution of kernel 2s is a convolution of
  two taps whose outputs are s steps of all channels
* a convolution reads its past from the ring that the layer before it wrote, already activated
* sums, norms, activations and residuals are float32 within a kernel; rounding happens where a tensor is stored
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor

from agent_tts.model.codec import Codec, CodecTransformerLayer, Quantizer
from agent_tts.model.codec_layers import (
    CausalConv,
    CausalUpsample,
    Codebook,
    ConvNeXtBlock,
    DecoderBlock,
    ResidualUnit,
    Upsampling,
)
from agent_tts.model.codec_packed import PackedConv, PackedLinear, PackedSnake, PackedUnit, RingOutput, Streams
from agent_tts.model.codec_state import CodecState
from agent_tts.model.kernels import codec as kernels
from agent_tts.model.kernels.launch import launch, power_of_2


class PackedLayer(NamedTuple):
    """A transformer layer."""

    qkv: PackedLinear
    out: PackedLinear
    gate: PackedLinear
    down: PackedLinear

    @classmethod
    def of(cls, layer: CodecTransformerLayer) -> PackedLayer:
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            PackedLinear.of(attention.q_proj, attention.k_proj, attention.v_proj, norm=layer.input_layernorm),
            PackedLinear.of(attention.o_proj, scale=layer.self_attn_layer_scale.scale),
            PackedLinear.of(mlp.gate_proj, mlp.up_proj, norm=layer.post_attention_layernorm, gated=True),
            PackedLinear.of(mlp.down_proj, scale=layer.mlp_layer_scale.scale),
        )


class PackedUpsampling(NamedTuple):
    """A doubling of the rate and its ConvNeXt block."""

    upsample: PackedLinear
    history: int
    rate: int
    depthwise: tuple[Tensor, Tensor]  # weight [taps, C] and bias
    norm: tuple[Tensor, Tensor]
    eps: float
    expand: PackedLinear
    reduce: PackedLinear

    @classmethod
    def of(cls, upsampling: Upsampling) -> PackedUpsampling:
        upsample, block = upsampling
        assert isinstance(upsample, CausalUpsample)
        assert isinstance(block, ConvNeXtBlock)
        conv, rate = block.dwconv, block.dwconv.history.rate
        return cls(
            PackedLinear.of_conv(upsample),
            conv.history.index,
            rate,
            (conv.conv.weight[:, 0].t().contiguous(), cast(Tensor, conv.conv.bias)),
            (block.norm.weight, block.norm.bias),
            block.norm.eps,
            PackedLinear.of(block.pwconv1, rate=rate, gelu=True),
            PackedLinear.of(block.pwconv2, rate=rate, scale=block.gamma),
        )


class PackedBlock(NamedTuple):
    """A decoder block without the activation that it begins with."""

    history: int
    upsample: PackedConv
    after: PackedSnake  # the first unit's activation, for each step of the upsampling's output
    units: list[PackedUnit]

    @classmethod
    def of(cls, block: DecoderBlock) -> PackedBlock:
        _, upsample, first, *others = block.block
        assert isinstance(upsample, CausalUpsample)
        assert isinstance(first, ResidualUnit)
        return cls(
            upsample.history.index,
            PackedConv.of(upsample),
            PackedSnake.of(first.act1, upsample.stride),
            [PackedUnit.of(cast(ResidualUnit, unit)) for unit in (first, *others)],
        )


class FastCodec:
    """The step of a loaded codec, in bfloat16 or float16; keeps a copy of the weights."""

    @torch.no_grad()
    def __init__(self, codec: Codec) -> None:
        config, transformer = codec.config, codec.pre_transformer
        first, *blocks, snake, last = codec.decoder
        assert isinstance(first, CausalConv)
        assert isinstance(last, CausalConv)
        self._config = config
        self._table = _projected_codebooks(codec)
        self._start = codec.pre_conv.history.index
        self._pre_conv = PackedConv.of(codec.pre_conv)
        self._enter = PackedLinear.of(transformer.input_proj)
        self._layers = [PackedLayer.of(cast(CodecTransformerLayer, layer)) for layer in transformer.layers]
        self._leave = PackedLinear.of(transformer.output_proj, norm=transformer.norm)
        steps = torch.arange(0, config.head_dim, 2, device=self._table.device, dtype=torch.float32)
        self._frequencies = 1.0 / config.rope_theta ** (steps / config.head_dim)
        self._stretches = [PackedUpsampling.of(cast(Upsampling, upsampling)) for upsampling in codec.upsample]
        self._first_history = first.history.index
        self._first = PackedConv.of(first)
        self._blocks = [PackedBlock.of(cast(DecoderBlock, block)) for block in blocks]
        # The activation behind the first convolution and behind the last unit of each block.
        self._next = [PackedSnake.of(cast(DecoderBlock, block).block[0]) for block in blocks] + [PackedSnake.of(snake)]
        self._last_history = last.history.index
        self._last = PackedConv.of(last)

    @torch.inference_mode()
    def step(self, state: CodecState, codes: Tensor, run: Tensor, rows: Tensor | None = None) -> Tensor:
        """As `Codec.step`."""
        streams = Streams(rows, state.position if rows is None else state.position[rows])
        rings = state.histories
        x = self._transform(self._quantize(state, codes, run, streams), state, streams)
        for index, stretch in enumerate(self._stretches):
            last = index == len(self._stretches) - 1
            x = _stretch(stretch, x, streams, rings, rings[self._first_history] if last else None)
        entries = [rings[block.history] for block in self._blocks] + [rings[self._last_history]]
        self._first(rings[self._first_history], streams, to=RingOutput(entries[0], self._next[0]), raw=False)
        for index, block in enumerate(self._blocks):
            to = RingOutput(entries[index + 1], self._next[index + 1])
            self._block(block, entries[index], streams, rings, to)
        pcm = self._waveform(entries[-1], streams, run)
        if rows is None:
            state.position.add_(run)
        else:
            state.position[rows] = streams.position + run
        return pcm

    def _quantize(self, state: CodecState, codes: Tensor, run: Tensor, streams: Streams) -> Tensor:
        """Codes -> [rows, 1, latent]."""
        books, size, channels = self._table.shape
        ring = state.histories[self._start]
        block = min(256, power_of_2(channels))
        launch(
            kernels.quantize, (len(run), -(-channels // block)),
            codes=codes, run=run, rows=streams.rows, position=streams.position, table=self._table, ring=ring,
            SIZE=size, BOOKS=books, C=channels, FRAMES=ring.shape[1], BLOCK=block, num_warps=1,
        )  # fmt: skip
        return self._pre_conv(ring, streams)

    def _transform(self, x: Tensor, state: CodecState, streams: Streams) -> Tensor:
        config = self._config
        heads, half = config.num_attention_heads, config.head_dim // 2
        x = self._enter(x, streams)
        for layer, keys, values in zip(self._layers, state.keys, state.values, strict=True):
            qkv = layer.qkv(x, streams)
            mixed = x.new_empty(len(x), 1, heads * 2 * half)
            launch(
                kernels.attention, (len(x), heads),
                qkv=qkv, rows=streams.rows, position=streams.position, keys=keys, values=values, out=mixed,
                frequencies=self._frequencies, scale=config.head_dim**-0.5,
                WINDOW=config.sliding_window, HEADS=heads, HALF=half,
                SLOTS=power_of_2(config.sliding_window), num_warps=2,
            )  # fmt: skip
            x = layer.out(mixed, streams, residual=x)
            x = layer.down(layer.gate(x, streams), streams, residual=x)
        return self._leave(x, streams)

    @staticmethod
    def _block(block: PackedBlock, x: Tensor, streams: Streams, rings: tuple[Tensor, ...], to: RingOutput) -> None:
        """A decoder block on its activated input."""
        raw = block.upsample(x, streams, to=RingOutput(rings[block.units[0].history], block.after))
        for unit, following in zip(block.units, [*block.units[1:], None], strict=True):
            entry = rings[unit.history]
            if following:
                raw = unit(entry, streams, raw, RingOutput(rings[following.history], following.before))
            else:
                unit(entry, streams, raw, to, raw=False)

    def _waveform(self, ring: Tensor, streams: Streams, run: Tensor) -> Tensor:
        conv, channels = self._last, ring.shape[2]
        m, tile = len(run) * conv.rate, 32
        out = torch.empty(len(run), conv.rate, dtype=torch.float32, device=ring.device)
        launch(
            kernels.waveform, (-(-m // tile),),
            x=ring, rows=streams.rows, position=streams.position, run=run, weight=conv.weight, bias=conv.bias, out=out,
            M=m, T=conv.rate, C=channels, TAPS=conv.taps, FRAMES=ring.shape[1] // conv.rate,
            BM=tile, BLOCK=power_of_2(channels), num_warps=4,
        )  # fmt: skip
        return out


def _stretch(
    stretch: PackedUpsampling, x: Tensor, streams: Streams, rings: tuple[Tensor, ...], ring: Tensor | None
) -> Tensor:
    """[rows, T, C] -> [rows, T * ratio, C], into `ring` if there is one."""
    entry, channels = rings[stretch.history], x.shape[2]
    x = stretch.upsample(x, streams, to=RingOutput(entry)).view(len(x), stretch.rate, channels)
    hidden = torch.empty_like(x)
    (weight, bias), (scale, shift) = stretch.depthwise, stretch.norm
    launch(
        kernels.depthwise_norm, (len(x) * stretch.rate,),
        x=entry, rows=streams.rows, position=streams.position, weight=weight, bias=bias, norm=scale, shift=shift,
        out=hidden,
        T=stretch.rate, C=channels, TAPS=len(weight), FRAMES=entry.shape[1] // stretch.rate, EPS=stretch.eps,
        BLOCK=power_of_2(channels), num_warps=4,
    )  # fmt: skip
    return stretch.reduce(stretch.expand(hidden, streams), streams, residual=x, to=RingOutput(ring), raw=ring is None)


def _projected_codebooks(codec: Codec) -> Tensor:
    """[codebooks, codes, channels]: each code's vector after the projection of its quantizer."""
    tables = []
    for quantizer in (codec.quantizer.rvq_first, codec.quantizer.rvq_rest):
        assert isinstance(quantizer, Quantizer)
        projection = quantizer.output_proj.weight[..., 0].float().t()
        for book in cast(list[Codebook], list(quantizer.codebooks)):
            codes = torch.arange(len(book.cluster_usage), device=projection.device)
            tables.append((book(codes).float() @ projection).to(book.embedding_sum.dtype))
    return torch.stack(tables)
