"""An inaudible watermark in speech, AudioSeal's streaming models: a generator, 80 ms of every row in, their watermark
out; and a detector of whole clips.

* samples -> convolutions, 320 times fewer steps -> LSTM -> 128 channels, plus a message of 16 bits -> the way back
* causal: the watermark of a frame depends on its samples and those before
* exact: frame by frame equals the generator over the whole stream. (The library's own `streaming` keeps no past in
  the released version: it marks each piece as if it were a stream of its own.)
* a stream is a row, as in the codec, whose layers and states are used here
"""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_tts.errors import to_install
from agent_tts.model.codec import CausalConv, CausalUpsample, CodecState, History, NextFrame, Past, Streamed, WholeClip
from agent_tts.model.config import FRAME_SAMPLES
from agent_tts.model.entries import CheckpointError
from agent_tts.model.weights import Loadable

# The released generator: channels of its first layer, factors between the rates of its layers, channels at the end.
FILTERS, RATIOS, DIMENSION, LSTM_LAYERS = 32, (2, 4, 5, 8), 128, 2
BITS = 16  # of a message
SPREAD = 32  # channels of the detector at the rate of the samples
PIECE = 125 * FRAME_SAMPLES  # samples, 10 s, that the detector takes at once: a long clip would take gigabytes


class WatermarkLevel(NamedTuple):
    """Between two rates: steps a frame and channels outside, towards the samples, and inside."""

    ratio: int
    fast: int
    slow: int
    outer: int
    inner: int


