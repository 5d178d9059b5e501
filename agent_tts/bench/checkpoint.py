"""Checkpoints with random weights in the released layout, at the released sizes and ids, for tests and measurements.

They hold no speech. What they share with the released ones is everything that costs time or can be got wrong: names,
shapes, dtypes, vocabularies, prompts, the path of every value through the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import torch
from torch import nn

from agent_tts.bench.checkpoint_config import SIZES, CheckpointSize, encoder_config, write_configuration
from agent_tts.bench.checkpoint_tokenizer import write_tokenizer
from agent_tts.bench.checkpoint_weights import Shape, write_random
from agent_tts.errors import SettingsError
from agent_tts.model.clone import CodecEncoder
from agent_tts.model.codec import Codec
from agent_tts.model.config import ModelConfig, ModelType
from agent_tts.model.frame import FrameModel
from agent_tts.model.speaker import SpeakerEncoder
from agent_tts.model.weights import build


def write(out: Path, *, size: str = "tiny", model_type: ModelType = "custom_voice", seed: int = 0) -> ModelConfig:
    """Writes a checkpoint folder; equal arguments give equal bytes. Memory stays under 1 GB for every size.

    Args:
        out: made if it is not there; has to be empty.
        size: a key of `SIZES`.
    Returns:
        the configuration, as read back.
    Raises:
        SettingsError: an unknown size or type, or a folder that is not empty.
    """
    if size not in SIZES:
        raise SettingsError(f"unknown size {size!r}; known are {', '.join(SIZES)}")
    if model_type not in get_args(ModelType):
        raise SettingsError(f"unknown type {model_type!r}; known are {', '.join(get_args(ModelType))}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SettingsError("the output has to be a new or an empty folder")
    config = write_configuration(out, SIZES[size], model_type)
    write_tokenizer(out)
    write_random(out / "model.safetensors", model_shapes(config), torch.bfloat16, seed)
    write_random(out / "speech_tokenizer/model.safetensors", codec_shapes(config, SIZES[size]), torch.float32, seed)
    return config


def model_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name -> shape of every tensor of model.safetensors."""
    model = build(FrameModel, config)
    shapes = _shapes(model, model.checkpoint_names())
    if config.speaker_encoder:
        speaker = build(SpeakerEncoder, config.speaker_encoder)
        shapes |= _shapes(speaker, speaker.checkpoint_names())
    return shapes


def codec_shapes(config: ModelConfig, size: CheckpointSize) -> dict[str, Shape]:
    """Name -> shape of every tensor of speech_tokenizer/model.safetensors: decoder, and half a Mimi to encode."""
    decoder, width = build(Codec, config.codec), config.codec.codebook_dim
    encoder = build(CodecEncoder, encoder_config(size), config.codec.num_quantizers)
    shapes = _shapes(decoder, decoder.checkpoint_names()) | _shapes(encoder, encoder.checkpoint_names())
    for part in ("rvq_first", "rvq_rest"):
        shapes[f"decoder.quantizer.{part}.input_proj.weight"] = (width // 2, width, 1)  # only training reads it
    return shapes


def _shapes(module: nn.Module, names: Mapping[str, str]) -> dict[str, Shape]:
    """The tensors of a module under their names in the checkpoint."""
    state = module.state_dict()
    return {theirs: tuple(state[ours].shape) for ours, theirs in names.items()}
