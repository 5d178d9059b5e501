"""The kernels of the codec at the released sizes, in bfloat16, against float32."""

from __future__ import annotations

import pytest
import torch

from agent_tts.model import codec_fast
from agent_tts.model.codec import Codec
from agent_tts.model.codec_fast import FastCodec
from tests.model.codec_noise import signal_to_noise, synthetic_codec
from tests.model.test_codec import relative_error

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")


def test_the_waveform_is_as_near_to_float32_as_that_of_torch() -> None:
    exact, rounded = synthetic_codec(DEVICE, torch.float32), synthetic_codec(DEVICE, torch.bfloat16)
    torchs = signal_to_noise(exact, rounded, rounded.step, torch.bfloat16)
    assert signal_to_noise(exact, rounded, FastCodec(rounded).step, torch.bfloat16) > torchs - 1


def test_a_row_sounds_the_same_in_every_batch() -> None:
    """To the rounding of bfloat16: another batch has other tiles."""
    codec = synthetic_codec(DEVICE, torch.bfloat16)
    fast, codes = FastCodec(codec), torch.randint(0, 2048, (12, 1, 16), device=DEVICE)
    waves = {}
    for rows in (1, 2, 8, 64, 256):
        state = codec.init_state(rows, DEVICE, torch.bfloat16)
        run = torch.ones(rows, dtype=torch.bool, device=DEVICE)
        frames = [fast.step(state, one.expand(rows, -1).contiguous(), run) for one in codes]
        waves[rows] = torch.cat(frames, 1)
        assert torch.equal(waves[rows][:1].expand(rows, -1), waves[rows])
    for rows, wave in waves.items():
        assert relative_error(wave[0], waves[1][0]) < 0.1, rows


def test_units_in_one_kernel_on_hopper_are_as_near_to_float32_as_those_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of streams at their start, at the start of a ring and within it, in another order than their rows."""
    codec, exact = synthetic_codec(DEVICE, torch.float16), synthetic_codec(DEVICE, torch.float32)
    fast, seeded = FastCodec(codec), torch.Generator(DEVICE).manual_seed(1)
    codes = torch.randint(0, 2048, (16, 16), device=DEVICE, generator=seeded)
    run, rows = torch.ones(16, dtype=torch.bool, device=DEVICE), torch.randperm(16, device=DEVICE, generator=seeded)

    def frame(by: Codec | FastCodec, dtype: torch.dtype) -> list[torch.Tensor]:
        """Its waveform and the rings behind it."""
        state = codec.init_state(16, DEVICE, dtype)
        state.position.copy_(torch.arange(16) % 5)
        generator = torch.Generator(DEVICE).manual_seed(0)
        for ring in state.histories:
            ring.copy_(ring.half().normal_(generator=generator))
        return [found.float() for found in (by.step(state, codes, run, rows), *state.histories)]

    expected, ones = frame(exact, torch.float32), frame(fast, torch.float16)
    monkeypatch.setattr(codec_fast, "has_warpgroups", lambda device: False)
    for one, two, value in zip(ones, frame(fast, torch.float16), expected, strict=True):
        assert (one - value).norm() <= 1.1 * (two - value).norm()
        assert (one - value).abs().max() <= 1.3 * (two - value).abs().max()
