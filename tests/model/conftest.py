"""Checkpoints that the tests of the model share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from agent_tts.bench.checkpoint import write
from agent_tts.model.config import ModelConfig, ModelType

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


@pytest.fixture(scope="session")
def ending(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """The same checkpoints, but they say the end of speech soon after the end of their text, as trained ones do."""

    @cache
    def folder(model_type: ModelType, size: str = "tiny") -> Path:
        source = checkpoint(model_type, size)
        out = tmp_path_factory.mktemp(f"ending-{size}-{model_type}") / source.name
        shutil.copytree(source, out)
        eos = ModelConfig.read(out).talker.codec_eos_token_id
        tensors = load_file(out / "model.safetensors")
        tensors["talker.codec_head.weight"][eos] *= 30
        save_file(tensors, out / "model.safetensors", {"format": "pt"})
        return out

    return folder
