"""Prompts in batches on a GPU: a graph is what it stands for, to the bit, and rows that speak do not hear of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from agent_tts.engine.admission import BATCH
from agent_tts.engine.base import Close, Frame, Input, Open, Text
from agent_tts.engine.prefill import Part, Prefill
from agent_tts.engine.prompt_queue import PromptQueue, Shape
from agent_tts.engine.qwen3 import Qwen3Engine
from agent_tts.events import Sampling, SpeechOptions
from agent_tts.model.acceleration import accelerate
from agent_tts.model.frame import FrameModel
from agent_tts.model.frame_state import FrameState
from agent_tts.model.prompt import NOTHING
from agent_tts.model.speech import SpeechModel
from tests.gpu.test_engine import FRAMES, RYAN, TEXT, engine, folder
from tests.gpu.test_fused import modules_of

__all__ = ["folder"]  # a fixture

ROWS, POSITIONS = 20, 1_024
ROUNDING = 2e-2  # relative error of bfloat16 behind all layers, after sums in another order

pytestmark = pytest.mark.gpu

SHAPES: list[Shape] = PromptQueue(BATCH).shapes()


def part(row: int, length: int, at: int = 0, *, frames: bool = False) -> Part:
    """Text beside codes, or beside frames as behind a clone's reference."""
    random = np.random.default_rng(row * 1_000 + at)
    numbers = np.full((length + 1, 17), NOTHING)
    numbers[:-1, 0] = random.integers(0, 150_000, length)
    numbers[:, 1 : 17 if frames else 2] = random.integers(0, 2_048, (length + 1, 16 if frames else 1))
    return Part(row, at, numbers, None)


def batch(shape: Shape) -> list[Part]:
    """One place of it stays free where there are several; all lengths differ."""
    count = max(1, shape.rows - 1)
    at = 300 if shape.begun else 0
    return [part(row + 1, max(1, shape.length - row), at, frames=row % 2 == 1) for row in range(count)]


def state_of(model: FrameModel, *, paged: bool) -> FrameState:
    state = model.init_state(ROWS, POSITIONS, ROWS * 33 if paged else None)
    if paged:
        generator = torch.Generator("cuda").manual_seed(1)
        pages = torch.randperm(ROWS * 32, device="cuda", generator=generator).view(ROWS, 32)
        state.cache.table[:, :32] = pages + 1
    generator = torch.Generator("cuda").manual_seed(2)
    for tensor in (state.cache.keys, state.cache.values):
        tensor.copy_(torch.randn(tensor.shape, device="cuda", generator=generator))  # the same in every dtype
    return state


@pytest.mark.parametrize("paged", [False, True])
@torch.inference_mode()
def test_a_graph_is_the_batch_bit_for_bit(model: SpeechModel, paged: bool) -> None:
    accelerate(model)
    captured, eager = state_of(model.frame, paged=paged), state_of(model.frame, paged=paged)
    graphs = Prefill(model.frame, captured, SHAPES, captured=True)
    kernels = Prefill(model.frame, eager, SHAPES, captured=False)
    for shape in SHAPES:
        for found, expected in zip(graphs.run(shape, batch(shape)), kernels.run(shape, batch(shape)), strict=True):
            assert torch.equal(found, expected)
        for row in range(ROWS):
            for mine, theirs in zip(captured.cache.read(row, 700), eager.cache.read(row, 700), strict=True):
                assert torch.equal(mine, theirs), (shape, row)


def test_what_a_batch_gave_outlives_the_next(model: SpeechModel) -> None:
    """It is kept for later prompts that begin so."""
    graphs = Prefill(model.frame, state_of(model.frame, paged=False), SHAPES, captured=True)
    shape = Shape(16, 16, begun=False)
    (first,) = graphs.run(shape, [part(1, 9)])
    kept = first.clone()
    (second,) = graphs.run(shape, [part(2, 9)])
    assert torch.equal(first, kept)
    assert not torch.equal(first, second)


