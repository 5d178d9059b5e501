"""A launch of frame graphs gives the result of a model step."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from agent_tts.engine.qwen3.graphs import FrameGraphs, LaunchedStep
from agent_tts.engine.qwen3.served import StepResult
from agent_tts.model.config import SamplingParams
from agent_tts.model.prompt import PromptVoice, build_prompt
from agent_tts.model.speech import SpeechModel, SpeechState
from tests.model import tiny
from tests.support import present

ROWS = 6


@pytest.fixture(scope="module")
def model() -> SpeechModel:
    folder = tiny.checkpoint("custom_voice")
    return SpeechModel(tiny.frame_model(folder), tiny.codec(folder))


@pytest.fixture
def state(model: SpeechModel) -> SpeechState:
    """Every row is admitted, each with its own seed."""
    state = model.init_state(ROWS, 64)
    prompt = build_prompt(model.frame.config, PromptVoice("ryan"), role=tiny.ROLE, text=tiny.TEXT)
    for row in range(ROWS):
        tiny.admit(model.frame, state.frame, row, prompt, SamplingParams(seed=row))
    return state


def frame_of(graphs: FrameGraphs, rows: list[int]) -> StepResult:
    launched, ends = graphs.step(rows)
    assert not ends
    return present(launched).result()


def told(packed: torch.Tensor) -> StepResult:
    return LaunchedStep(len(packed), packed.numpy(), None).result()


def test_a_launch_equals_a_step(model: SpeechModel, state: SpeechState) -> None:
    alone = copy.deepcopy(state)
    graphs = FrameGraphs(model, state)
    for rows in ([0], [2, 1], [0, 5], [3]):
        said = frame_of(graphs, rows)
        run = torch.zeros(ROWS, dtype=torch.bool)
        run[rows] = True
        expected = told(model.step(alone, run))
        assert np.array_equal(said.codes, expected.codes[rows])
        np.testing.assert_allclose(said.pcm, expected.pcm[rows], atol=1)
        assert np.array_equal(said.ended, expected.ended[rows])
        assert np.array_equal(said.finite, expected.finite[rows])
        assert said.finite.all()
        assert not said.ended.any()
        assert np.abs(said.pcm).max() > 0
    assert torch.equal(state.frame.position, alone.frame.position)
    padding_position = state.frame.cache.padding_position
    torch.testing.assert_close(
        state.frame.cache.keys[:, :, :padding_position], alone.frame.cache.keys[:, :, :padding_position]
    )


def test_a_result_is_unchanged_by_the_next_launch(model: SpeechModel, state: SpeechState) -> None:
    graphs = FrameGraphs(model, state)
    first = frame_of(graphs, [0])
    kept = first.pcm.copy()
    second = frame_of(graphs, [0])
    assert np.array_equal(first.pcm, kept)
    assert not np.array_equal(second.pcm, kept)


def test_a_batch_takes_any_rows_in_any_order(model: SpeechModel, state: SpeechState) -> None:
    """It equals a step of the same rows in place and leaves other rows unchanged. A padding row may occur twice."""
    in_place = copy.deepcopy(state)
    padding_row = 5
    state.frame.ended[padding_row] = in_place.frame.ended[padding_row] = True
    for rows in ([4, 1], [1, 3, padding_row, padding_row], [4, 0, 1, 2], [3], [2, 4]):
        found = told(model.step(state, torch.ones(len(rows), dtype=torch.bool), torch.tensor(rows)))
        run = torch.zeros(ROWS, dtype=torch.bool)
        run[rows] = True
        expected = told(model.step(in_place, run))
        speakers = [row for row in rows if row != padding_row]
        assert found.finite.tolist() == [row != padding_row for row in rows]
        assert np.array_equal(found.codes[: len(speakers)], expected.codes[speakers])
        np.testing.assert_allclose(found.pcm[: len(speakers)], expected.pcm[speakers], atol=1)
        for mine, theirs in zip(_remembered(state), _remembered(in_place), strict=True):
            torch.testing.assert_close(mine, theirs)


def _remembered(state: SpeechState) -> list[torch.Tensor]:
    """The state of all rows but the padding row; without the codec's rings, where a paused row may write ahead."""
    frame, codec = state.frame, state.codec
    counters = (frame.position, frame.text_read, frame.frame, frame.ended, codec.position)
    padding_position = frame.cache.padding_position
    tensors = [*counters, frame.feedback, frame.seen]
    return [*(tensor[:5] for tensor in tensors), frame.cache.keys[:, :5, :padding_position]]
