"""Launching frames of the first rows of a state: what a launch gives is what the step gives."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from agent_tts.bench.checkpoint import write
from agent_tts.engine.graphs import BUCKETS, FrameGraphs
from agent_tts.model import codec as codec_module
from agent_tts.model.codec import Codec
from agent_tts.model.frame import FrameModel
from agent_tts.model.prompt import Voice, build_prompt
from agent_tts.model.sampling import Sampling
from agent_tts.model.speech import SpeechModel, SpeechState
from agent_tts.model.weights import build, plan

ROWS = 6
ROLE, TEXT = (151644, 77091, 198), (9707, 11, 1879, 0, 1096)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SpeechModel:
    torch.set_num_threads(1)
    folder: Path = tmp_path_factory.mktemp("tiny")
    config = write(folder, size="tiny")
    frame, codec = build(FrameModel, config), build(Codec, config.codec)
    plan(frame, folder / "model.safetensors", torch.float32).load("cpu")
    plan(codec, folder / "speech_tokenizer/model.safetensors", torch.float32, codec_module.ENCODING).load("cpu")
    return SpeechModel(frame, codec)


@pytest.fixture
def state(model: SpeechModel) -> SpeechState:
    """Everybody has joined, with a seed each."""
    state = model.init_state(ROWS, 64)
    prompt = build_prompt(model.frame.config, Voice("ryan"), role=ROLE, text=TEXT)
    for row in range(ROWS):
        model.frame.join(state.frame, row, prompt, Sampling(seed=row))
    return state


def test_a_launch_is_a_step(model: SpeechModel, state: SpeechState) -> None:
    alone = copy.deepcopy(state)
    graphs = FrameGraphs(model, state, buckets=BUCKETS)
    for rows in ([0], [1, 2], [0, 5], [3]):
        said = graphs.launch(rows).result()
        run = torch.zeros(ROWS, dtype=torch.bool)
        run[rows] = True
        expected = model.step(alone, run)
        count = len(said.codes)
        assert max(rows) < count <= ROWS
        assert np.array_equal(said.codes[rows], expected.codes[rows])
        np.testing.assert_allclose(said.pcm[rows], expected.pcm[rows], atol=1)
        for name in ("spoke", "ended", "starved", "full", "finite"):
            assert np.array_equal(getattr(said, name), getattr(expected, name)[:count])
        assert said.spoke[rows].all()
        assert np.abs(said.pcm[rows]).max() > 0
    assert torch.equal(state.frame.position, alone.frame.position)
    sink = state.frame.cache.sink
    torch.testing.assert_close(state.frame.cache.keys[:, :, :sink], alone.frame.cache.keys[:, :, :sink])


def test_a_result_outlives_the_next_launch(model: SpeechModel, state: SpeechState) -> None:
    graphs = FrameGraphs(model, state)
    first = graphs.launch([0]).result()
    kept = first.pcm.copy()
    second = graphs.launch([0]).result()
    assert np.array_equal(first.pcm, kept)
    assert not np.array_equal(second.pcm, kept)


def test_the_first_rows_are_a_view(model: SpeechModel, state: SpeechState) -> None:
    """A step of them is a step of the state; rows beyond them are left alone."""
    before = copy.deepcopy(state)
    model.step(state.first(2), torch.ones(2, dtype=torch.bool))
    assert (state.frame.position - before.frame.position).tolist() == [1, 1, 0, 0, 0, 0]
    assert torch.equal(state.frame.feedback[2:], before.frame.feedback[2:])
    assert torch.equal(state.codec.position, torch.tensor([1, 1, 0, 0, 0, 0]))