def _levels(filters: int, ratios: Sequence[int]) -> list[WatermarkLevel]:
    """From the samples on."""
    rates = [FRAME_SAMPLES // factor for factor in accumulate(ratios, mul, initial=1)]
    widths = [filters << level for level in range(len(rates))]
    return [WatermarkLevel(*each) for each in zip(ratios, rates[:-1], rates[1:], widths[:-1], widths[1:], strict=True)]


class WatermarkUnit(nn.Module):
    """A residual unit: [B, C, T] -> [B, C, T]."""

    def __init__(self, channels: int, *, rate: int) -> None:
        super().__init__()
        self.first = CausalConv(channels, channels // 2, 3, rate=rate)
        self.second = CausalConv(channels // 2, channels, 1, rate=rate)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        out: Tensor = self.second(F.elu(self.first(F.elu(x), past)), past)
        return x + out


class Recurrence(nn.Module):
    """LSTM layers with a skip around all: [B, C, T] -> [B, C, T]. One hidden and one cell vector a frame is kept."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(channels, channels, LSTM_LAYERS)
        self.hidden = nn.ModuleList(History(channels, 1, 1) for _ in range(LSTM_LAYERS))
        self.cell = nn.ModuleList(History(channels, 1, 1) for _ in range(LSTM_LAYERS))

    def forward(self, x: Tensor, past: Past) -> Tensor:
        kept = [self.hidden, self.cell]
        # Reading writes zeros where this frame's vectors follow.
        before = [[history(torch.zeros_like(x[..., :1]), past)[..., 0] for history in layers] for layers in kept]
        out, after = self.lstm(x.permute(2, 0, 1), [torch.stack(layers) for layers in before])
        for layers, vectors in zip(kept, after, strict=True):
            for history, vector in zip(layers, vectors, strict=True):
                history(vector[..., None], past)
        return x + out.permute(1, 2, 0)


class WatermarkEncoder(nn.Module):
    """Samples [B, 1, T] -> [B, dimension, T / 320]. `ratios`, from the samples on, multiply to a divisor of a frame."""

    def __init__(self, filters: int, ratios: Sequence[int], dimension: int) -> None:
        super().__init__()
        self.levels = _levels(filters, ratios)
        self.enter = CausalConv(1, filters, 7, rate=FRAME_SAMPLES)
        self.down = nn.ModuleList()
        for level in self.levels:
            downsample = CausalConv(level.outer, level.inner, 2 * level.ratio, rate=level.fast, stride=level.ratio)
            self.down += [WatermarkUnit(level.outer, rate=level.fast), downsample]
        inner = self.levels[-1]
        self.recurrence = Recurrence(inner.inner)
        self.leave = CausalConv(inner.inner, dimension, 7, rate=inner.slow)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        x = self.enter(x, past)
        for unit, downsample in pairs(self.down):
            x = downsample(F.elu(unit(x, past)), past)
        return self.leave(F.elu(self.recurrence(x, past)), past)

    def checkpoint_name(self, name: str) -> str:
        part, _, rest = name.partition(".")
        last = 3 * len(self.levels)
        if part == "down":
            index, _, rest = rest.partition(".")
            level, is_conv = divmod(int(index), 2)
            return f"model.{3 * level + 3}.conv.{rest}" if is_conv else f"model.{3 * level + 1}.{_in_unit(rest)}"
        number = {"enter": 0, "recurrence": last + 1, "leave": last + 3}[part]
        return f"model.{number}.{rest if part == 'recurrence' else f'conv.{rest}'}"


class WatermarkDecoder(nn.Module):
    """[B, dimension, T / 320] -> samples [B, 1, T]."""

    def __init__(self, filters: int, ratios: Sequence[int], dimension: int) -> None:
        super().__init__()
        self.levels = _levels(filters, ratios)
        inner = self.levels[-1]
        self.enter = CausalConv(dimension, inner.inner, 7, rate=inner.slow)
        self.recurrence = Recurrence(inner.inner)
        self.up = nn.ModuleList()
        for level in reversed(self.levels):
            upsample = CausalUpsample(level.inner, level.outer, 2 * level.ratio, level.ratio, rate=level.slow)
            self.up += [upsample, WatermarkUnit(level.outer, rate=level.fast)]
        self.leave = CausalConv(filters, 1, 7, rate=FRAME_SAMPLES)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        x = self.recurrence(self.enter(x, past), past)
        for upsample, unit in pairs(self.up):
            x = unit(upsample(F.elu(x), past), past)
        return self.leave(F.elu(x), past)

    def checkpoint_name(self, name: str) -> str:
        part, _, rest = name.partition(".")
        if part == "up":
            index, _, rest = rest.partition(".")
            level, is_unit = divmod(int(index), 2)
            if is_unit:
                return f"model.{3 * level + 4}.{_in_unit(rest)}"
            return f"model.{3 * level + 3}.convtr.convtr.{rest.partition('.')[2]}"
        number = {"enter": 0, "recurrence": 1, "leave": 3 * len(self.levels) + 3}[part]
        return f"model.{number}.{rest if part == 'recurrence' else f'conv.{rest}'}"


class Watermark(Streamed):
    """The generator; `message` is the number that all audio carries."""

    def __init__(self, filters: int = FILTERS, ratios: Sequence[int] = RATIOS, dimension: int = DIMENSION) -> None:
        super().__init__()
        self.encoder = WatermarkEncoder(filters, ratios, dimension)
        self.decoder = WatermarkDecoder(filters, ratios, dimension)
        self.bits = nn.Embedding(2 * BITS, dimension)
        self.message = 0
        self.number_histories()

    @property
    def message_vector(self) -> Tensor:
        """[dimension]: what the message adds to every step in the middle."""
        bits = torch.arange(BITS, device=self.bits.weight.device)
        return self.bits(2 * bits + (self.message >> bits & 1)).sum(0)

    @torch.inference_mode()
    def step(self, state: CodecState, sound: Tensor, run: Tensor, rows: Tensor | None = None) -> Tensor:
        """The watermark of one frame, float32[B, 1920], to be added to its `sound`; otherwise as `Codec.step`."""
        past = NextFrame(state, rows)
        mark = self(sound[:, None].to(self.bits.weight.dtype), past)
        past.advance(run)
        return mark[:, 0].float().masked_fill(~run[:, None], 0)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        """[B, 1, T] after what is past -> [B, 1, T]."""
        return self.decoder(self.encoder(x, past) + self.message_vector[:, None], past)

    def checkpoint_name(self, name: str) -> str:
        part, _, rest = name.partition(".")
        if part == "bits":
            return f"msg_processor.msg_processor.{rest}"
        return f"{part}.{getattr(self, part).checkpoint_name(rest)}"


class Detector(Loadable):
    """Which samples of a clip carry a watermark, and its message."""

    def __init__(self, filters: int = FILTERS, ratios: Sequence[int] = RATIOS, dimension: int = DIMENSION) -> None:
        super().__init__()
        self.encoder = WatermarkEncoder(filters, ratios, dimension)
        hop = math.prod(ratios)
        self.spread = nn.ConvTranspose1d(dimension, SPREAD, hop, stride=hop)
        self.score = nn.Conv1d(SPREAD, 2 + BITS, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Samples [B, 1, T] -> [B, 2 + 16, T]: logits of none and of one, and of each bit of the message."""
        length = x.shape[-1]
        x = F.pad(x, (0, -length % FRAME_SAMPLES))
        past = WholeClip(x.shape[-1] // FRAME_SAMPLES, 1, x.device)
        out: Tensor = self.score(self.spread(self.encoder(x, past)))
        return out[..., :length]

    @torch.inference_mode()
    def detect(self, sound: Tensor) -> tuple[float, int]:
        """Samples float32[T] -> how much of them carries a watermark, 0 to 1, and its message, random where none is."""
        pieces = [self(piece[None, None])[0] for piece in torch.split(sound, PIECE)]
        scores = torch.cat(pieces, dim=-1)
        marked = (scores[:2].softmax(0)[1] > 0.5).float().mean().item()
        bits = scores[2:].mean(-1) > 0
        return marked, sum(1 << number for number, bit in enumerate(bits.tolist()) if bit)

    def checkpoint_name(self, name: str) -> str:
        part, _, rest = name.partition(".")
        if part == "encoder":
            return f"detector.0.{self.encoder.checkpoint_name(rest)}"
        return f"detector.0.reverse_convolution.{rest}" if part == "spread" else f"detector.1.{rest}"


def pairs(modules: nn.ModuleList) -> list[tuple[Any, Any]]:
    """The 1st and 2nd module, the 3rd and 4th, and so on."""
    return list(zip(cast(Any, modules[::2]), cast(Any, modules[1::2]), strict=True))


def _in_unit(name: str) -> str:
    part, _, rest = name.partition(".")
    return f"block.{1 if part == 'first' else 3}.conv.{rest}"


# ---------------------------------------------------------------- the released weights

# As torch.save writes them. Only tensors and the configuration beside them are read (`weights_only`): a file cannot run
# code.
GENERATOR, DETECTOR = "generator_streaming.pth", "detector_streaming.pth"

M = TypeVar("M", bound=Loadable)


def load_watermark(folder: Path, message: int = 0) -> Watermark:
    """The generator in a folder, float32 on the CPU. Raises CheckpointError: it cannot be used."""
    watermark = _filled(Watermark, folder / GENERATOR, "encoder.model.")
    watermark.message = message
    return watermark


def load_detector(folder: Path) -> Detector:
    """The detector in a folder, float32 on the CPU. Raises CheckpointError: it cannot be used."""
    return _filled(Detector, folder / DETECTOR, "detector.0.model.")


def _filled(kind: type[M], path: Path, encoder: str) -> M:
    tensors = _without_norm(_read(path))
    try:
        filters = len(tensors[f"{encoder}0.conv.conv.weight"])
        convs = (tensors.get(f"{encoder}{number}.conv.conv.weight") for number in range(3, 40, 3))
        ratios = [conv.shape[-1] // 2 for conv in convs if conv is not None and conv.shape[-1] % 2 == 0]
        dimension = len(tensors[f"{encoder}{3 * len(ratios) + 3}.conv.conv.weight"])
        model = kind(filters, ratios, dimension)
        ours = {name: tensors.pop(model.checkpoint_name(name)) for name in model.state_dict()}
        model.load_state_dict(ours)
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(f"{path.name}: not the weights of AudioSeal 0.2's streaming models: {error}") from error
    if tensors:
        raise CheckpointError(f"{path.name}: {len(tensors)} tensors that are not known here, {min(tensors)} first")
    return model.eval().requires_grad_(False)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise CheckpointError(f"{path.name}: missing from {path.parent.name}")
    try:
        with torch.serialization.safe_globals(_configuration()):
            found: Any = torch.load(path, map_location="cpu", weights_only=True)
        found = found["best_state"]["model"] if "best_state" in found else found.get("model", found)
        # The convolutions of newer files lie one module deeper.
        return {name.replace(".inner_conv.", "."): tensor.float() for name, tensor in found.items()}
    except Exception as error:  # a damaged file may raise any error
        hint = "" if find_spec("omegaconf") else f"; what reads its configuration is missing: {to_install('watermark')}"
        raise CheckpointError(f"{path.name}: cannot be read: {type(error).__name__}: {error}{hint}") from error


def _configuration() -> list[Any]:
    """The classes of the configuration that may stand beside the weights; none where omegaconf is not installed."""
    try:
        from omegaconf import DictConfig, ListConfig, nodes
        from omegaconf.base import ContainerMetadata, Metadata
    except ImportError:
        return []
    values = (nodes.AnyNode, nodes.StringNode, nodes.IntegerNode, nodes.FloatNode, nodes.BooleanNode)
    plain = (collections.defaultdict, dict, list, int, str, float, bool, Any)
    return [DictConfig, ListConfig, ContainerMetadata, Metadata, *values, *plain]


def _without_norm(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of convolutions as one tensor each: in a file they may be a direction and a length for each channel."""
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        name = name.replace(".parametrizations.weight.original0", ".weight_g")
        name = name.replace(".parametrizations.weight.original1", ".weight_v")
        plain[name] = tensor
    for name in [name for name in plain if name.endswith(".weight_g")]:
        base = name.removesuffix("_g")
        length, direction = plain.pop(name), plain.pop(f"{base}_v")
        plain[base] = torch._weight_norm(direction, length, 0)
    return plain
