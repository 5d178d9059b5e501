"""Checkpoints with random weights in the released layout, at the released sizes and ids, for tests and measurements.

They hold no speech. What they share with the released ones is everything that costs time or can be got wrong: names,
shapes, dtypes, vocabularies, prompts, the path of every value through the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

import torch
from torch import nn

from agent_tts.bench.checkpoint_config import SIZES, Size, encoder_config, write_configuration
from agent_tts.bench.checkpoint_tokenizer import write_tokenizer
from agent_tts.bench.checkpoint_weights import Shape, write_random
from agent_tts.errors import SettingsError
from agent_tts.model.codec import Codec
from agent_tts.model.config import ModelConfig, ModelType
from agent_tts.model.frame import FrameModel
from agent_tts.model.weights import build

_MIMI_DECODING = ("upsample.", "decoder_transformer.", "decoder.")


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
    write_random(out / "model.safetensors", model_shapes(config, SIZES[size]), torch.bfloat16, seed)
    write_random(out / "speech_tokenizer/model.safetensors", codec_shapes(config, SIZES[size]), torch.float32, seed)
    return config


def model_shapes(config: ModelConfig, size: Size) -> dict[str, Shape]:
    """Name -> shape of every tensor of model.safetensors."""
    model = build(FrameModel, config)
    shapes = _shapes(model, model.checkpoint_names())
    if config.speaker_encoder:
        for name, shape in _speaker_encoder_convolutions(config.speaker_encoder.enc_dim, **size.speaker_encoder):
            shapes[f"speaker_encoder.{name}.weight"] = shape
            shapes[f"speaker_encoder.{name}.bias"] = shape[:1]
    return shapes


def codec_shapes(config: ModelConfig, size: Size) -> dict[str, Shape]:
    """Name -> shape of every tensor of speech_tokenizer/model.safetensors: decoder, and half a Mimi to encode."""
    from transformers import MimiConfig, MimiModel

    decoder, width = build(Codec, config.codec), config.codec.codebook_dim
    with torch.device("meta"):
        mimi = MimiModel(MimiConfig(**encoder_config(size)))  # type: ignore[no-untyped-call]
    encoding = {name: f"encoder.{name}" for name in mimi.state_dict() if not name.startswith(_MIMI_DECODING)}
    shapes = _shapes(decoder, decoder.checkpoint_names()) | _shapes(mimi, encoding)
    for part in ("rvq_first", "rvq_rest"):
        shapes[f"decoder.quantizer.{part}.input_proj.weight"] = (width // 2, width, 1)  # only training reads it
    return shapes


def _shapes(module: nn.Module, names: Mapping[str, str]) -> dict[str, Shape]:
    """The tensors of a module under their names in the checkpoint."""
    state = module.state_dict()
    return {theirs: tuple(state[ours].shape) for ours, theirs in names.items()}


def _speaker_encoder_convolutions(
    enc_dim: int,
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536),
    enc_attention_channels: int = 128,
    enc_res2net_scale: int = 8,
    enc_se_channels: int = 128,
) -> Iterator[tuple[str, Shape]]:
    """The convolutions of the ECAPA-TDNN that makes a speaker vector from 128 mel bands."""
    first, *blocks, pooled = enc_channels
    yield "blocks.0.conv", (first, 128, 5)
    for number, (inputs, outputs) in enumerate(zip(enc_channels, blocks, strict=False), 1):
        part = outputs // enc_res2net_scale
        yield f"blocks.{number}.tdnn1.conv", (outputs, inputs, 1)
        for branch in range(enc_res2net_scale - 1):
            yield f"blocks.{number}.res2net_block.blocks.{branch}.conv", (part, part, 3)
        yield f"blocks.{number}.tdnn2.conv", (outputs, outputs, 1)
        yield f"blocks.{number}.se_block.conv1", (enc_se_channels, outputs, 1)
        yield f"blocks.{number}.se_block.conv2", (outputs, enc_se_channels, 1)
    yield "mfa.conv", (pooled, pooled, 1)
    yield "asp.tdnn.conv", (enc_attention_channels, 3 * pooled, 1)
    yield "asp.conv", (pooled, enc_attention_channels, 1)
    yield "fc", (enc_dim, 2 * pooled, 1)
