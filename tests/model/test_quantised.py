"""Weights in e4m3: what they are, that kernels compute with them, and that a model which they change is refused."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor

from agent_tts.model.entries import CheckpointError
from agent_tts.model.frame import FrameModel
from agent_tts.model.layers import Cache, RMSNorm
from agent_tts.model.quantised import E4M3, MOST, EightBits, Quantised, check, distances, saved_bytes
from tests.model import tiny

pytestmark = pytest.mark.model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WEIGHTS, CACHE = EightBits(weights=True), EightBits(cache=True)


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def test_every_weight_is_rounded_to_three_bits_of_mantissa() -> None:
    weight = noise(64, 256, dtype=torch.bfloat16)
    weight[1:4] *= torch.tensor([[1e-20], [1e20], [0.0]])
    weight[5, 7], weight[6, 7] = 448, 450
    found = Quantised.of(weight)
    plain, exact = found.dequantised(torch.bfloat16), found.dequantised(torch.float32)
    assert torch.equal(plain.float(), exact)
    true = weight.float()
    held = true.abs() >= true.abs().amax(dim=1, keepdim=True) * 2**-13
    assert ((exact - true).abs() <= 2**-4 * true.abs())[held].all()
    assert held.float().mean() > 0.98
    assert not plain[3].any()
    assert torch.equal(found.scale.log2(), found.scale.log2().round())


@pytest.fixture(autouse=True)
def few_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_tts.model.quantised.FRAMES", 12)


@pytest.fixture(scope="module")
def model() -> FrameModel:
    """Of modules, in bfloat16."""
    return tiny.frame_model(tiny.checkpoint("custom_voice"), torch.bfloat16)


def test_random_weights_are_well_below_the_bound_in_every_codebook(model: FrameModel) -> None:
    before = deepcopy(model.state_dict())
    far, near = distances(model, WEIGHTS)
    assert len(far) == model.config.talker.num_code_groups
    assert (near > 1e-6).all()
    assert ((far / near > 10) & (far / near < 0.7 * MOST)).all()
    cached, _ = distances(model, CACHE)
    assert ((near < cached) & (cached < far)).all()
    assert all(torch.equal(now, before[name]) for name, now in model.state_dict().items())
    assert check(model, WEIGHTS).startswith("predictions differ by at most 0.0")


@pytest.mark.parametrize(("part", "first"), [("talker", 0), ("predictor", 1)])
def test_a_model_that_e4m3_does_not_hold_is_refused_with_the_numbers(model: FrameModel, part: str, first: int) -> None:
    """Every row has one weight beside which the others are too small. It multiplies zero, so it changes nothing."""
    broken = deepcopy(model)
    for layer in broken.get_submodule(part).get_submodule("layers").children():
        layer.get_parameter("post_attention_layernorm.weight")[0] = 0
        for name in ("gate_proj", "up_proj"):
            layer.get_parameter(f"mlp.{name}.weight")[:, 0] = 2.0**14
    far, near = distances(broken, WEIGHTS)
    assert (far / near > MOST)[first:].all()
    assert first == 0 or far[0] / near[0] < MOST
    said = (
        r"^qwen3.weights: fp8 changes predictions by [\d.]+ nats in codebook \d+, \d+ times as much as bfloat16's from"
    )
    with pytest.raises(CheckpointError, match=said) as refused:
        check(broken, WEIGHTS)
    assert f"float32, over {MOST} times: use bfloat16" in str(refused.value)


def test_a_model_without_finite_predictions_is_refused(model: FrameModel) -> None:
    broken = deepcopy(model)
    broken.talker.norm.weight.fill_(torch.inf)
    with pytest.raises(CheckpointError, match=r"^qwen3.kv_cache: fp8 changes predictions by nan nats"):
        check(broken, CACHE)


def test_a_laid_out_model_holds_its_linear_layers_in_8_bits_alone(model: FrameModel) -> None:
    pytest.importorskip("triton", reason="it compiles the fused kernels")
    from agent_tts.model.fused import FusedPredictor, FusedTalker, quantised

    laid = deepcopy(model)
    before = sum(parameter.nbytes for parameter in laid.parameters())
    fused = [*FusedTalker(laid, None, quantised).layers, *FusedPredictor(laid, quantised).layers]
    matrices = [getattr(layer, name) for layer in fused for name in ("qkv", "out", "gate_up", "down")]
    scales = sum(matrix.scale.nbytes for matrix in matrices)
    assert before - sum(parameter.nbytes for parameter in laid.parameters()) - scales == saved_bytes(
        model, torch.bfloat16
    )
    q_proj = model.get_submodule("talker.layers.0.self_attn.q_proj").get_parameter("weight")
    queries = laid.get_submodule("talker.layers.0.self_attn.q_proj").get_parameter("weight")
    assert queries.untyped_storage().data_ptr() == fused[0].qkv.values.untyped_storage().data_ptr()  # pyrefly: ignore[missing-attribute]
    assert torch.equal(queries.float(), Quantised.of(q_proj).values.float())


@pytest.mark.parametrize(
    ("rows", "how"),
    [(1, "normed"), (1, "gated"), (2, "residual"), (5, "normed"), (5, "gated"), (5, "residual"), (70, "normed")],
)
def test_kernels_compute_what_modules_compute_with_the_same_weights(rows: int, how: str) -> None:
    """In float32: triton's interpreter multiplies no matrices in bfloat16."""
    pytest.importorskip("triton", reason="it interprets the kernels")
    from agent_tts.model.kernels.linear import linear
    from agent_tts.model.kernels.tiles import Tile

    outputs, inputs = 48, 64
    x, matrix = noise(rows, inputs), Quantised.of(noise(outputs * (2 if how == "gated" else 1), inputs))
    norm = RMSNorm(inputs, 1e-6) if how == "normed" else None
    residual = noise(rows, outputs) if how == "residual" else None
    tile = Tile(16, 32, 32, splits=2) if 2 < rows < 65 else None

    def product(weight: Tensor | Quantised) -> Tensor:
        before = None if residual is None else residual.clone()
        return linear(x, weight, norm=norm, residual=before, gated=how == "gated", tile=tile)

    torch.testing.assert_close(product(matrix), product(matrix.dequantised(torch.float32)), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("split", "dtype", "rounding"), [(16, torch.float32, 1e-5), (64, torch.float32, 1e-5), (64, torch.bfloat16, 1e-2)]
)
def test_attention_over_a_cache_in_e4m3_reads_what_it_holds_and_writes_what_is_nearest(
    split: int, dtype: torch.dtype, rounding: float
) -> None:
    pytest.importorskip("triton", reason="it interprets the kernels")
    from agent_tts.model.kernels.attention import Heads, Queries, Scratch, attend

    rows, places, dim = 3, 40, 32
    rope = noise(64, 2, dim // 2, dtype=dtype).to(DEVICE)
    positions, blocks = (torch.tensor(at, device=DEVICE) for at in ([0, 7, 33], [[2], [0], [1]]))
    qkv, norm = noise(rows, 8 * dim, dtype=dtype).to(DEVICE), torch.ones(dim, device=DEVICE)
    kept = [noise(rows, places, 2, dim).to(DEVICE, E4M3), noise(rows, places + 1, 2, dim)[:, 1:].to(DEVICE, E4M3)]

    def attended(dtype: torch.dtype, keys: Tensor, values: Tensor) -> Tensor:
        heads = Heads(4, 2, dim, 1e-6, rope.to(dtype))
        scratch = Scratch.empty(rows, places, heads, positions.device, split)
        queries = Queries(positions, blocks, places - 1, scratch, together=False)
        out = torch.empty(rows, 4 * dim, device=DEVICE, dtype=dtype)
        attend(norm.to(dtype), norm.to(dtype), heads, queries, keys, values, qkv.to(dtype), out)
        return out.float()

    small, wide = [part.clone(memory_format=torch.contiguous_format) for part in kept], [part.float() for part in kept]
    found, expected = attended(dtype, *small), attended(torch.float32, *wide)
    torch.testing.assert_close(found, expected, atol=rounding, rtol=rounding)
    for ours, theirs, before in zip(small, wide, kept, strict=True):
        # Triton's interpreter loses the carry into the exponent.
        mantissa = theirs.frexp().mantissa.abs()
        carries = ((mantissa >= 31 / 32 - rounding) | (mantissa < 0.5 + rounding)) & (DEVICE.type == "cpu")
        torch.testing.assert_close(
            ours.float()[~carries], theirs[~carries], rtol=2**-4 + 2 * rounding, atol=2**-9 + rounding
        )
        assert (ours.float() != before.float()).any(-1).any(-1).sum() == rows


def test_a_copy_of_a_cache_in_e4m3_is_its_bits() -> None:
    """Of a prefix, which other rows are given."""
    config = tiny.config("custom_voice").talker
    cache = Cache.paged(config, 2, 40, 6, 32, noise(1), torch.uint8)
    cache.block_table[:] = torch.tensor([[1, 2, 0], [3, 4, 0]])
    cache.keys.random_()
    cache.values.random_()
    keys, values = cache.read(0, 40)
    at = cache.places(np.concatenate((np.arange(32) + 3 * 32, np.arange(8) + 4 * 32)))
    cache.write(torch.from_numpy(at), keys, values)
    for found, expected in zip(cache.read(1, 40), (keys, values), strict=True):
        assert torch.equal(found, expected)
