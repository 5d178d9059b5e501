"""Tests of what only runs on a GPU; elsewhere they are skipped."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from agent_tts.model.speech import SpeechModel


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = None
    if not torch.cuda.is_available():
        reason = "torch finds no CUDA GPU here"
    elif find_spec("triton") is None:
        reason = "triton is not installed"
    if reason:
        for item in items:
            if item.path.parent.name == "gpu":
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def model() -> SpeechModel:
    """1.7B with random weights: the kernels as they are tuned, at the sizes that they are tuned for."""
    from agent_tts.bench.frame import synthetic

    return synthetic("1.7B")
