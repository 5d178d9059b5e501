"""The steps of codec and watermark on a GPU: `Codec.step` and `Watermark.step` on the same state, by few fused kernels.

* channels last, weights as the operands of matrix products: a transposed convolution of kernel 2s is a convolution of
  two taps whose outputs are s steps of all channels
* a convolution reads its past from the ring that the layer before it wrote, already activated
* sums, norms, activations and residuals are float32 within a kernel; rounding happens where a tensor is stored
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from agent_tts.model.codec import (
    CausalConv,
    CausalUpsample,
    Codec,
    CodecState,
    CodecTransformerLayer,
    DecoderBlock,
    ResidualUnit,
    Upsampling,
)
from agent_tts.model.config import FRAME_SAMPLES
from agent_tts.model.kernels import codec as kernels
from agent_tts.model.kernels import tiles
from agent_tts.model.kernels.launch import has_warpgroups, launch, overlap, power_of_2
from agent_tts.model.kernels.linear import split_counters
from agent_tts.model.layers import RMSNorm
from agent_tts.model.watermark import LSTM_LAYERS, Recurrence, Watermark, WatermarkUnit, pairs

Rings = tuple[Tensor, ...]  # the histories of a `CodecState`


class PackedSnake(NamedTuple):
    """SnakeBeta as factor in half turns and reciprocal height, float32, for each column of a product.

    ELU: the factor alone, as it is.
    """

    alpha: Tensor
    beta: Tensor | None

    @classmethod
    def of(cls, snake: nn.Module, repeat: int = 1) -> PackedSnake:
        alpha, beta = snake.get_parameter("alpha").float().exp(), snake.get_parameter("beta").float().exp()
        return cls((alpha / math.pi).repeat(repeat), (1.0 / (beta + 1e-9)).repeat(repeat))


class Streams(NamedTuple):
    """Whose frame a batch is."""

    rows: Tensor | None  # int64[B]: the row of each stream in the state; None is its own number
    position: Tensor  # int64[B]: of the frame

    def of(self, x: Tensor, rate: int) -> Tensor | None:
        """The rows of the streams in a ring of the state; None in a tensor of the batch, of `rate` steps."""
        return self.rows if x.shape[1] > rate else None


class Output(NamedTuple):
    """Where a kernel puts its result: into a new tensor if `raw`, and into a ring, activated if `snake` says how."""

    ring: Tensor | None = None
    snake: PackedSnake | None = None
    raw: bool = True

    def arguments(self, rate: int, outputs: int) -> dict[str, Any]:
        """For a kernel whose result is [streams, rate, outputs]."""
        frames = 1 if self.ring is None else self.ring[0].numel() // (rate * outputs)
        alpha, beta = self.snake or (None, None)
        return {"ring": self.ring, "ring_frames": frames, "alpha": alpha, "beta": beta}

    def rows(self, streams: Streams, rate: int, outputs: int) -> Tensor | None:
        return None if self.ring is None else streams.of(self.ring, rate * outputs // self.ring.shape[2])


NEW_TENSOR = Output()


def _splits(x: Tensor, tile: tiles.Tile, rows: int, outputs: int) -> dict[str, Any]:
    """What a kernel is given for the splits of its sums."""
    size = 0 if tile.splits == 1 else tile.count(rows, outputs) * tile.splits * tile.rows * tile.outputs
    parts = x.new_empty(size, dtype=torch.float32)
    return {"parts": parts, "counters": split_counters(x.device), "SPLITS": tile.splits}


def _run(
    kernel: Any, x: Tensor, streams: Streams, rate: int, outputs: int, to: Output, tile: tiles.Tile,
    overlaps: bool = True, **arguments: Any,
) -> Tensor:  # fmt: skip
    """Launches a kernel on x whose result is [streams, rate, outputs]; gives the new tensor if `to.raw`.

    If it overlaps the kernel before it, it reads the streams and constants before that has ended.
    """
    count = len(streams.position)
    out = x.new_empty(count, rate, outputs) if to.raw else None
    launch(
        kernel, (tile.count(count * rate, outputs), tile.splits),
        x=x, position=streams.position, out=out, M=count * rate,
        BM=tile.rows, BN=tile.outputs, BK=tile.inputs, STAGES=tile.stages, num_warps=tile.warps,
        **(overlap(x.device) if overlaps else {"OVERLAP": False}), **to.arguments(rate, outputs), **arguments,
    )  # fmt: skip
    return cast(Tensor, out)


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
        self, x: Tensor, streams: Streams, to: Output = NEW_TENSOR, *, residual: Tensor | None = None
    ) -> Tensor:
        """x [streams, rate, K] -> [streams, rate, N]."""
        inputs, width = self.weight.shape
        n = width // (1 + self.gated)
        m = len(x) * self.rate
        tile = tiles.codec_tile(m, n, inputs, 1, self.gated, has_warpgroups(x.device))
        return _run(
            kernels.linear, x, streams, self.rate, n, to, tile, **_splits(x, tile, m, n),
            weight=self.weight, bias=self.bias, scale=self.scale, residual=residual,
            rows=to.rows(streams, self.rate, n), T=1 if to.ring is None else self.rate,  # which the ring alone needs
            K=inputs, N=n, EPS=self.eps, GELU=self.gelu, GATED=self.gated,
        )  # fmt: skip

    @classmethod
    def of(cls, *linears: nn.Linear, norm: RMSNorm | None = None, **options: Any) -> PackedLinear:
        """Layers of one input side by side, after a norm if there is one; options are other fields."""
        weight = torch.cat([linear.weight for linear in linears]).t()
        if norm is not None:
            weight = (weight.float() * norm.weight.float()[:, None]).to(weight.dtype)
        bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
        return cls(weight.contiguous(), bias, eps=norm.eps if norm else 0.0, **options)

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
    history: int = -1  # the number of that ring

    def ring_arguments(self, x: Tensor, streams: Streams) -> dict[str, Any]:
        """For a kernel that reads the ring x."""
        channels = len(self.weight) // self.taps
        return {
            "rows": streams.of(x, self.rate), "weight": self.weight, "bias": self.bias, "dilation": self.dilation,
            "frames": x[0].numel() // (self.rate * channels), "T": self.rate, "C": channels, "TAPS": self.taps,
        }  # fmt: skip

    def __call__(self, x: Tensor, streams: Streams, to: Output = NEW_TENSOR, *, overlaps: bool = True) -> Tensor:
        """The ring x -> [streams, rate, N]. It must not overlap a kernel that writes the position of the streams."""
        n = self.weight.shape[1]
        m = len(streams.position) * self.rate
        tile = tiles.codec_tile(m, n, len(self.weight) // self.taps, self.taps)
        return _run(
            kernels.conv, x, streams, self.rate, n, to, tile, overlaps, **_splits(x, tile, m, n),
            **self.ring_arguments(x, streams), N=n, ring_rows=to.rows(streams, self.rate, n),
        )  # fmt: skip

    @classmethod
    def of(cls, conv: CausalConv | CausalUpsample) -> PackedConv:
        """In an upsampling the first taps reach the `stride` outputs of an input's own step, the others later ones."""
        bias, rate, history = cast(Tensor, conv.conv.bias), conv.history.rate, conv.history.index
        if isinstance(conv, CausalConv):
            outputs, _, taps = conv.conv.weight.shape
            weight = conv.conv.weight.permute(2, 1, 0).reshape(-1, outputs).contiguous()
            # Of a stride that divides the kernel, the inputs of a tap are its steps, of all channels.
            stride = conv.conv.stride[0]
            return cls(weight, bias, rate // stride, taps // stride, conv.conv.dilation[0], history)
        inputs, outputs, kernel = conv.conv.weight.shape
        stride = conv.stride
        taps = kernel // stride
        phases = conv.conv.weight.view(inputs, outputs, taps, stride).flip(2)
        weight = phases.permute(2, 0, 3, 1).reshape(taps * inputs, stride * outputs).contiguous()
        return cls(weight, bias.repeat(stride), rate, taps, history=history)


class PackedLayer:
    def __init__(self, layer: CodecTransformerLayer) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.qkv = PackedLinear.of(attention.q_proj, attention.k_proj, attention.v_proj, norm=layer.input_layernorm)
        self.out = PackedLinear.of(attention.o_proj, scale=layer.self_attn_layer_scale.scale)
        self.gate = PackedLinear.of(mlp.gate_proj, mlp.up_proj, norm=layer.post_attention_layernorm, gated=True)
        self.down = PackedLinear.of(mlp.down_proj, scale=layer.mlp_layer_scale.scale)


class PackedUpsampling:
    """A doubling of the rate and its ConvNeXt block."""

    def __init__(self, upsampling: Upsampling) -> None:
        upsample, block = cast(Any, upsampling)
        conv = block.dwconv
        self.history: int = conv.history.index
        self.rate: int = conv.history.rate
        self.upsample = PackedLinear.of_conv(upsample)
        self.depthwise: Tensor = conv.conv.weight[:, 0].t().contiguous()  # [taps, C]
        self.bias: Tensor = conv.conv.bias
        self.norm: nn.LayerNorm = block.norm
        self.expand = PackedLinear.of(block.pwconv1, rate=self.rate, gelu=True)
        self.reduce = PackedLinear.of(block.pwconv2, rate=self.rate, scale=block.gamma)

    def __call__(self, x: Tensor, streams: Streams, rings: Rings, to: Output = NEW_TENSOR) -> Tensor:
        """[streams, T, C] -> [streams, T * ratio, C]."""
        ring, channels = rings[self.history], x.shape[2]
        x = self.upsample(x, streams, Output(ring)).view(len(x), self.rate, channels)
        hidden = torch.empty_like(x)
        launch(
            kernels.depthwise_norm, (len(x) * self.rate,),
            x=ring, rows=streams.rows, position=streams.position, weight=self.depthwise, bias=self.bias,
            norm=self.norm.weight, shift=self.norm.bias, out=hidden, T=self.rate, C=channels,
            TAPS=len(self.depthwise), FRAMES=ring.shape[1] // self.rate, EPS=self.norm.eps,
            BLOCK=power_of_2(channels), num_warps=4, **overlap(x.device),
        )  # fmt: skip
        return self.reduce(self.expand(hidden, streams), streams, to, residual=x)


class PackedUnit:
    """A residual unit whose input, activated, is in a ring of its own."""

    def __init__(self, unit: ResidualUnit) -> None:
        self.before = PackedSnake.of(unit.act1)
        first, second = PackedConv.of(unit.conv1), PackedLinear.of_conv(unit.conv2)
        self.weight = torch.cat([first.weight, second.weight])  # of both
        self.first = replace(first, weight=self.weight[: len(first.weight)])
        self.second = replace(second, weight=self.weight[len(first.weight) :])
        self.between = PackedSnake.of(unit.act2)

    def __call__(self, x: Tensor, streams: Streams, rings: Rings, to: Output) -> Tensor:
        """x, of streams * rate * C numbers, is the unit's input before activation -> [streams, rate, C]."""
        ring, rate, channels = rings[self.first.history], self.first.rate, len(self.second.weight)
        warpgroups = x.element_size() == 2 and has_warpgroups(x.device)
        tile = tiles.unit_tile(len(x) * rate, rate, channels, warpgroups=warpgroups)
        if tile is None:
            hidden = torch.empty_like(x)
            self.first(ring, streams, Output(hidden, self.between, raw=False))
            return self.second(hidden, streams, to, residual=x)
        shared: dict[str, Any] = {
            **self.first.ring_arguments(ring, streams), "between_alpha": self.between.alpha,
            "between_beta": self.between.beta, "pointwise_bias": self.second.bias,
        }  # fmt: skip
        if not tile.loaders:
            return _run(
                kernels.unit, ring, streams, rate, channels, to, tile, pointwise=self.second.weight, residual=x,
                **shared,
            )  # fmt: skip
        from agent_tts.model.kernels import many_steps  # older versions of triton cannot import it

        out = x.new_empty(len(x), rate, channels) if to.raw else None
        shared |= to.arguments(rate, channels) | many_steps.operands(self.weight, x, out, to.ring, tile)
        steps = len(streams.position) * rate
        launch(
            many_steps.kernel, (min(tiles.BLOCKS // 2, -(-tile.count(steps, channels) // tile.groups)),),
            x=ring, position=streams.position, M=steps, BM=tile.rows, **overlap(x.device), **shared,
        )  # fmt: skip
        return cast(Tensor, out)


class PackedBlock:
    """A decoder block, whose input, activated, is in a ring."""

    def __init__(self, block: DecoderBlock) -> None:
        snake, upsample, *units = cast(Any, block.block)
        self.before = PackedSnake.of(snake)
        self.upsample = PackedConv.of(upsample)
        self.units = [PackedUnit(unit) for unit in units]
        # The first unit's activation, for each step of the upsampling's output.
        self.after = PackedSnake.of(units[0].act1, upsample.stride)

    def __call__(self, streams: Streams, rings: Rings, to: Output) -> None:
        first, *others = self.units
        x = self.upsample(rings[self.upsample.history], streams, Output(rings[first.first.history], self.after))
        outputs = [Output(rings[unit.first.history], unit.before) for unit in others]
        for unit, output in zip(self.units, [*outputs, to], strict=True):
            x = unit(x, streams, rings, output)


class FastCodec:
    """The step of a loaded codec, in bfloat16 or float16; keeps a copy of the weights, 0.2 GB."""

    @torch.no_grad()
    def __init__(self, codec: Codec) -> None:
        config, transformer = codec.config, codec.pre_transformer
        first, *blocks, snake, last = cast(Any, codec.decoder)
        self._config = config
        self._table = _projected_codebooks(codec)
        self._pre_conv = PackedConv.of(codec.pre_conv)
        self._enter = PackedLinear.of(transformer.input_proj)
        self._layers = [PackedLayer(layer) for layer in cast(Any, transformer.layers)]
        self._leave = PackedLinear.of(transformer.output_proj, norm=transformer.norm)
        steps = torch.arange(0, config.head_dim, 2, device=self._table.device, dtype=torch.float32)
        self._frequencies = 1.0 / config.rope_theta ** (steps / config.head_dim)
        self._upsamplings = [PackedUpsampling(upsampling) for upsampling in cast(Any, codec.upsample)]
        self._first = PackedConv.of(first)
        self._blocks = [PackedBlock(block) for block in blocks]
        self._last = PackedConv.of(last)
        # Ring and activation of the input of each block and of the last convolution.
        self._inputs = [(block.upsample.history, block.before) for block in self._blocks]
        self._inputs.append((self._last.history, PackedSnake.of(snake)))

    @torch.inference_mode()
    def step(self, state: CodecState, codes: Tensor, run: Tensor, rows: Tensor | None = None) -> Tensor:
        """As `Codec.step`."""
        streams = Streams(rows, state.position.new_empty(len(run)))
        rings = state.histories
        x = self._transform(self._quantize(state, codes, run, streams), state, streams)
        *upsamplings, last = self._upsamplings
        for upsampling in upsamplings:
            x = upsampling(x, streams, rings)
        last(x, streams, rings, Output(rings[self._first.history], raw=False))
        inputs = [Output(rings[history], snake, raw=False) for history, snake in self._inputs]
        self._first(rings[self._first.history], streams, inputs[0])
        for block, to in zip(self._blocks, inputs[1:], strict=True):
            block(streams, rings, to)
        return waveform(self._last, rings[self._last.history], streams, run)

    def _quantize(self, state: CodecState, codes: Tensor, run: Tensor, streams: Streams) -> Tensor:
        """Codes -> [streams, 1, latent]. Tells the streams their position, and moves those that run on in the state."""
        books, size, channels = self._table.shape
        ring = state.histories[self._pre_conv.history]
        launch(
            kernels.quantize, (len(run),),
            codes=codes, run=run, rows=streams.rows, position=state.position, place=streams.position,
            table=self._table, ring=ring, SIZE=size, BOOKS=books, C=channels, FRAMES=ring.shape[1],
            BLOCK=power_of_2(channels), num_warps=2, **overlap(ring.device),
        )  # fmt: skip
        return self._pre_conv(ring, streams, overlaps=False)

    def _transform(self, x: Tensor, state: CodecState, streams: Streams) -> Tensor:
        config = self._config
        heads, half, window = config.num_attention_heads, config.head_dim // 2, config.sliding_window
        slots = power_of_2(window + 1) // 2
        x = self._enter(x, streams)
        for layer, keys, values in zip(self._layers, state.keys, state.values, strict=True):
            qkv = layer.qkv(x, streams)
            mixed = x.new_empty(len(x), 1, heads * 2 * half)
            launch(
                kernels.attention, (len(x), heads),
                qkv=qkv, rows=streams.rows, position=streams.position, keys=keys, values=values, out=mixed,
                frequencies=self._frequencies, scale=config.head_dim**-0.5,
                WINDOW=window, HEADS=heads, HALF=half, SLOTS=slots, MORE=power_of_2(window + 1 - slots), num_warps=1,
                **overlap(x.device),
            )  # fmt: skip
            x = layer.out(mixed, streams, residual=x)
            x = layer.down(layer.gate(x, streams), streams, residual=x)
        return self._leave(x, streams)


def waveform(conv: PackedConv, ring: Tensor, streams: Streams, run: Tensor) -> Tensor:
    """The ring of a convolution to one channel -> float32[streams, rate] within -1 and 1; zeros where not `run`."""
    channels, tile = ring.shape[2], 128
    out = torch.empty(len(run), conv.rate, dtype=torch.float32, device=ring.device)
    launch(
        kernels.waveform, (len(run) * -(-conv.rate // (tile - conv.taps + 1)),),
        x=ring, rows=streams.rows, position=streams.position, run=run, weight=conv.weight, bias=conv.bias, out=out,
        T=conv.rate, C=channels, TAPS=conv.taps, FRAMES=ring.shape[1] // conv.rate, BM=tile,
        BLOCK=max(16, power_of_2(channels)), WIDE_TAPS=max(16, power_of_2(conv.taps)), num_warps=4,
        **overlap(ring.device),
    )  # fmt: skip
    return out


def _projected_codebooks(codec: Codec) -> Tensor:
    """[codebooks, codes, channels]: each code's vector after the projection of its quantizer."""
    tables = []
    for quantizer in cast(Any, codec.quantizer.values()):
        projection = quantizer.output_proj.weight[..., 0].float().t()
        for book in quantizer.codebooks:
            codes = torch.arange(len(book.cluster_usage), device=projection.device)
            tables.append((book(codes).float() @ projection).to(book.embedding_sum.dtype))
    return torch.stack(tables)


# ---------------------------------------------------------------- the watermark

# A convolution of kernel 2s and stride s is one of two taps, whose inputs are s steps of all channels; the first, of
# one channel, one of two taps of 16 samples each.
_SAMPLES = 16  # of a tap of the first convolution
_UNITS = 16  # of an LSTM layer that one program computes
_MOST_OUTPUTS = 4_096  # columns of a product


def _pack_enter(conv: CausalConv) -> PackedConv:
    outputs, _, taps = conv.conv.weight.shape
    weight = conv.conv.weight.new_zeros(2, _SAMPLES, _SAMPLES, outputs)
    for step in range(_SAMPLES):
        for tap in range(taps):
            block, sample = divmod(step + tap - (taps - 1) + _SAMPLES, _SAMPLES)
            weight[block, sample, step] = conv.conv.weight[:, 0, tap]
    bias = cast(Tensor, conv.conv.bias).repeat(_SAMPLES)
    packed = weight.view(2 * _SAMPLES, _SAMPLES * outputs)
    return PackedConv(packed, bias, FRAME_SAMPLES // _SAMPLES, taps=2, history=conv.history.index)


class PackedRecurrence:
    """LSTM layers with a skip."""

    def __init__(self, recurrence: Recurrence, rate: int) -> None:
        self._rate = rate
        self._layers = []
        for layer in range(LSTM_LAYERS):
            ins, hidden, *biases = (
                recurrence.lstm.get_parameter(f"{name}_l{layer}")
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            linear = PackedLinear(ins.t().contiguous(), biases[0] + biases[1], rate)
            rings = [cast(Any, histories[layer]).index for histories in (recurrence.hidden, recurrence.cell)]
            self._layers.append((linear, hidden.t().contiguous(), rings))

    def __call__(self, x: Tensor, streams: Streams, rings: Rings, to: Output) -> None:
        """x [streams, rate, H], and what the layers make of it, through ELU into the ring of `to`."""
        count, rate, size = x.shape
        assert to.ring is not None
        assert to.snake is not None
        rows, block = max(16, min(64, power_of_2(count))), min(_UNITS, size)
        source = x
        for number, (linear, weight, (hidden, cell)) in enumerate(self._layers, 1):
            out, inputs, is_last = torch.empty_like(x), linear(source, streams), number == len(self._layers)
            for step in range(rate):
                launch(
                    kernels.lstm, (-(-count // rows) * -(-size // block),),
                    inputs=inputs, weight=weight, hidden=rings[hidden], cell=rings[cell], rows=streams.rows,
                    position=streams.position, residual=x if is_last else None, out=out,
                    ring=to.ring if is_last else None, alpha=to.snake.alpha if is_last else None, M=count, step=step,
                    ring_frames=to.ring[0].numel() // (rate * size), FIRST=step == 0, LAST=step == rate - 1,
                    T=rate, H=size, BM=rows, BN=block, BK=min(64, size), STAGES=4, num_warps=4,
                )  # fmt: skip
            source = out


@dataclass(frozen=True, slots=True, eq=False)
class PackedWatermarkUnit:
    """A residual unit, whose input, activated, is in a ring."""

    first: PackedConv
    second: PackedLinear

    @classmethod
    def of(cls, unit: WatermarkUnit) -> PackedWatermarkUnit:
        return cls(PackedConv.of(unit.first), PackedLinear.of_conv(unit.second))

    def __call__(self, x: Tensor, streams: Streams, rings: Rings, elu: PackedSnake, to: Tensor) -> None:
        """x [streams, rate, C], and the unit's part, through ELU into the ring `to`."""
        ring, rate = rings[self.first.history], self.first.rate
        hidden = x.new_empty(len(streams.position), rate, self.first.weight.shape[1])
        self.first(ring, streams, Output(hidden, elu, raw=False))
        self.second(hidden, streams, Output(to, elu, raw=False), residual=x)


class FastWatermark:
    """The step of a loaded watermark, in bfloat16 or float16; keeps a copy of the weights, 29 MB."""

    @torch.no_grad()
    def __init__(self, watermark: Watermark) -> None:
        encoder, decoder = watermark.encoder, watermark.decoder
        self._elu = PackedSnake(torch.ones(_MOST_OUTPUTS, device=watermark.bits.weight.device), None)
        self._enter = _pack_enter(encoder.enter)
        self._down = [(PackedWatermarkUnit.of(unit), PackedConv.of(conv)) for unit, conv in pairs(encoder.down)]
        self._narrow = PackedConv.of(encoder.leave)
        self._narrow = replace(self._narrow, bias=self._narrow.bias + watermark.message_vector)
        self._encoded = PackedRecurrence(encoder.recurrence, self._narrow.rate)
        self._widen = PackedConv.of(decoder.enter)
        self._decoded = PackedRecurrence(decoder.recurrence, self._widen.rate)
        self._up = [(PackedConv.of(conv), PackedWatermarkUnit.of(unit)) for conv, unit in pairs(decoder.up)]
        self._leave = PackedConv.of(decoder.leave)

    @torch.inference_mode()
    def step(self, state: CodecState, sound: Tensor, run: Tensor, rows: Tensor | None = None) -> Tensor:
        """As `Watermark.step`."""
        everyone = torch.arange(len(run), device=run.device) if rows is None else rows
        position = state.position[everyone]
        streams, rings, elu = Streams(rows, position), state.histories, self._elu
        samples = rings[self._enter.history]
        samples.view(len(samples), -1, FRAME_SAMPLES)[everyone, position % 2] = sound.to(samples.dtype)
        x, conv = samples, self._enter
        for unit, down in self._down:
            x = conv(x, streams, Output(rings[unit.first.history], elu))
            unit(x, streams, rings, elu, rings[down.history])
            x, conv = rings[down.history], down
        x = conv(x, streams)
        self._encoded(x, streams, rings, Output(rings[self._narrow.history], elu))
        self._narrow(rings[self._narrow.history], streams, Output(rings[self._widen.history], raw=False))
        x = self._widen(rings[self._widen.history], streams)
        ups = [rings[up.history] for up, _ in self._up]
        self._decoded(x, streams, rings, Output(ups[0], elu))
        for (up, unit), source, to in zip(self._up, ups, [*ups[1:], rings[self._leave.history]], strict=True):
            x = up(source, streams, Output(rings[unit.first.history], elu))
            unit(x, streams, rings, elu, to)
        mark = waveform(self._leave, rings[self._leave.history], streams, run)
        state.position[everyone] = position + run
        return mark