@torch.inference_mode()
def test_a_batch_is_its_prompts_alone_up_to_rounding(model: SpeechModel) -> None:
    together, alone = state_of(model.frame, paged=True), state_of(model.frame, paged=True)
    batches = Prefill(model.frame, together, SHAPES, captured=True)
    singles = Prefill(model.frame, alone, (), captured=False)
    for shape in SHAPES:
        parts = batch(shape)
        before = [together.cache.read(one.row, 700) for one in parts]
        starts, expected = batches.run(shape, parts), [singles.run(shape, [one])[0] for one in parts]
        assert torch.equal(torch.stack(starts), torch.stack(expected))
        for one, was in zip(parts, before, strict=True):
            end = one.at + len(one.numbers) - 1
            found = zip(together.cache.read(one.row, 700), alone.cache.read(one.row, 700), was, strict=True)
            for mine, theirs, former in found:
                error = (mine[:, one.at : end].float() - theirs[:, one.at : end].float()).norm()
                assert error < ROUNDING * theirs[:, one.at : end].float().norm(), shape
                assert torch.equal(mine[:, end:], former[:, end:])  # the padding


@torch.inference_mode()
def test_fused_prompts_are_as_near_to_float32_as_the_modules(model: SpeechModel) -> None:
    """Alone and in batches, at the beginning and further on, in pages and without."""

    def computed(frame: FrameModel, shapes: Sequence[Shape], shape: Shape, *, paged: bool) -> list[Tensor]:
        state = state_of(frame, paged=paged)
        prefill, parts = Prefill(frame, state, shapes, captured=False), batch(shape)
        for one in [parts] if shapes else [[part] for part in parts]:
            prefill.run(shape, one)
        return [
            cache[:, one.at : one.at + len(one.numbers) - 1].float()
            for one in parts
            for cache in state.cache.read(one.row, 700)
        ]

    modules, truth = modules_of(model.frame, torch.bfloat16), modules_of(model.frame, torch.float32)
    accelerate(model)
    for shape in SHAPES:
        for shapes in (SHAPES, ()):
            true, plain, fused = (
                computed(frame, shapes, shape, paged=bool(shapes)) for frame in (truth, modules, model.frame)
            )
            errors = [
                statistics.mean(
                    ((mine - its).norm() / its.norm()).item() for mine, its in zip(found, true, strict=True)
                )
                for found in (fused, plain)
            ]
            assert errors[0] < 1.05 * errors[1], (shape, errors)


@torch.inference_mode()
def test_a_prompt_does_not_depend_on_those_beside_it(model: SpeechModel) -> None:
    accelerate(model)
    beside, alone = state_of(model.frame, paged=True), state_of(model.frame, paged=True)
    shape = Shape(16, 16, begun=False)
    Prefill(model.frame, beside, SHAPES, captured=True).run(shape, batch(shape))
    for one in batch(shape)[:3]:
        Prefill(model.frame, alone, SHAPES, captured=False).run(shape, [one])
        for mine, theirs in zip(beside.cache.read(one.row, 16), alone.cache.read(one.row, 16), strict=True):
            assert torch.equal(mine, theirs)


def heard(made: Qwen3Engine, others: dict[int, list[Input]]) -> NDArray[np.int16]:
    """The first frames of slot 0, while others come at some of its frames."""
    inputs: list[Input] = [Open(0, 1, RYAN), Text(0, TEXT, last=True)]
    run, pcm = {0}, b""
    for frame in range(FRAMES):
        inputs += others.get(frame, [])
        run |= {one.slot for one in inputs}
        pcm += b"".join(one.pcm for one in made.step(inputs, run) if isinstance(one, Frame) and one.slot == 0)
        inputs = []
    made.step([Close(slot) for slot in run], [])
    return np.frombuffer(pcm, "<i2")


def test_prompts_of_others_change_nothing_for_those_that_speak(folder: Path) -> None:
    def styled(words: int) -> SpeechOptions:
        return SpeechOptions("ryan", "en", "slowly " * words, 0, clean=False, sampling=Sampling(temperature=0))

    others: dict[int, list[Input]] = {
        frame: [Open(slot, slot, styled(words)), Text(slot, TEXT, last=True)]
        for frame, slot, words in ((2, 1, 4), (5, 2, 30), (9, 3, 120))
    }
    with engine(folder, device="cuda", reproducible=True) as made:
        alone = heard(made, {})
        assert len(alone) > 10 * 1_920
        assert np.array_equal(heard(made, others), alone)
