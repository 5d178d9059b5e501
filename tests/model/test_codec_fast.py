"""The kernels of the codec's step against the step in torch, with the same state.

On a GPU the kernels run compiled; elsewhere triton's interpreter runs them on a small codec.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the kernels need triton, which comes with torch for CUDA")

from agent_tts.model.codec import Codec, CodecState
from agent_tts.model.codec_fast import FastCodec
from agent_tts.model.kernels import tiles
from tests.model.test_codec import NO_CODE, config, fill, relative_error

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
PARITY = 2e-3 if GPU else 1e-5  # a GPU multiplies float32 in TF32
WINDOW = 2  # frames: a ring that wraps within a test
CODES, BOOKS = 64, 3
# Widths that are a power of two, and others: 32, then 96 -> 48.
SMALL = replace(
    config(WINDOW),
    codebook_size=CODES,
    num_quantizers=BOOKS,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    upsampling_ratios=(2,),
    upsample_rates=(3,),
    decoder_dim=96,
)


@pytest.fixture(scope="module")
def codec() -> Codec:
    codec = Codec(SMALL).eval()
    fill(codec, seed=1)
    return codec.to(DEVICE)


@pytest.fixture(scope="module")
def fast(codec: Codec) -> FastCodec:
    return FastCodec(codec)


def random_codes(frames: int, rows: int, seed: int = 0) -> Tensor:
    """int64[frames, rows, BOOKS]"""
    codes = torch.randint(0, CODES, (frames, rows, BOOKS), generator=torch.Generator().manual_seed(seed))
    return codes.to(DEVICE)


def mask(*values: bool) -> Tensor:
    return torch.tensor(values, device=DEVICE)


def state_of(codec: Codec, rows: int) -> CodecState:
    """A state whose rings are full of large numbers, which must not affect the output."""
    state = codec.init_state(rows, DEVICE, torch.float32)
    for ring in (state.keys, state.values, *state.histories):
        ring.fill_(1e4)
    return state


@pytest.mark.slow
def test_a_step_equals_that_of_torch_for_rows_in_any_order_that_run_pause_and_leave(
    codec: Codec, fast: FastCodec
) -> None:
    """Behind a frame, row 0 runs so often that its ring wraps; row 2 pauses and begins again; row 3 pads a batch."""
    expected, found = state_of(codec, 4), state_of(codec, 4)
    begun = random_codes(1, 2)[0], mask(True, True), torch.tensor((2, 0), device=DEVICE)
    for state in (expected, found):
        codec.step(state, *begun)
    for rows, runs in (((2, 3, 3, 0), (False, False, False, True)), ((0, 2), (True, True))):
        codes, run, batch = random_codes(1, len(rows), seed=1)[0], mask(*runs), torch.tensor(rows, device=DEVICE)
        wanted = codec.step(expected, codes, run, batch)
        pcm = fast.step(found, torch.where(run[:, None], codes, NO_CODE), run, batch)
        assert (pcm.shape, pcm.dtype) == (wanted.shape, torch.float32)
        assert relative_error(pcm, wanted) < PARITY
        assert torch.equal(found.position, expected.position)
        assert not pcm[~run].any()
        for state in (expected, found):
            state.reset(torch.tensor([2], device=DEVICE))
    assert found.position.tolist() == [3, 0, 0, 0]


@pytest.mark.parametrize("never_so_few", ["UNIT_STEPS", pytest.param("SPLIT_INPUTS", marks=pytest.mark.slow)])
def test_both_convolutions_of_a_unit_in_one_kernel_and_sums_in_splits_are_the_same(
    codec: Codec, fast: FastCodec, monkeypatch: pytest.MonkeyPatch, never_so_few: str
) -> None:
    """Behind a frame."""
    monkeypatch.setattr(tiles, never_so_few, 0)
    expected, found, run = state_of(codec, 1), state_of(codec, 1), mask(True)
    before, codes = random_codes(2, 1)
    for state in (expected, found):
        codec.step(state, before, run)
    assert relative_error(fast.step(found, codes, run), codec.step(expected, codes, run)) < PARITY


@pytest.mark.parametrize("rate", [32, 96, 160, 640, 1920])
def test_tiles_of_units_on_hopper_are_within_a_frame(rate: int) -> None:
    """`kernels.many_steps` has no masks of steps, and channels in three parts."""
    for channels in range(32, 513, 32):
        tile = tiles.unit_tile(1 << 20, rate, channels, warpgroups=True)
        if tile is not None and tile.loaders:
            assert rate % tile.rows == 0
            assert channels == tile.outputs
            assert 3 * tile.inputs in (channels, 3 * channels)


@pytest.mark.parametrize("warpgroups", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 8, 64, 256, 1000])
def test_a_tile_fits_every_layer(rows: int, warpgroups: bool) -> None:
    """A step of the sum is within one tap, and the stages fit into shared memory."""
    released: Any = [(4, 1024, 1536), (4, 1536, 6144), (32, 768, 768), (32, 768, 1920), (160, 384, 384)]
    released += [(160, 384, 768), (640, 192, 192), (640, 192, 288), (1920, 96, 96), (1, 512, 3072), (2, 4096, 1024)]
    for rate, channels, outputs in released:
        tile = tiles.codec_tile(rows * rate, outputs, channels, warpgroups=warpgroups)
        assert channels % tile.inputs == 0
        assert tile.outputs // 2 < outputs
        assert 2 * tile.stages * tile.inputs * (tile.rows + tile.outputs) <= 227 << 10
