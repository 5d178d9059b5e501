"""Checkpoints with a fault of speech, made of others by changing a few weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import linear, normalize, silu

from agent_tts.model.config import ModelConfig

LOOPED_CODE = 7


def ending(folder: Path) -> None:
    """Draws the end of speech within some frames after the end of the text, which is early for speech."""
    eos = ModelConfig.read(folder).talker.codec_eos_token_id
    _change(folder, {"talker.codec_head.weight": lambda head: head[eos].mul_(30)})


def behind(folder: Path) -> None:
    """Draws the end of speech right behind its text, and hardly within it: where the mark of the text's end is read."""
    config = ModelConfig.read(folder)
    tensors = load_file(folder / "model.safetensors")
    mark, head = config.tts_eos_token_id, tensors["talker.codec_head.weight"]
    embedded = tensors["talker.model.text_embedding.weight"][mark].mul_(20).float()
    first, second = ([f"talker.text_projection.linear_fc{n}.{part}" for part in ("weight", "bias")] for n in (1, 2))
    projected = linear(silu(linear(embedded, *(tensors[name].float() for name in first))), tensors[second[0]].float())
    head[config.talker.codec_eos_token_id] = normalize(projected, dim=0) * head.float().norm(dim=1).mean()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


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
