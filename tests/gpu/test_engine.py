"""Qwen3Engine on a GPU: equal to the CPU in float32, and equal with and without captured steps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agent_tts.bench.checkpoint import write
from agent_tts.config.settings import Checkpoint, Qwen3, Settings, Voices
from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.engine.qwen3.graphs import ChunkInputs
from agent_tts.messages import Audio, Cancel
from agent_tts.options import CommonOptions, Sampling, SpeechOptions
from tests.engine.driver import appended, opened, start_of

pytestmark = pytest.mark.gpu

TEXT = "Hello world, how are you?"
FRAMES = 20
RYAN = SpeechOptions("ryan", "en", seed=0, clean=False, sampling=Sampling(temperature=0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the released small size, which fused kernels support."""
    out = tmp_path_factory.mktemp("checkpoint") / "0.6B"
    write(out, size="0.6B")
    return out


def engine(folder: Path, slots: int = 4, **settings: Any) -> AbstractContextManager[Qwen3Engine]:
    qwen3 = Qwen3(models=(Checkpoint(source=str(folder)),), max_model_len=512, **settings)
    return opened(Qwen3Engine(Settings(qwen3=qwen3, voices=Voices(folder=str(folder / "voices"))), slots))


def sound(made: Qwen3Engine, *slots: int, options: CommonOptions = RYAN) -> NDArray[np.int64]:
    """The first frames of the first of `slots`, which all speak the same text together."""
    inputs = [one for slot in slots for one in (start_of(slot, options), *appended(slot, TEXT, last=True))]
    pcm = b""
    while len(pcm) < FRAMES * 3_840:
        for output in made.step(inputs, slots):
            if isinstance(output, Audio) and output.id == slots[0]:
                pcm += output.payload
        inputs = []
    made.step([Cancel(slot) for slot in slots], [])
    return np.frombuffer(pcm, "<i2").astype(np.int64)


def batches_of(made: Qwen3Engine) -> list[tuple[tuple[int, ...], int]]:
    """Of its steps from now on: the rows, and how many entries of prompts are beside them. Rounding depends on them."""
    graphs, batches = made._models[0].runner.graphs, list[tuple[tuple[int, ...], int]]()
    step = graphs.step

    def recorded(rows: Sequence[int], parts: Sequence[ChunkInputs] = (), **options: Any) -> Any:
        batches.append((tuple(rows), sum(len(part.positions) for part in parts)))
        return step(rows, parts, **options)

    graphs.step = recorded
    return batches


def test_float32_gives_the_audio_of_the_cpu(folder: Path) -> None:
    with engine(folder, device="cpu", slots=1) as cpu, engine(folder, device="cuda", dtype="float32", slots=1) as gpu:
        ours, theirs = sound(gpu, 0), sound(cpu, 0)
    assert np.abs(ours - theirs).max() < 33  # of 32 768


@pytest.mark.parametrize("weights", ["bfloat16", "fp8"])
def test_captured_steps_equal_uncaptured_ones(folder: Path, weights: str) -> None:
    given: dict[str, Any] = {"device": "cuda", "weights": weights, "kv_cache": weights}
    with engine(folder, **given) as captured, engine(folder, **given, cuda_graphs=False) as parts:
        mine, theirs = batches_of(captured), batches_of(parts)
        for slots in ((0,), (1, 0), (3, 2, 1, 0)):
            ours, expected = sound(captured, *slots), sound(parts, *slots)
            assert mine == theirs, "not the same steps"
            assert np.array_equal(ours, expected)


def test_a_reused_row_and_a_cached_prefix_do_not_change_the_audio(folder: Path) -> None:
    with engine(folder, device="cuda") as made:
        first = sound(made, 0)
        sound(made, 0, options=SpeechOptions("serena", seed=1))
        assert np.array_equal(sound(made, 0), first)
