"""Batches of prompts in tensors that are used again: each prompt as if it were alone."""

from __future__ import annotations

import pytest
import torch

from agent_tts.engine.prefill import Part, Prefill
from agent_tts.engine.prompt_queue import PromptQueue, Shape
from agent_tts.model.frame import FrameModel
from agent_tts.model.prompt import Reference, Speaker, Voice, build_prompt
from tests.model import tiny

ROWS, POSITIONS = 4, 100


@pytest.fixture
def model() -> FrameModel:
    return tiny.models("base")[1]


def part(model: FrameModel, row: int, frames: int) -> Part:
    """A cloned voice with a reference of some frames."""
    reference = Reference(tiny.REF_TEXT, tuple(map(tuple, tiny.reference_frames(frames).tolist())))
    prompt = build_prompt(model.config, Voice(Speaker.VECTOR, reference), role=tiny.ROLE, text=tiny.TEXT)
    return Part(row, 0, prompt.numbers(16), tiny.speaker_vector() * (row + 1))


def test_a_batch_is_its_prompts_alone(model: FrameModel) -> None:
    """Also the second in the same tensors, which has fewer and other rows."""
    padded, alone = model.init_state(ROWS, POSITIONS), model.init_state(ROWS, POSITIONS)
    shapes: list[Shape] = PromptQueue(64).shapes()
    batches, singles = Prefill(model, padded, shapes, captured=True), Prefill(model, alone, (), captured=True)
    shape = Shape(2, 32, begun=False)
    for parts in ([part(model, 2, 20), part(model, 0, 12)], [part(model, 1, 15)]):
        starts = batches.run(shape, parts)
        for one, start in zip(parts, starts, strict=True):
            (expected,) = singles.run(shape, [one])
            torch.testing.assert_close(start, expected, rtol=0, atol=1e-5)
    sink = padded.cache.sink
    torch.testing.assert_close(padded.cache.keys[:, :, :sink], alone.cache.keys[:, :, :sink], rtol=0, atol=1e-5)
    torch.testing.assert_close(padded.cache.values[:, :, :sink], alone.cache.values[:, :, :sink], rtol=0, atol=1e-5)
    assert padded.cache.keys[:, :3, 0].any()
    assert not padded.cache.keys[:, 3, :sink].any()


def test_a_prompt_in_parts_is_the_prompt(model: FrameModel) -> None:
    padded, alone = model.init_state(ROWS, POSITIONS), model.init_state(ROWS, POSITIONS)
    whole = part(model, 3, 60)
    (expected,) = Prefill(model, alone, (), captured=False).run(Shape(1, 64, begun=False), [whole])
    batches = Prefill(model, padded, PromptQueue(32).shapes(), captured=False)
    for at in range(0, len(whole.numbers) - 1, 32):
        end = min(at + 32, len(whole.numbers) - 1)
        numbers = whole.numbers[[*range(at, end), -1]]
        (start,) = batches.run(Shape(1, 32, begun=at > 0), [Part(3, at, numbers, whole.vector)])
        torch.testing.assert_close(start, expected, rtol=0, atol=1e-5)
    sink = padded.cache.sink
    torch.testing.assert_close(padded.cache.keys[:, :, :sink], alone.cache.keys[:, :, :sink], rtol=0, atol=1e-5)
