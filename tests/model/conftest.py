"""Checkpoints that the tests of the model share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from agent_tts.bench.checkpoint import write
from agent_tts.model.config import ModelType

# A model type and a key of `SIZES` -> a checkpoint folder, which is not to be written to.
Checkpoint = Callable[..., Path]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Models this small are slower on more threads."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """`checkpoint("base")` or `checkpoint("custom_voice", "tiny-0.6B")`: written once a session, on first use."""

    @cache
    def folder(model_type: ModelType, size: str = "tiny") -> Path:
        out = tmp_path_factory.mktemp(f"{size}-{model_type}")
        write(out, size=size, model_type=model_type)
        return out

    return folder
