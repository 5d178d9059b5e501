"""The watermark on a CUDA device: its kernels against its modules, and inside a captured step."""

from __future__ import annotations

import pytest
import torch

from agent_tts.bench.frame import mid_speech, synthetic
from agent_tts.engine.qwen3.graphs import FrameGraphs, rows_of_state
from agent_tts.model.codec_fast import FastWatermark
from agent_tts.model.speech import SpeechModel, accelerate
from agent_tts.model.watermark import Watermark
from tests.measure.watermark_cost import ratio_db

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")


def watermark(dtype: torch.dtype) -> Watermark:
    torch.manual_seed(0)
    return Watermark().eval().requires_grad_(False).to(DEVICE, dtype)


def test_the_kernels_are_near_float32() -> None:
    assert ratio_db(watermark(torch.float32), FastWatermark(watermark(torch.float16)), 5) > 35


def test_a_captured_step_marks_the_same_speech() -> None:
    """With and without a watermark, the same rows: the difference is the watermark of each row."""
    heard = []
    for marked in (None, watermark(torch.float16)):
        made = synthetic("0.6B")
        model = SpeechModel(made.frame, made.codec.to(torch.float16), marked)
        assert accelerate(model)
        state = mid_speech(model, rows_of_state(3, DEVICE), 100)
        graphs = FrameGraphs(model, state, sizes=(2,))
        state.restart(torch.arange(4, device=DEVICE))
        launched, _ = graphs.step((2, 0))
        assert launched is not None
        heard.append(torch.from_numpy(launched.result().pcm.copy()).float())
    plain, marked_speech = heard
    assert plain.shape == (2, 1_920)
    assert not torch.equal(plain, marked_speech)
