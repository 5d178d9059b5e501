"""Tests of what only runs on a GPU: pytest -m gpu tests/gpu."""

from __future__ import annotations

import pytest

from agent_tts.model.speech import SpeechModel


@pytest.fixture(scope="module")
def model() -> SpeechModel:
    """1.7B with random weights: the kernels as they are tuned, at the sizes that they are tuned for."""
    from agent_tts.bench.frame import synthetic

    return synthetic("1.7B")
