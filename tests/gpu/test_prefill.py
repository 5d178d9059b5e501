"""Prompts on a GPU: beside frames and alone, with and without graphs, and without effect on rows that speak."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.engine.qwen3.graphs import ChunkInputs, FrameGraphs
from agent_tts.messages import Audio, Cancel, StepCommand
from agent_tts.model.frame import FrameModel
from agent_tts.model.prompt import NOTHING
from agent_tts.model.speech import SpeechModel, SpeechState, accelerate
from tests.engine.driver import appended, start_of
from tests.gpu.test_engine import FRAMES, RYAN, TEXT, engine, folder
from tests.gpu.test_fused import modules_of

__all__ = ["folder"]  # a fixture

ROWS, POSITIONS = 20, 1_024
SPEAKING = [17, 3, 18]  # rows at their 500th position
ROUNDING = 3e-2  # relative error between two roundings, each about 0.02 from float32

pytestmark = pytest.mark.gpu


def part(row: int, length: int, begin: int = 0, *, frames: bool = False) -> ChunkInputs:
    """A chunk that ends its prompt: text with codes, or with frames as after a clone's reference."""
    random = np.random.default_rng(row * 1_000 + begin)
    numbers = np.full((length, 17), NOTHING)
    numbers[:-1, 0] = random.integers(0, 150_000, length - 1)
    numbers[:, 1 : 17 if frames else 2] = random.integers(0, 2_048, (length, 16 if frames else 1))
    positions = np.append(np.arange(begin, begin + length - 1), POSITIONS)
    return ChunkInputs(row, positions, begin + length - 1 if begin else None, numbers, None)


# Steps to compute: a whole prompt, later chunks, many prompts, a prompt of one entry.
BATCHES: list[list[ChunkInputs]] = [
    [part(1, 128, frames=True)],
    [part(2, 100, 300), part(4, 11), part(5, 17, 640, frames=True)],
    [part(row, 10) for row in (6, 7, 8, 9, 10, 11, 12)],
    [part(13, 1, 50)],
]


def state_of(model: SpeechModel, *, paged: bool = True) -> SpeechState:
    """The same noise in every dtype, and rows in mid-speech."""
    state = model.init_state(ROWS, POSITIONS, ROWS * 33 if paged else None)
    frame, generator = state.frame, torch.Generator("cuda").manual_seed(1)
    if paged:
        blocks = torch.randperm(ROWS * 32, device="cuda", generator=generator).view(ROWS, 32)
        frame.cache.block_table[:, :32] = blocks + 1
    for tensor in (frame.cache.keys, frame.cache.values, frame.feedback):
        tensor.copy_(torch.randn(tensor.shape, device="cuda", generator=generator))
    frame.position.fill_(500)
    frame.text.fill_(1_234)
    frame.text_length.fill_(100)
    frame.ended[SPEAKING] = False
    frame.sampling.seed.copy_(torch.arange(ROWS))
    return state


def reach(one: ChunkInputs) -> tuple[int, int]:
    """Begin and end of a chunk in its row."""
    begin = 0 if one.span is None else one.span - len(one.positions) + 1
    return begin, begin + len(one.positions) - 1


def written(state: SpeechState, one: ChunkInputs) -> list[Tensor]:
    """Keys and values of a chunk's positions."""
    begin, end = reach(one)
    return [kept[:, begin:end] for kept in state.frame.cache.read(one.row, end)]


def apart(mine: Tensor, theirs: Tensor) -> float:
    """Relative error."""
    error: float = ((mine.float() - theirs.float()).norm() / theirs.float().norm()).item()
    return error


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("speaking", [[], SPEAKING], ids=["alone", "beside-frames"])
@torch.inference_mode()
def test_a_graph_equals_the_step_bit_for_bit(model: SpeechModel, paged: bool, speaking: list[int]) -> None:
    accelerate(model)
    captured, eager = (state_of(model, paged=paged) for _ in range(2))
    graphs = FrameGraphs(model, captured, sizes=(4,))
    kernels = FrameGraphs(model, eager, sizes=(4,), captured=False)
    for parts in BATCHES:
        (mine, found), (theirs, expected) = graphs.step(speaking, parts), kernels.step(speaking, parts)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
        assert (mine is None) == (theirs is None) == (not speaking)
        if mine and theirs:
            assert mine.result().pcm.tobytes() == theirs.result().pcm.tobytes()
        for row in range(ROWS):
            for pair in zip(captured.frame.cache.read(row, 1_000), eager.frame.cache.read(row, 1_000), strict=True):
                assert torch.equal(*pair), row


