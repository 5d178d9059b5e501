"""Every kernel equals the torch operations that it replaces, on random inputs of the released sizes."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent_tts.model import sampling
from agent_tts.model.layers import Cache, RMSNorm, TransformerLayer
from agent_tts.model.quantised import Quantised
from agent_tts.model.speech import SpeechModel

ROUNDING = 4e-3  # relative error of bfloat16 results with equal rounding and sums in another order

pytestmark = pytest.mark.gpu


def noise(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device="cuda") * scale).bfloat16()


def error(found: Tensor, expected: Tensor) -> float:
    difference: Tensor = (found.double() - expected.double()).norm() / expected.double().norm()
    return difference.item()


def linear_reference(
    x: Tensor,
    weight: Tensor,
    *,
    norm: Any = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    """`linear` in torch operations, as in the modules of `layers`."""
    if norm is not None:
        wide = x.double()
        x = norm.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)).to(x.dtype)
    out = F.linear(x, weight, bias)
    if gated:
        gate, up = out.chunk(2, dim=-1)
        out = F.silu(gate) * up
    return out if residual is None else residual + out


def is_near(found: Tensor, x: Tensor, weight: Tensor, **given: Any) -> bool:
    """Whether a product is as near to the exact one as the torch operations, which round between them."""
    wide: dict[str, Any] = {
        name: value.double() if isinstance(value, Tensor) else value for name, value in given.items()
    }
    exact = linear_reference(x.double(), weight.double(), **wide)
    return error(found, exact) < 1.1 * error(linear_reference(x, weight, **given), exact)


def laid_out(weight: Tensor, how: str) -> Tensor | Quantised:
    if how == "plain":
        return weight
    matrix = Quantised.of(weight)
    return matrix.interleaved() if how == "interleaved" else matrix


@pytest.mark.parametrize("how", ["plain", "e4m3", "interleaved"])
@pytest.mark.parametrize("rows", [1, 2, 3, 16, 33, 64, 100, 256, 257])
@pytest.mark.parametrize(
    ("outputs", "inputs", "normed", "gated", "residual"),
    [
        (4096, 2048, True, False, False),
        (2048, 2048, False, False, True),
        (6144, 2048, True, True, False),
        (2048, 6144, False, False, True),
        (4096, 1024, True, False, False),
        (1024, 2048, False, False, True),
        (3072, 1024, True, True, False),
        (1024, 3072, False, False, True),
    ],
)
def test_linear(rows: int, outputs: int, inputs: int, normed: bool, gated: bool, residual: bool, how: str) -> None:
    from agent_tts.model.kernels.linear import linear

    x, weight = noise(rows, inputs), noise(outputs * (1 + gated), inputs, scale=inputs**-0.5)
    matrix = laid_out(weight, how)
    if isinstance(matrix, Quantised):
        weight = matrix.dequantised(torch.bfloat16)
    norm = RMSNorm(inputs, 1e-6) if normed else None
    if norm is not None:
        norm.weight = nn.Parameter(noise(inputs), requires_grad=False)
    before = noise(rows, outputs) if residual else None
    for _ in range(2):  # the second run must not depend on what the first leaves behind
        found = linear(x, matrix, norm=norm, residual=None if before is None else before.clone(), gated=gated)
        assert is_near(found, x, weight, norm=norm, residual=before, gated=gated)


@pytest.mark.parametrize("how", ["plain", "interleaved"])
@pytest.mark.parametrize("rows", [1, 5, 16, 33, 64, 65, 128, 129, 256])
@pytest.mark.parametrize(("mixed", "hidden", "inner"), [(2048, 2048, 6144), (2048, 1024, 3072)])
def test_a_norm_behind_a_product(rows: int, mixed: int, hidden: int, inner: int, how: str) -> None:
    """Products of a layer one behind the other: each norm is that of what the one before has left."""
    from agent_tts.model.kernels.linear import Hidden, linear, linear_before

    norm = RMSNorm(hidden, 1e-6)
    norm.weight = nn.Parameter(noise(hidden), requires_grad=False)
    attended, before = noise(rows, mixed), noise(rows, hidden)
    sizes = {"out": (hidden, mixed), "down": (hidden, inner), "gate_up": (2 * inner, hidden), "qkv": (4096, hidden)}
    laid = {name: laid_out(noise(*size, scale=size[1] ** -0.5), how) for name, size in sizes.items()}
    plain = {name: one.dequantised(torch.bfloat16) if isinstance(one, Quantised) else one for name, one in laid.items()}
    for _ in range(2):
        left = linear_before(attended, laid["out"], Hidden(before.clone()), norm)
        assert is_near(left.x, attended, plain["out"], residual=before)
        gated = linear(left, laid["gate_up"], norm=norm, gated=True)
        assert is_near(gated, left.x, plain["gate_up"], norm=norm, gated=True)
        x = left.x.clone()  # cuBLAS adds in place
        last = linear_before(gated, laid["down"], left, norm)
        assert is_near(last.x, gated, plain["down"], residual=x)
        assert is_near(linear(last, laid["qkv"], norm=norm), last.x, plain["qkv"], norm=norm)


@torch.inference_mode()
def test_a_talker_layers_attention_over_blocks(model: SpeechModel) -> None:
    """Lengths around every boundary, blocks in any order, and a paused row."""
    from agent_tts.model.fused import FusedTalker
    from agent_tts.model.kernels.attention import Queries, Scratch, attend

    talker, config = model.frame.talker, model.frame.config.talker
    positions = torch.tensor([0, 1, 63, 64, 65, 511, 512, 700, 1022, 0], device="cuda")
    rows = len(positions)
    like = talker.norm.weight
    contiguous = Cache.empty(config, rows, 1024, like)
    positions[-1] = contiguous.padding_position
    contiguous.keys[0].normal_()
    contiguous.values[0].normal_()
    blocks = torch.randperm(rows * 32, device="cuda").view(rows, 32) + 1
    paged = Cache.paged(config, rows, 1024, rows * 32 + 1, 32, like)
    paged.block_table[:, :32] = blocks
    places = torch.where(positions == contiguous.padding_position, paged.padding_position, positions)
    for ours, theirs in ((paged.keys, contiguous.keys), (paged.values, contiguous.values)):
        ours[0][blocks] = theirs[0].view(rows, 32, 32, *theirs.shape[3:])

    fused = FusedTalker(model.frame)
    layer, module, heads = fused.layers[0], cast(TransformerLayer, talker.layers[0]).self_attn, fused.heads
    x = noise(rows, config.hidden_size)
    qkv = x @ cast(Tensor, layer.qkv).T
    seen: list[Tensor] = []
    hook = module.o_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0][:, 0]))
    module(
        x[:, None],
        contiguous.keys[0],
        contiguous.values[0],
        talker.window(positions[:, None], contiguous.padding_position, contiguous),
    )
    hook.remove()
    for split in (64, 128, 1024):
        scratch = Scratch.empty(rows, paged.padding_position + 1, heads, positions.device, split=split)
        queries = Queries(places, paged.block_table, paged.padding_position, scratch, together=False)
        found = qkv.new_empty(len(qkv), heads.queries * heads.dim)
        attend(layer.q_norm, layer.k_norm, heads, queries, paged.keys[0], paged.values[0], qkv, found)
        assert error(found[:-1], seen[0][:-1]) < 2 * ROUNDING
        assert not scratch.counters.any()
    written = paged.keys[0][blocks].flatten(1, 2)
    assert error(written[:-1], contiguous.keys[0][:-1]) < ROUNDING
    assert torch.equal(written[-1, :-1], contiguous.keys[0][-1, :-1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [2048, 3072])
@pytest.mark.parametrize(("top_k", "top_p"), [(50, 1.0), (0, 1.0), (1, 1.0), (0, 0.8), (50, 0.9)])
def test_a_draw(dtype: torch.dtype, size: int, top_k: int, top_p: float) -> None:
    """Equal except for logarithms that differ in the last bit and ties at the edge of top-p, which stay in here."""
    from agent_tts.model.kernels.sampling import draw

    rows = 512
    logits = (torch.randn(rows, size, device="cuda") * 3).to(dtype)
    logits[:, :100] = float("-inf")
    temperature = torch.empty(rows, device=logits.device).uniform_(0.5, 1.5)
    temperature[:7] = 0
    how = sampling.Warp(
        temperature,
        torch.full((rows,), top_k, device=logits.device),
        torch.full((rows,), top_p, device=logits.device),
    )
    seeds = torch.randint(-(2**63), 2**63 - 1, (rows,), device="cuda")
    frames = torch.randint(10_000, (rows,), device="cuda")
    found = draw(logits, how, seeds, frames, 3)
    expected = sampling.draw(logits.float(), how, seeds, frames, 3)
    assert (found != expected).sum() <= (2 if top_p == 1 else 16)
    assert torch.equal(found[:7], expected[:7])


@pytest.mark.parametrize("rows", [3, 64])
def test_a_draw_leaves_the_norm_of_what_follows(rows: int) -> None:
    """Bit for bit, as draws depend on it."""
    from agent_tts.model.kernels.linear import rms_norm
    from agent_tts.model.kernels.sampling import draw_following

    norm = RMSNorm(1024, 1e-6)
    norm.weight = nn.Parameter(1 + 0.3 * torch.randn(1024, device="cuda", dtype=torch.bfloat16), requires_grad=False)
    logits, table = (torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in ((rows, 2048), (2048, 1024)))
    ones = torch.ones(rows, device="cuda")
    how = sampling.Warp(ones, torch.full((rows,), 50, device="cuda"), ones)
    seeds, codes = torch.arange(rows, device="cuda"), torch.zeros(rows, 16, dtype=torch.int64, device="cuda")
    found = draw_following(logits, how, seeds, seeds, 3, None, codes, 3, table, norm)
    assert torch.equal(found.x, table[codes[:, 3]])
    assert found.normed is not None
    assert torch.equal(found.normed, rms_norm(found.x, norm))
