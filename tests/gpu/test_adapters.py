"""LoRA adapters on a GPU: modules give the audio of the CPU and of merged checkpoints, kernels are as precise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agent_tts.model.adapters import Adapter, AdapterBank
from agent_tts.model.frame import FrameModel
from agent_tts.model.speech import SpeechModel, accelerate
from tests.engine.qwen3.adapter_voices import assert_close, engine, speak, write_voices
from tests.gpu.test_fused import forced_logits, mean_error, modules_of
from tests.model import lora, tiny

pytestmark = pytest.mark.gpu

ON_GPU: dict[str, Any] = {"device": "cuda", "dtype": "float32", "cuda_graphs": False}


def test_rows_with_different_adapters_speak_as_on_a_cpu_and_as_the_merged_checkpoints(tmp_path: Path) -> None:
    base = tiny.checkpoint("base")
    adapters = [lora.write_adapter(tmp_path / str(seed), base, seed=seed) for seed in range(2)]
    voices = write_voices(tmp_path / "voices", *adapters)
    everyone = {0: "plain", 1: "zero", 2: "one"}
    with engine(base, voices, adapters=2, **ON_GPU) as made:
        together = speak(made, everyone)
    assert not np.array_equal(together[0], together[1])
    with engine(base, voices, adapters=2) as on_cpu:
        for slot, expected in speak(on_cpu, everyone).items():
            assert_close(together[slot], expected)
    merged = lora.merge(base, adapters[0], tmp_path / "merged" / base.name)
    with engine(merged, voices, **ON_GPU) as made:
        assert_close(speak(made, {0: "plain"})[0], together[1])


@pytest.mark.parametrize("rows", [1, 6, 64, 100])
def test_fused_logits_with_adapters_are_as_close_to_float32_as_the_modules(model: SpeechModel, rows: int) -> None:
    codes = torch.randint(2048, (max(2, 16 // rows), rows, 16), device="cuda")
    eager, exact = (modules_of(model.frame, dtype) for dtype in (torch.bfloat16, torch.float32))
    banks = [adapted(one, rows) for one in (model.frame, eager, exact)]
    for bank in banks[1:]:
        bank.adapt()
    truth = forced_logits(exact, rows, codes)
    plain = mean_error(forced_logits(eager, rows, codes), truth)
    accelerate(model, banks[0])
    for mixed in (False, True):
        assert mean_error(forced_logits(model.frame, rows, codes, mixed=mixed), truth) < 1.05 * plain
    banks[0].places.fill_(-1)
    assert mean_error(forced_logits(model.frame, rows, codes), truth) > 2 * plain  # proves that they change something


def adapted(model: FrameModel, rows: int) -> AdapterBank:
    """The same three adapters for each model; each fourth row has none."""
    bank = AdapterBank(model, rows + 30, 3, 16)
    noise = torch.Generator("cuda").manual_seed(1)
    for low in (low for layer in bank.layers for low in layer):
        for matrix in (low.down, low.up):
            scale = matrix.shape[1] ** -0.5
            matrix.copy_(scale * torch.randn(matrix.shape, device="cuda", generator=noise))
    for row in range(rows + 30):
        bank.assign(row, Adapter(row % 4) if row % 4 < 3 else None)
    return bank
