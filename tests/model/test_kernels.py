"""The kernels of talker and predictor equal the torch operations that they replace.

On a GPU the kernels run compiled; elsewhere triton's interpreter runs them on small sizes.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton", reason="the kernels need triton, which comes with torch for CUDA")

from agent_tts.model.kernels.attention import Heads, Queries, Scratch, attend, attend_in_frame
from agent_tts.model.kernels.linear import Hidden, linear, linear_before, widened
from agent_tts.model.kernels.sampling import draw
from agent_tts.model.kernels.tiles import Tile, few_rows_tile, many_rows_tile
from agent_tts.model.layers import RMSNorm
from agent_tts.model.quantised import Quantised
from agent_tts.model.sampling import Warp
from agent_tts.model.sampling import draw as draw_reference
from tests.gpu.test_kernels import error, linear_reference

pytestmark = pytest.mark.model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROUNDING = 1e-5  # of float32: the interpreter truncates to bfloat16
OUTPUTS, INPUTS = 48, 192  # no power of 2: tiles are masked


QUERIES, PAIRS, DIM = 4, 2, 32


def noise(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale).to(DEVICE)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("rows", "tile"),
    [
        pytest.param(1, Tile(0, 4, 256), id="one row"),
        pytest.param(2, Tile(0, 2, 256), id="row by row"),
        pytest.param(5, Tile(16, 32, 64, ahead=64), id="tiles"),
        pytest.param(5, Tile(16, 32, 32, splits=3, ahead=64), id="a split sum"),
        pytest.param(17, Tile(16, 16, 64), id="tiles of rows"),
        pytest.param(5, Tile(16, 64, 64, splits=3), id="weights ahead of a split sum"),
        pytest.param(17, Tile(16, 32, 64, turned=True), id="turned tiles"),
        pytest.param(5, Tile(16, 64, 32, splits=3, turned=True), id="a turned split sum"),
    ],
)
def test_a_linear_layer(rows: int, tile: Tile, gated: bool) -> None:
    x, weight = noise(rows, INPUTS), noise(OUTPUTS * (1 + gated), INPUTS, scale=INPUTS**-0.5)
    norm = RMSNorm(INPUTS, 1e-6)
    norm.weight = nn.Parameter(noise(INPUTS), requires_grad=False)
    bias, residual = noise(OUTPUTS), noise(rows, OUTPUTS)
    layer: dict[str, Any] = {"norm": norm, "bias": None if gated else bias, "residual": residual, "gated": gated}
    for _ in range(2):  # the second run must not depend on what the first leaves behind
        assert error(linear(x, weight, tile=tile, **layer), linear_reference(x, weight, **layer)) < ROUNDING


@pytest.mark.parametrize("rows", [1, 2, 65])
@pytest.mark.parametrize("interleaved", [False, True])
def test_weights_in_e4m3(rows: int, interleaved: bool) -> None:
    """Of many rows they are widened, which is exact, as scales are powers of 2."""
    x, weight = noise(rows, 256), noise(OUTPUTS, 256) * 2.0 ** noise(OUTPUTS, 1).round()
    matrix = Quantised.of(weight)
    exact = matrix.dequantised(x.dtype)
    if interleaved:
        matrix = matrix.interleaved()
        assert not torch.equal(matrix.values.float(), Quantised.of(weight).values.float())
    assert torch.equal(matrix.dequantised(x.dtype), exact)
    assert torch.equal(widened(matrix, torch.bfloat16).to(x.dtype), exact)
    assert error(linear(x, matrix), x @ exact.T) < ROUNDING


@pytest.mark.parametrize(
    "tile",
    [Tile(16, 16, 64), Tile(16, 16, 64, splits=3), Tile(16, 16, 32, turned=True), Tile(16, 64, 64, splits=3)],
)
def test_a_norm_behind_a_product(tile: Tile) -> None:
    """The next product divides by the root of the mean square, which the first one leaves."""
    rows, width = 17, 64
    x, before = noise(rows, INPUTS), noise(rows, width)
    into, out = noise(width, INPUTS, scale=INPUTS**-0.5), noise(OUTPUTS, width, scale=width**-0.5)
    norm = RMSNorm(width, 1e-2)
    norm.weight = nn.Parameter(noise(width), requires_grad=False)
    left = linear_before(x, into, Hidden(before), norm, tile=tile)
    expected = before + x @ into.T
    assert error(left.x, expected) < ROUNDING
    assert left.squares is not None
    second = Tile(16, 16, 64, turned=tile.turned)
    assert error(linear(left, out, norm=norm, tile=second), linear_reference(expected, out, norm=norm)) < ROUNDING


@pytest.mark.parametrize("rows", [65, 128, 129, 256])
@pytest.mark.parametrize("gated", [False, True])
def test_tiles_of_many_rows_are_whole(rows: int, gated: bool) -> None:
    """`kernels.many_rows` has no masks but of rows."""
    for outputs, inputs in product(range(512, 12_289, 512), range(512, 6_145, 512)):
        if tile := many_rows_tile(rows, outputs, inputs, gated):
            steps = inputs / tile.splits / tile.inputs
            assert outputs % tile.outputs == 0
            assert steps == int(steps) >= tile.stages


@pytest.mark.parametrize("gated", [False, True])
def test_tiles_of_few_rows_are_whole(gated: bool) -> None:
    """`kernels.few_rows` has no masks."""
    for outputs, inputs in product(range(64, 8_193, 64), range(64, 6_145, 64)):
        if tile := few_rows_tile(outputs, inputs, gated):
            assert outputs % tile.outputs == inputs % tile.inputs == 0
    assert few_rows_tile(1024, 3072, gated=False) is not None
    assert few_rows_tile(3072, 1024, gated=True) is not None


def turned(x: Tensor, norm: Tensor, rope: Tensor) -> Tensor:
    """Norm and rope of heads [..., heads, DIM] at positions whose cosine and sine are [..., 2, DIM / 2]."""
    x = norm * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    (low, high), (cos, sin) = x.chunk(2, dim=-1), rope[..., None, :].unbind(-3)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


class Attention:
    """One layer's constants, and what it gives for one row in torch operations."""

    def __init__(self, positions: int) -> None:
        self.q_norm, self.k_norm = noise(DIM), noise(DIM, scale=0.5)
        angles = torch.arange(positions)[:, None] * torch.logspace(0, -3, DIM // 2)
        rope = torch.stack((angles.cos(), angles.sin()), dim=1).to(DEVICE)
        self.heads = Heads(QUERIES, PAIRS, DIM, 1e-6, rope)

    def of(self, qkv: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """New positions [N, (QUERIES + 2 PAIRS) DIM] behind keys and values [S, PAIRS, DIM]: their result, and all keys
        and values."""
        start, end = len(keys), len(keys) + len(qkv)
        q, k, v = torch.split(qkv.view(len(qkv), -1, DIM), [QUERIES, PAIRS, PAIRS], dim=1)
        rope = self.heads.rope[start:end]
        keys, values = torch.cat((keys, turned(k, self.k_norm, rope))), torch.cat((values, v))
        q = turned(q, self.q_norm, rope).view(len(qkv), PAIRS, -1, DIM)
        logits = torch.einsum("npgd,spd->npgs", q, keys) * DIM**-0.5
        future = torch.arange(end, device=DEVICE) > torch.arange(start, end, device=DEVICE)[:, None]
        power = logits.masked_fill(future[:, None, None], float("-inf")).softmax(-1)
        return torch.einsum("npgs,spd->npgd", power, values).reshape(len(qkv), -1), keys, values


@pytest.mark.parametrize(
    ("more", "split", "together"),
    [((), 64, False), pytest.param((), 128, True, marks=pytest.mark.slow), ((31, 32, 33, 95), 128, False)],
)
def test_attention_over_blocks(more: tuple[int, ...], split: int, together: bool) -> None:
    """Rows of different lengths, the last one paused; a cache in blocks, in any order. Of 9 rows, tiles are read ahead,
    and two are a block.
    """
    layer, padding, size = Attention(200), 160, 64 if more else 32
    blocks = -(-padding // size)
    lengths = [0, 1, 64, 130, *more, padding]
    rows = len(lengths)
    places = torch.randperm(rows * blocks, generator=torch.Generator().manual_seed(1)).view(rows, blocks).to(DEVICE)
    keys, values = noise(rows * blocks, size, PAIRS, DIM), noise(rows * blocks + 1, size, PAIRS, DIM)[1:]
    before = keys.clone(), values.clone()
    qkv = noise(rows, (QUERIES + 2 * PAIRS) * DIM)
    scratch = Scratch.empty(rows, padding, layer.heads, DEVICE, split)
    queries = Queries(torch.tensor(lengths, device=DEVICE), places, padding, scratch, together)
    out = qkv.new_empty(rows, QUERIES * DIM)
    for _ in range(2):
        attend(layer.q_norm, layer.k_norm, layer.heads, queries, keys, values, qkv, out)
    for row, length in enumerate(lengths[:-1]):
        known = (cache[places[row]].flatten(0, 1)[:length] for cache in before)
        expected, *written = layer.of(qkv[row : row + 1], *known)
        assert error(out[row : row + 1], expected) < ROUNDING
        for cache, its in zip((keys, values), written, strict=True):
            assert error(cache[places[row]].flatten(0, 1)[: length + 1], its) < ROUNDING
    assert torch.equal(keys[places[-1]], before[0][places[-1]])
    assert not scratch.counters.any()


def test_attention_in_a_frame() -> None:
    """Two positions at the start, then one each."""
    layer, rows = Attention(16), 3
    keys, values = noise(rows, 16, PAIRS, DIM), noise(rows, 16, PAIRS, DIM, scale=2)
    known = [(keys[row, :0], values[row, :0]) for row in range(rows)]
    for position, tokens in ((1, 2), (2, 1), (3, 1)):
        qkv = noise(rows * tokens, (QUERIES + 2 * PAIRS) * DIM, scale=position)
        found = attend_in_frame(layer.q_norm, layer.k_norm, layer.heads, keys, values, tokens, position, qkv)
        for row in range(rows):
            mine = slice(row, None, rows)
            expected, *written = layer.of(qkv[mine], *known[row])
            known[row] = (written[0], written[1])
            assert error(found[mine], expected) < ROUNDING


@pytest.mark.parametrize(("size", "step"), [pytest.param(96, 0, marks=pytest.mark.slow), (512, 0.5)])
def test_draws_with_every_kind_of_parameter(size: int, step: float) -> None:
    """Rows with all combinations; in steps of 0.5, many logits are equal, also at the edge of top-k."""
    given = list(product((0.0, 0.7, 9.0), (0, 1, 50, size - 1), (1.0, 0.9, 1e-9)))
    logits = noise(len(given), size, scale=0.4)
    if step:
        logits = (logits / step).round() * step
    logits[::2, ::3] = float("-inf")
    logits[1, 70] = float("inf")
    temperature, top_k, top_p = (torch.tensor(column, device=DEVICE) for column in zip(*given, strict=True))
    how, seeds = Warp(temperature, top_k, top_p), torch.arange(len(given), device=DEVICE) * 2**57
    found, expected = draw(logits, how, seeds, seeds % 7, 3), draw_reference(logits, how, seeds, seeds % 7, 3)
    different = found != expected
    assert not different[top_p == 1].any()
    assert not different.any() or step  # torch cuts equal logits at the edge of top-p by their places


def test_a_draw_of_no_numbers_is_a_code() -> None:
    logits = torch.full((3, 96), float("nan"), device=DEVICE)
    logits[1] = -logits[1].abs()
    logits[2] = float("-inf")
    ones, codes = torch.ones(3, device=DEVICE), torch.zeros(3, dtype=torch.int64, device=DEVICE)
    found = draw(logits, Warp(ones, codes + 50, ones), codes, codes, 0)
    assert (found >= 0).all()
    assert (found < 96).all()
