"""LoRA adapters on a GPU: modules without fused kernels give the audio of the CPU and of the merged checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.qwen3.adapter_voices import assert_close, engine, speak, write_voices
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
