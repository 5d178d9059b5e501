"""Weights and cache in e4m3, 8-bit floating point with 3 bits of mantissa, and how much they change a model.

The scale of a row is a power of 2: a weight times its scale is then exact in bfloat16, so what the kernels compute is
what modules compute with these weights, up to the order of sums. A finer scale would not round a weight any better:
what is left of the range of e4m3 are 13 powers of 2 below the largest weight of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from math import inf

import torch
from torch import Tensor, nn

from agent_tts.model.entries import CheckpointError
from agent_tts.model.frame import FrameModel
from agent_tts.model.layers import Cache, Transformer, TransformerLayer, Window

E4M3 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class EightBits:
    """What of a model is in e4m3.

    Embeddings, heads and projections never are: 2 % of what a step reads.
    """

    weights: bool = False  # of the linear layers of both transformers
    cache: bool = False  # of the talker, without scales: normed keys, and values, are far below 448

    def __bool__(self) -> bool:
        return self.weights or self.cache

    def __str__(self) -> str:
        settings = {"qwen3.weights: fp8": self.weights, "qwen3.kv_cache: fp8": self.cache}
        return " with ".join(name for name, used in settings.items() if used)


NOTHING = EightBits()


INTERLEAVED = 128  # inputs of a row whose order `Quantised.interleaved` changes


@dataclass(frozen=True, slots=True)
class Quantised:
    """A matrix whose row n is `values[n] * scale[n]`."""

    values: Tensor  # E4M3[N, K]
    scale: Tensor  # float32[N], powers of 2
    is_interleaved: bool = False

    @staticmethod
    def of(weight: Tensor) -> Quantised:
        """The nearest to a matrix of finite numbers."""
        _, exponents = torch.frexp(weight.abs().amax(dim=1).float() / torch.finfo(E4M3).max)
        scale = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents)
        return Quantised((weight.float() / scale[:, None]).to(E4M3), scale)

    def interleaved(self) -> Quantised:
        """The same in the order of `kernels.many_rows`, where K is a multiple of `INTERLEAVED`.

        Of each 16 inputs of a left side in registers, a thread has two pairs ("Register Fragments for
        wgmma.mma_async", PTX ISA). Those of 8 products are neighbours here, so that it reads them at once.
        """
        parts = self.values.view(len(self.values), -1, 8, 2, 4, 2)  # products, halves, threads, pairs
        return Quantised(parts.permute(0, 1, 4, 2, 3, 5).reshape_as(self.values), self.scale, is_interleaved=True)

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """[N, K], exact in bfloat16 and float32."""
        values = self.values.to(dtype)
        if self.is_interleaved:
            parts = values.view(len(values), -1, 4, 8, 2, 2)
            values = parts.permute(0, 1, 3, 4, 2, 5).reshape_as(values)
        return values * self.scale.to(dtype)[:, None]


ROWS, FRAMES = 4, 48  # that the models are compared on

# The most that e4m3 may change predictions, in multiples of what bfloat16 changes against float32. With random weights,
# each rounded on its own, it is 31 to 67 in every size and codebook (tests/measure/LOG.md). A model at twice that has
# weights that e4m3 cannot hold, such as rows of one large weight among small ones.
MOST = 128
LEAST = 1e-6  # nats: what bfloat16 counts as, where it changes less

# How a computation uses a module, such as a copy in another dtype.
_Change = Callable[[nn.Module], nn.Module]


@torch.inference_mode()
def distances(model: FrameModel, eight: EightBits) -> tuple[Tensor, Tensor]:
    """How much e4m3 changes the predictions of each codebook, and how much bfloat16 does against float32.

    Both float64[codebooks]: the mean Kullback-Leibler divergence, in nats, of predictions after given text and codes,
    the same at every call. The model is of modules, in bfloat16. Layers are copied one at a time.
    """
    exact, plain = _predictions(model, _in_float32), _predictions(model, _as_it_is)
    rounded = _predictions(model, _in_e4m3 if eight.weights else _as_it_is, Rounded if eight.cache else Window)
    return _divergences(plain, rounded), _divergences(exact, plain)


def _divergences(true: list[Tensor], other: list[Tensor]) -> Tensor:
    means = [(p.exp() * (p - q)).sum(-1).mean() for p, q in zip(true, other, strict=True)]
    return torch.stack(means).cpu()


def _as_it_is(module: nn.Module) -> nn.Module:
    return module


def _in_float32(module: nn.Module) -> nn.Module:
    return deepcopy(module).float()


def _in_e4m3(module: nn.Module) -> nn.Module:
    """Linear layers of a transformer alone: see `fused.fuse`."""
    if not isinstance(module, TransformerLayer):
        return module
    copied = deepcopy(module)
    for linear in copied.modules():
        if isinstance(linear, nn.Linear):
            linear.weight.copy_(Quantised.of(linear.weight).dequantised(linear.weight.dtype))
    return copied


class Rounded(Window):
    """For attention to keys and values in e4m3."""

    def seen(self, layer: Tensor, own: Tensor) -> Tensor:
        return own.to(E4M3).to(own.dtype)


def _predictions(model: FrameModel, change: _Change, window: type[Window] = Window) -> list[Tensor]:
    """Of each codebook, the logarithms of probabilities, float64[frames, codes]."""
    talker, predictor, codebooks = model.talker, model.predictor, model.config.talker.num_code_groups
    generator, device = torch.Generator().manual_seed(0), talker.norm.weight.device
    ids = torch.randint(model.config.talker.text_vocab_size, (ROWS, FRAMES), generator=generator)
    size = model.config.talker.code_predictor.vocab_size
    codes = torch.randint(size, (ROWS, FRAMES + 1, codebooks), generator=generator)
    ids, codes = ids.to(device), codes.to(device)
    dtype = change(talker.norm).get_parameter("weight").dtype
    tables = (talker.codec_embedding, *predictor.codec_embedding)
    said = torch.stack([table(codes[..., index]) for index, table in enumerate(tables)], dim=2).to(dtype)
    text = change(talker.text_projection)(talker.text_embedding(ids).to(dtype))
    hidden = _run(talker, text + said[:, :-1].sum(2), change, window).flatten(0, 1)
    inputs = torch.cat((hidden[:, None], said[:, 1:, :-1].flatten(0, 1)), dim=1)
    out = _run(predictor, change(predictor.small_to_mtp_projection)(inputs), change)
    heads = [talker.codec_head, *predictor.lm_head]
    states = [hidden, *out.unbind(1)[1:]]
    return [change(head)(state).double().log_softmax(-1) for head, state in zip(heads, states, strict=True)]


def _run(transformer: Transformer, x: Tensor, change: _Change, kind: type[Window] = Window) -> Tensor:
    """All positions of rows at once: [B, T, H] -> [B, T, H]."""
    rows, count = x.shape[:2]
    cache = Cache.empty(replace(transformer.shape, num_hidden_layers=1), rows, count, x)
    plain = transformer.window(torch.arange(count, device=x.device).expand(rows, -1), None, cache)
    window = kind(**{field.name: getattr(plain, field.name) for field in fields(Window)})
    for layer in transformer.layers:
        x = change(layer)(x, cache.keys[0], cache.values[0], window)
    return change(transformer.norm)(x)


def check(model: FrameModel, eight: EightBits) -> str:
    """The `distances` of a model in words, for a log.

    Raises:
        CheckpointError: e4m3 changes a codebook more than `MOST` times as much as bfloat16.
    """
    far, near = distances(model, eight)
    times, codebook = (far / near.clamp(min=LEAST)).nan_to_num(nan=inf).max(0)
    said = f"{far[codebook]:.2g} nats in codebook {codebook}, {times:.0f} times as much as bfloat16's from float32"
    if times > MOST:
        raise CheckpointError(f"{eight} changes predictions by {said}, over {MOST} times: use bfloat16")
    return f"predictions differ by at most {said}"


def saved_bytes(model: FrameModel, dtype: torch.dtype) -> int:
    """What e4m3 saves of the memory of weights in another dtype."""
    layers = [*model.talker.layers, *model.predictor.layers]
    shapes = [linear.weight.shape for layer in layers for linear in layer.modules() if isinstance(linear, nn.Linear)]
    return sum(rows * (columns * (dtype.itemsize - E4M3.itemsize) - torch.float32.itemsize) for rows, columns in shapes)
