"""Tests that need a GPU: pytest -m gpu tests/gpu."""

from __future__ import annotations

import pytest
import torch

from agent_tts.model.speech import SpeechModel
from tests.engine.conftest import reads_all_texts_in_a_step

__all__ = ["reads_all_texts_in_a_step"]  # a fixture


@pytest.fixture(scope="session", autouse=True)
def context() -> None:
    """The driver keeps files and threads from its first use: create them before a test looks for leaks."""
    torch.ones(1, device="cuda") @ torch.ones(1, device="cuda")


@pytest.fixture(scope="module")
def model() -> SpeechModel:
    """The 1.7B model with random weights: the kernels run at the sizes that they are tuned for."""
    from agent_tts.bench.frame import synthetic

    return synthetic("1.7B")
