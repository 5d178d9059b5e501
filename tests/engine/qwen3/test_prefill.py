"""Prompts computed together, in reused tensors, equal prompts computed alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from agent_tts.engine.qwen3.graphs import ChunkInputs, PromptInputs
from agent_tts.model.config import SamplingParams
from agent_tts.model.frame import FrameModel
from agent_tts.model.layers import Cache
from agent_tts.model.prompt import VECTOR, Prompt, PromptVoice, build_prompt
from agent_tts.model.talker import PromptPositions
from tests.model import tiny

ROWS, POSITIONS, ENTRIES = 4, 100, 80


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> FrameModel:
    """A model that computes prompts together, as fused kernels do: each position is a row of a step."""
    model: FrameModel = tiny.models("base")[1]

    def prefill(prompts: PromptPositions, cache: Cache, span: int | None) -> None:
        window = model.talker.window(prompts.positions[:, None], cache.padding_position, cache, prompts.rows)
        model.talker.run(prompts.x[:, None], cache, window)

    monkeypatch.setattr(model, "ops", replace(model.ops, prefill=prefill))
    return model


def prompt_of(model: FrameModel, frames: int) -> Prompt:
    """A prompt of a cloned voice with a reference of `frames` frames."""
    voice = PromptVoice(VECTOR, tiny.reference(frames))
    return build_prompt(model.config, voice, role=tiny.ROLE, text=tiny.TEXT)


def vector(row: int) -> Tensor:
    return tiny.speaker_vector() * (row + 1)


def part(prompt: Prompt, row: int, padding_position: int, begin: int = 0, end: int | None = None) -> ChunkInputs:
    positions = np.append(np.arange(len(prompt.prefix)), padding_position)[begin:end]
    return ChunkInputs(row, positions, None, prompt.numbers(16, begin, end), vector(row))


def test_prompts_computed_together_equal_prompts_computed_alone(model: FrameModel) -> None:
    """Also a later one in the same tensors, with fewer and other rows, and one in two chunks."""
    together, alone = model.init_state(ROWS, POSITIONS), model.init_state(ROWS, POSITIONS)
    inputs, padding_position = PromptInputs(together, ENTRIES, 16), together.cache.padding_position
    for state in (together, alone):
        state.cache.keys[:, 3] = 9  # the padding row
    long = prompt_of(model, 50)
    starts: dict[int, Tensor] = {}
    for wanted in (
        {2: part(prompt_of(model, 20), 2, padding_position), 0: part(prompt_of(model, 12), 0, padding_position)},
        {1: part(long, 1, padding_position, 0, 30)},
        {1: part(long, 1, padding_position, 30)},
    ):
        ends = inputs.fill(list(wanted.values()))
        embedded = model.prefill(together, inputs.entries, None)
        starts |= {row: embedded[end] for row, end in zip(wanted, ends, strict=True)}
    for row, prompt in ((2, prompt_of(model, 20)), (0, prompt_of(model, 12)), (1, long)):
        tiny.admit(model, alone, row, prompt, SamplingParams(), vector(row))
        torch.testing.assert_close(starts[row], alone.feedback[row], rtol=0, atol=1e-5)
    for mine, theirs in ((together.cache.keys, alone.cache.keys), (together.cache.values, alone.cache.values)):
        torch.testing.assert_close(mine[:, :, :padding_position], theirs[:, :, :padding_position], rtol=0, atol=1e-5)


def test_padding_writes_no_keys(model: FrameModel) -> None:
    state = model.init_state(ROWS, POSITIONS)
    inputs = PromptInputs(state, ENTRIES, 16)
    inputs.fill([part(prompt_of(model, 12), 1, state.cache.padding_position)])
    inputs.fill([])
    model.prefill(state, inputs.entries, None)
    assert not state.cache.keys[:, :, : state.cache.padding_position].any()
