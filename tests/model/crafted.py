"""Checkpoints with a fault of speech, made of others by changing a few weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from agent_tts.model.config import ModelConfig

LOOPED_CODE = 7


def ending(folder: Path) -> None:
    """Draws the end of speech within some frames after the end of the text, which is early for speech."""
    eos = ModelConfig.read(folder).talker.codec_eos_token_id
    _change(folder, {"talker.codec_head.weight": lambda head: head[eos].mul_(30)})


def endless(folder: Path) -> None:
    """Never draws the end of speech."""
    eos = ModelConfig.read(folder).talker.codec_eos_token_id
    _change(folder, {"talker.codec_head.weight": lambda head: head[eos].zero_()})


def looping(folder: Path) -> None:
    """Draws one and the same first code for ever: all inputs share a large part, which only that code's weights see."""
    _change(
        folder,
        {
            "talker.text_projection.linear_fc2.bias": lambda bias: bias.add_(100),
            "talker.codec_head.weight": lambda head: head[LOOPED_CODE].fill_(1),
        },
    )


def _change(folder: Path, changes: dict[str, Callable[[Tensor], object]]) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, change in changes.items():
        change(tensors[name])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
