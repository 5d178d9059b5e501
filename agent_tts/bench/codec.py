"""What the codec's step costs on a GPU, and how near to float32 it stays, by weights drawn in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor

from agent_tts.bench.checkpoint_config import SIZES, codec_config
from agent_tts.bench.checkpoint_weights import distribution
from agent_tts.model.codec import Codec
from agent_tts.model.codec_state import CodecState
from agent_tts.model.config import CodecConfig
from agent_tts.model.weights import build

# As `Codec.step`: state, codes int64[rows, 16] and run bool[rows] -> float32[rows, 1920].
Step = Callable[[CodecState, Tensor, Tensor], Tensor]

BATCHES = (1, 8, 64, 256)
FRAMES_PAST = 100  # more than the window: every slot of it is read
WARM_UP, REPLAYS = 5, 50


def synthetic_codec(device: torch.device, dtype: torch.dtype, seed: int = 0) -> Codec:
    """A codec of the released size with random weights that keep activations of order one."""
    entries = codec_config(SIZES["1.7B"])["decoder_config"]
    codec = build(Codec, CodecConfig(**{field.name: entries[field.name] for field in fields(CodecConfig)}))
    generator = torch.Generator(device).manual_seed(seed)
    for ours, theirs in codec.checkpoint_names().items():
        owner, _, name = ours.rpartition(".")
        shape = tuple(codec.get_parameter(ours).shape)
        values = torch.empty(shape, device=device).normal_(*distribution(theirs, shape), generator=generator)
        setattr(codec.get_submodule(owner), name, torch.nn.Parameter(values.to(dtype), requires_grad=False))
    return codec.to(device)


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of one captured step."""

    batch: int
    frame_ms: float

    @property
    def stream_ms(self) -> float:
        """Per frame and stream."""
        return self.frame_ms / self.batch


def cost(codec: Codec, step: Step, batch: int, dtype: torch.dtype, device: torch.device) -> Cost:
    """Captures a step of `batch` running rows; the median of its replays, by the device's own clock."""
    state = codec.init_state(batch, device, dtype)
    state.position.fill_(FRAMES_PAST)
    codes, run = _codes(1, batch, device)[0], torch.ones(batch, dtype=torch.bool, device=device)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for _ in range(2):
            step(state, codes, run)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(state, codes, run)
    marks = [_mark() for _ in range(WARM_UP + REPLAYS + 1)]
    for mark in marks[:-1]:
        mark.record()
        graph.replay()
    marks[-1].record()
    torch.cuda.synchronize()
    return Cost(batch, median(begin.elapsed_time(end) for begin, end in pairwise(marks[WARM_UP:])))


def _mark() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def signal_to_noise(
    exact: Codec, other: Codec, step: Step, dtype: torch.dtype, *, rows: int = 2, frames: int = 90
) -> float:
    """Decibels of the waveform over its difference from that of `exact`, a float32 codec, frame by frame."""
    device = next(exact.parameters()).device
    reference, state = exact.init_state(rows, device, torch.float32), other.init_state(rows, device, dtype)
    run = torch.ones(rows, dtype=torch.bool, device=device)
    signal = noise = torch.zeros((), dtype=torch.float64, device=device)
    for codes in _codes(frames, rows, device):
        expected = exact.step(reference, codes, run).double()
        signal = signal + expected.square().sum()
        noise = noise + (step(state, codes, run).double() - expected).square().sum()
    return float(10 * torch.log10(signal / noise))


def _codes(frames: int, rows: int, device: torch.device) -> Tensor:
    """int64[frames, rows, 16]"""
    generator = torch.Generator(device).manual_seed(1)
    return torch.randint(0, 2048, (frames, rows, 16), generator=generator, device=device)
