"""Configuration and tokenizer of a synthetic checkpoint: the released sizes, ids and names, and sizes for tests.

Its entries are in checkpoint_config.json. Transformers of the tiny sizes have heads that are wider than the hidden size
divided by them, as the released ones have; tiny-0.6B has no projection into the predictor, and ignores instructions.

The text tokenizer is a byte-level BPE with few merges. The prompt's slices count tokens, so `assistant`, `user` and a
newline are one token each, at their released ids. Ids that no merge makes are fillers, up to the special tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agent_tts.model.config import ModelConfig, ModelType

ENTRIES: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
FIRST_SPECIAL = 151_643
_FIXED_IDS: dict[str, int] = ENTRIES["tokens"]["fixed"]
_WORDS = (*_FIXED_IDS, *ENTRIES["tokens"]["words"])  # fixed ones first, so that no other merge can cut into them

CheckpointSize = dict[str, Any]

# How large the parts of each checkpoint are: talker, predictor and codec are transformers; codec_widths and encoder are
# further widths of the codec's decoder and those of its encoder; speaker_encoder has what differs from the reference
# implementation. mrope_section sums to half the talker's head_dim.
SIZES: dict[str, CheckpointSize] = ENTRIES["sizes"]


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
    layer_types = ["full_attention"] * size["predictor"]["num_hidden_layers"]
    sized = {
        "code_predictor_config": common | predictor | size["predictor"] | {"layer_types": layer_types},
        "rope_scaling": talker["rope_scaling"] | {"mrope_section": size["mrope_section"]},
        "text_hidden_size": size["text_hidden_size"],
    }
    config: dict[str, Any] = ENTRIES["config"] | {"tts_model_size": size["label"], "tts_model_type": model_type}
    config["talker_config"] = common | talker | voices | size["talker"] | sized
    if model_type == "base":
        vector = {"enc_dim": size["talker"]["hidden_size"], "sample_rate": 24_000}
        config["speaker_encoder_config"] = vector | size["speaker_encoder"]
    return config


def codec_config(size: CheckpointSize) -> dict[str, Any]:
    decoder = ENTRIES["decoder"] | size["codec"] | size["codec_widths"]
    codec: dict[str, Any] = ENTRIES["codec"]
    return codec | {"decoder_config": decoder, "encoder_config": encoder_config(size)}


def encoder_config(size: CheckpointSize) -> dict[str, Any]:
    """The entries of the Mimi whose first half encodes."""
    entries: dict[str, Any] = ENTRIES["encoder"] | size["encoder"]
    return entries


def write_tokenizer(folder: Path) -> None:
    """Writes vocab.json, merges.txt and tokenizer_config.json."""
    merges = _merges()
    made = dict.fromkeys("".join(pair) for pair in merges)
    names = {token: index for index, token in enumerate(_byte_symbols().values())} | _FIXED_IDS
    free = iter(sorted(set(range(FIRST_SPECIAL)) - set(names.values())))
    names |= {token: next(free) for token in made if token not in names}
    names |= {f"filler{index}": index for index in free}
    vocabulary = dict(sorted(names.items(), key=lambda item: item[1]))
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), "utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(_settings(), indent=2), "utf-8")


def _byte_symbols() -> dict[int, str]:
    """The character that stands for each byte, in the order of their ids: printable bytes first, then the others."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}


def _merges() -> list[tuple[str, str]]:
    """The pairs that build each word from the left, each once, in order of rank."""
    symbol = _byte_symbols()
    merges: dict[tuple[str, str], None] = {}
    for word in _WORDS:
        symbols = [symbol[byte] for byte in word.encode()]
        left = symbols[0]
        for right in symbols[1:]:
            merges[left, right] = None
            left += right
    return list(merges)


def _settings() -> dict[str, Any]:
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    spoken = ("tool_call", "tool_response", "think", "fim_", "repo_name", "file_sep")  # tokens, but not control tokens
    added = {
        str(FIRST_SPECIAL + index): {"content": token, **plain, "special": not any(word in token for word in spoken)}
        for index, token in enumerate(ENTRIES["tokens"]["special"])
    }
    settings: dict[str, Any] = ENTRIES["tokenizer"]
    return settings | {"added_tokens_decoder": added}
