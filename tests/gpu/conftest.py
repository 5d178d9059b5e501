"""Tests of what only runs on a GPU: pytest -m gpu tests/gpu."""

from __future__ import annotations

import pytest
import torch

from agent_tts.model.speech import SpeechModel


@pytest.fixture(scope="session", autouse=True)
def context() -> None:
    """The driver keeps its files and threads from the first use on: they are no test's leak."""
    torch.ones(1, device="cuda") @ torch.ones(1, device="cuda")


@pytest.fixture(scope="module")
def model() -> SpeechModel:
    """1.7B with random weights: the kernels as they are tuned, at the sizes that they are tuned for."""
    from agent_tts.bench.frame import synthetic

    return synthetic("1.7B")
