"""The configuration of a synthetic checkpoint: the released sizes, ids and names, and sizes for tests.

Its entries are in checkpoint_config.json. Transformers of the tiny sizes have heads that are wider than the hidden size
divided by them, as the released ones have; tiny-0.6B has no projection into the predictor, and ignores instructions.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_tts.model.config import ModelConfig, ModelType

ENTRIES: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSize:
    """The entries that a transformer's size is made of."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSize:
    """How large the parts of a checkpoint are."""

    label: str  # tts_model_size
    talker: TransformerSize
    text_hidden_size: int
    mrope_section: tuple[int, int, int]  # sums to half the talker's head_dim
    predictor: TransformerSize
    codec: TransformerSize
    codec_widths: dict[str, int]  # further widths of the codec's decoder
    encoder: dict[str, int]  # widths of the codec's encoder
    speaker_encoder: dict[
        str, Any
    ]  # entries unlike the reference implementation's; enc_dim is the talker's hidden size


def _size(entries: dict[str, Any]) -> CheckpointSize:
    transformers = {name: TransformerSize(**entries[name]) for name in ("talker", "predictor", "codec")}
    return CheckpointSize(**(entries | transformers))


SIZES = {name: _size(entries) for name, entries in ENTRIES["sizes"].items()}


def write_configuration(out: Path, size: CheckpointSize, model_type: ModelType) -> ModelConfig:
    """Write the JSON files that say what the checkpoint is."""
    files = {"config.json": _config(size, model_type), "speech_tokenizer/config.json": codec_config(size)}
    (out / "speech_tokenizer").mkdir(parents=True, exist_ok=True)
    for name, entries in (files | ENTRIES["files"]).items():
        (out / name).write_text(json.dumps(entries, indent=2), "utf-8")
    return ModelConfig.read(out)


def _config(size: CheckpointSize, model_type: ModelType) -> dict[str, Any]:
    common, predictor, talker = ENTRIES["transformer"], ENTRIES["predictor"], ENTRIES["talker"]
    voices = ENTRIES["named_voices"]
    if model_type != "custom_voice":  # no voices, and none of the languages that are their dialects
        spoken = {name: code for name, code in voices["codec_language_id"].items() if not name.endswith("_dialect")}
        voices = {"codec_language_id": spoken, "spk_id": {}, "spk_is_dialect": {}}
    layer_types = ["full_attention"] * size.predictor.num_hidden_layers
    sized = {
        "code_predictor_config": common | predictor | asdict(size.predictor) | {"layer_types": layer_types},
        "rope_scaling": talker["rope_scaling"] | {"mrope_section": list(size.mrope_section)},
        "text_hidden_size": size.text_hidden_size,
    }
    config: dict[str, Any] = ENTRIES["config"] | {"tts_model_size": size.label, "tts_model_type": model_type}
    config["talker_config"] = common | talker | voices | asdict(size.talker) | sized
    if model_type == "base":
        vector = {"enc_dim": size.talker.hidden_size, "sample_rate": 24_000}
        config["speaker_encoder_config"] = vector | size.speaker_encoder
    return config


def codec_config(size: CheckpointSize) -> dict[str, Any]:
    decoder = ENTRIES["decoder"] | asdict(size.codec) | size.codec_widths
    codec: dict[str, Any] = ENTRIES["codec"]
    return codec | {"decoder_config": decoder, "encoder_config": encoder_config(size)}


def encoder_config(size: CheckpointSize) -> dict[str, Any]:
    """The entries of the Mimi whose first half encodes."""
    entries: dict[str, Any] = ENTRIES["encoder"]
    return entries | size.encoder