@torch.inference_mode()
def test_the_result_of_a_step_is_unchanged_by_the_next(model: SpeechModel) -> None:
    """It is cached for later prompts with the same prefix."""
    accelerate(model)
    graphs = FrameGraphs(model, state_of(model), sizes=(4,))
    for speaking in ([], SPEAKING):
        _, (first,) = graphs.step(speaking, [part(1, 9)])
        kept = first.clone()
        _, (second,) = graphs.step(speaking, [part(2, 9)])
        assert torch.equal(first, kept)
        assert not torch.equal(first, second)


@pytest.mark.parametrize("speaking", [[], SPEAKING], ids=["alone", "beside-frames"])
@torch.inference_mode()
def test_prompts_computed_together_equal_single_ones_and_leave_other_rows(
    model: SpeechModel, speaking: list[int]
) -> None:
    accelerate(model)
    together, alone = state_of(model), state_of(model)
    before = [together.frame.cache.read(row, 1_000) for row in range(ROWS)]
    batches = FrameGraphs(model, together, sizes=(4,))
    singles = FrameGraphs(model, alone, sizes=(4,), captured=False)
    ends: dict[int, int] = dict.fromkeys(range(ROWS), 0)
    for parts in BATCHES:
        _, starts = batches.step(speaking, parts)
        for one, start in zip(parts, starts, strict=True):
            _, (expected,) = singles.step([], [one])
            assert torch.equal(start, expected)
            for mine, theirs in zip(written(together, one), written(alone, one), strict=True):
                assert not mine.numel() or apart(mine, theirs) < ROUNDING
            _, ends[one.row] = reach(one)
    for row in set(range(ROWS)) - set(speaking):
        for mine, former in zip(together.frame.cache.read(row, 1_000), before[row], strict=True):
            assert torch.equal(mine[:, ends[row] :], former[:, ends[row] :])  # padding


@torch.inference_mode()
def test_fused_prompts_are_as_close_to_float32_as_the_modules(model: SpeechModel) -> None:
    """With and without frames in the step."""

    def computed(frame: FrameModel, speaking: Sequence[int], parts: Sequence[ChunkInputs]) -> list[Tensor]:
        made = SpeechModel(frame, model.codec)
        state = state_of(made)
        FrameGraphs(made, state, sizes=(4,), captured=False).step(speaking, parts)
        return [kept.float() for one in parts for kept in written(state, one)]

    modules, truth = modules_of(model.frame, torch.bfloat16), modules_of(model.frame, torch.float32)
    accelerate(model)
    for parts in BATCHES[:3]:
        true, plain = computed(truth, [], parts), computed(modules, [], parts)
        bound = statistics.mean(map(apart, plain, true))
        for speaking in ([], SPEAKING):
            assert statistics.mean(map(apart, computed(model.frame, speaking, parts), true)) < 1.05 * bound


@torch.inference_mode()
def test_a_prompt_does_not_depend_on_others_in_its_step(model: SpeechModel) -> None:
    """It does not depend on its chunks either, bit for bit."""
    accelerate(model)
    beside, alone = state_of(model), state_of(model)
    for speaking in ([], SPEAKING):
        batches, singles = FrameGraphs(model, beside, sizes=(4,)), FrameGraphs(model, alone, sizes=(4,))
        batches.step(speaking, BATCHES[1])
        for one in BATCHES[1]:
            middle = len(one.positions) // 2
            for cut in (slice(middle), slice(middle, None)):
                singles.step(speaking, [ChunkInputs(one.row, one.positions[cut], one.span, one.numbers[cut], None)])
            for pair in zip(written(beside, one), written(alone, one), strict=True):
                assert torch.equal(*pair)


def heard(made: Qwen3Engine, others: dict[int, list[StepCommand]]) -> NDArray[np.int16]:
    """The first frames of slot 0 while other requests arrive at some of its frames."""
    inputs: list[StepCommand] = [start_of(0, RYAN), *appended(0, TEXT, last=True)]
    run, pcm = {0}, b""
    for frame in range(FRAMES):
        inputs += others.get(frame, [])
        run |= {one.id for one in inputs}
        pcm += b"".join(one.payload for one in made.step(inputs, run) if isinstance(one, Audio) and one.id == 0)
        inputs = []
    made.step([Cancel(slot) for slot in run], [])
    return np.frombuffer(pcm, "<i2")


def test_prompts_of_others_do_not_change_running_audio(folder: Path) -> None:
    others: dict[int, list[StepCommand]] = {
        frame: [start_of(slot, replace(RYAN, instructions="slowly " * words)), *appended(slot, TEXT, last=True)]
        for frame, slot, words in ((2, 1, 4), (5, 2, 30), (9, 3, 120))
    }
    with engine(folder, device="cuda", reproducible=True) as made:
        heard(made, {})  # caches the prompt
        alone = heard(made, {})
        assert len(alone) > 10 * 1_920
        assert np.array_equal(heard(made, others), alone)
