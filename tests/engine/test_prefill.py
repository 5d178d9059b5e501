"""Batches of prompts in tensors that are used again: each prompt as if it were alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agent_tts.engine.prefill import Part, Prefill
from agent_tts.engine.prompt_queue import PromptQueue, Shape
from agent_tts.model.frame import FrameModel
from agent_tts.model.prompt import Prompt, Reference, Speaker, Voice, build_prompt
from agent_tts.model.sampling import Sampling
from tests.model import tiny

ROWS, POSITIONS = 4, 100


@pytest.fixture
def model() -> FrameModel:
    return tiny.models("base")[1]


def prompt_of(model: FrameModel, frames: int) -> Prompt:
    """A cloned voice with a reference of some frames."""
    reference = Reference(tiny.REF_TEXT, tuple(map(tuple, tiny.reference_frames(frames).tolist())))
    return build_prompt(model.config, Voice(Speaker.VECTOR, reference), role=tiny.ROLE, text=tiny.TEXT)


def vector(row: int) -> Tensor:
    return tiny.speaker_vector() * (row + 1)


def part(model: FrameModel, row: int, frames: int) -> Part:
    return Part(row, 0, prompt_of(model, frames).numbers(16), vector(row))


def test_a_batch_is_its_prompts_alone(model: FrameModel) -> None:
    """Also the second in the same tensors, which has fewer and other rows."""
    padded, alone = model.init_state(ROWS, POSITIONS), model.init_state(ROWS, POSITIONS)
    prefill = Prefill(model, padded, PromptQueue(64).shapes(), captured=True)
    for wanted in ({2: 20, 0: 12}, {1: 15}):
        for state in (padded, alone):
            state.cache.keys[:, 0, 5] = 9  # row 0 is no part of the second batch
        for row, frames in wanted.items():
            model.join(alone, row, prompt_of(model, frames), Sampling(), vector(row))
        starts = prefill.run(Shape(2, 32, begun=False), [part(model, row, frames) for row, frames in wanted.items()])
        torch.testing.assert_close(torch.stack(starts), alone.feedback[list(wanted)], rtol=0, atol=1e-5)
    sink = padded.cache.sink
    torch.testing.assert_close(padded.cache.keys[:, :, :sink], alone.cache.keys[:, :, :sink], rtol=0, atol=1e-5)
    torch.testing.assert_close(padded.cache.values[:, :, :sink], alone.cache.values[:, :, :sink], rtol=0, atol=1e-5)
    assert not padded.cache.keys[:, 3, :sink].any()


def test_a_prompt_in_parts_is_the_prompt(model: FrameModel) -> None:
    padded, alone = model.init_state(ROWS, POSITIONS), model.init_state(ROWS, POSITIONS)
    whole = part(model, 3, 60)
    (expected,) = Prefill(model, alone, (), captured=False).run(Shape(1, 64, begun=False), [whole])
    batches = Prefill(model, padded, PromptQueue(32).shapes(), captured=False)
    for at in range(0, len(whole.numbers) - 1, 32):
        end = min(at + 32, len(whole.numbers) - 1)
        numbers = whole.numbers[at : end + 1]
        (start,) = batches.run(Shape(1, 32, begun=at > 0), [Part(3, at, numbers, whole.vector)])
    torch.testing.assert_close(start, expected, rtol=0, atol=1e-5)
    sink = padded.cache.sink
    torch.testing.assert_close(padded.cache.keys[:, :, :sink], alone.cache.keys[:, :, :sink], rtol=0, atol=1e-5)
