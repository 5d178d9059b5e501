"""What a watermark costs a frame on a GPU, and how near the fused kernels come to float32.

    python3 -m tests.measure.watermark_cost [BATCH ...]      default: 1 16 64 256

The generator has the released sizes and random weights, on which neither depends. Prints for each batch milliseconds,
as CUDA graphs (median of 50 replays): of the step, of its LSTM layers, of the step by the modules, and of the codec's
frame; then the signal-to-noise ratio of the kernels' watermark in float16 against the modules in float32, in dB.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from agent_tts.bench.frame import _milliseconds, synthetic, versions
from agent_tts.model.codec import CodecState
from agent_tts.model.codec_fast import FastWatermark, Output, Streams
from agent_tts.model.device import Device
from agent_tts.model.speech import accelerate
from agent_tts.model.watermark import Watermark

FRAMES = 8


def noise(rows: int, device: torch.device) -> Tensor:
    """Frames float32[FRAMES, rows, 1920] of changing loudness."""
    generator = torch.Generator(device).manual_seed(1)
    sound = torch.randn(FRAMES, rows, 1_920, generator=generator, device=device)
    return sound * torch.linspace(0.02, 0.3, FRAMES, device=device)[:, None, None]


def milliseconds(watermark: Watermark, batch: int, *, fused: bool) -> float:
    """Of one step."""
    device, dtype = watermark.bits.weight.device, watermark.bits.weight.dtype
    state = watermark.init_state(batch + 1, device, dtype)
    step = FastWatermark(watermark).step if fused else watermark.step
    everyone = torch.ones(batch, dtype=torch.bool, device=device)
    return _milliseconds(partial(step, state, noise(batch, device)[0], everyone, torch.arange(batch, device=device)))


def recurrent_milliseconds(watermark: Watermark, batch: int) -> float:
    """Of the LSTM layers in one fused step: 24 launches, each of which waits for the one before."""
    device, dtype = watermark.bits.weight.device, watermark.bits.weight.dtype
    state, fast = watermark.init_state(batch + 1, device, dtype), FastWatermark(watermark)
    rows = torch.arange(batch, device=device)
    streams = Streams(rows, state.position[rows])
    x = torch.randn(batch, 6, 512, device=device, dtype=dtype)
    to = Output(state.histories[watermark.encoder.leave.history.index], fast._elu)

    def both() -> None:
        fast._encoded(x, streams, state.histories, to)
        fast._decoded(x, streams, state.histories, to)

    return _milliseconds(both)


def ratio_db(plain: Watermark, fast: FastWatermark, rows: int) -> float:
    """Signal to noise, in dB, of `fast` in float16 against `plain` in float32."""
    device = plain.bits.weight.device
    states: list[CodecState] = [plain.init_state(rows, device, dtype) for dtype in (torch.float32, torch.float16)]
    everyone = torch.ones(rows, dtype=torch.bool, device=device)
    signal = error = 0.0
    for frame in noise(rows, device):
        wanted, found = plain.step(states[0], frame, everyone), fast.step(states[1], frame, everyone)
        signal += wanted.square().sum().item()
        error += (wanted - found).square().sum().item()
    return 10 * math.log10(signal / max(error, 1e-30))


def main(batches: Sequence[int]) -> None:
    device = torch.device("cuda:0")
    Device.of(device).use()
    print(json.dumps(versions()))
    torch.manual_seed(0)
    plain = Watermark().eval().requires_grad_(False).to(device)
    torch.manual_seed(0)
    half = Watermark().eval().requires_grad_(False).to(device, torch.float16)
    model = synthetic("1.7B")
    model.codec.to(torch.float16)
    accelerate(model)
    for batch in batches:
        fused, modules = (milliseconds(half, batch, fused=fused) for fused in (True, False))
        state = model.codec.init_state(batch, device, torch.float16)
        codes = torch.randint(1_024, (batch, 16), device=device)
        run = torch.ones(batch, dtype=torch.bool, device=device)
        codec = _milliseconds(partial(model.decode, state, codes, run, None))
        lstm = recurrent_milliseconds(half, batch)
        found = {"ms": fused, "lstm": lstm, "modules": modules, "codec": codec}
        print(json.dumps({"batch": batch} | {name: round(value, 4) for name, value in found.items()}))
    print(json.dumps({"float16 against float32, dB": round(ratio_db(plain, FastWatermark(half), 16), 1)}))


if __name__ == "__main__":
    main([int(batch) for batch in sys.argv[1:]] or [1, 16, 64, 256])
