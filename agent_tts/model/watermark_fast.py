"""The watermark's step on a GPU: the function of `Watermark.step` on the same state, by the kernels of the codec.

A convolution of kernel 2s and stride s is one of two taps, whose inputs are s steps of all channels; the first, of one
channel, one of two taps of 16 samples each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from agent_tts.model.codec import CausalConv, CodecState
from agent_tts.model.codec_fast import Output, PackedConv, PackedLinear, PackedSnake, Rings, Streams, waveform
from agent_tts.model.config import FRAME_SAMPLES
from agent_tts.model.kernels import codec as kernels
from agent_tts.model.kernels.launch import launch, power_of_2
from agent_tts.model.watermark import LSTM_LAYERS, Downsample, Recurrence, Watermark, WatermarkUnit, pairs

_SAMPLES = 16  # of a tap of the first convolution
_UNITS = 16  # of an LSTM layer that one program computes
_MOST_OUTPUTS = 4_096  # columns of a product


def _pack_down(down: Downsample) -> PackedConv:
    weight = down.conv.weight.permute(2, 1, 0).reshape(-1, down.conv.out_channels).contiguous()
    rate = down.history.rate // down.conv.stride[0]
    return PackedConv(weight, cast(Tensor, down.conv.bias), rate, taps=2, history=down.history.index)


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
        self._down = [(PackedWatermarkUnit.of(unit), _pack_down(conv)) for unit, conv in pairs(encoder.down)]
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
