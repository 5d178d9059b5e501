"""Adapters of random numbers as PEFT saves them, and checkpoints that have them merged."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from agent_tts.model.config import ModelConfig

LINEARS = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)
# Of `get_peft_model` of the whole model, of its talker, and of the talker's transformer.
PREFIXES = ("base_model.model.talker.model.", "base_model.model.model.", "base_model.model.")
# What PEFT 0.21 writes for `LoraConfig(r=..., lora_alpha=..., target_modules=...)`.
CONFIG: dict[str, Any] = {
    "alpha_pattern": {},
    "auto_mapping": {"base_model_class": "Qwen3TTSForConditionalGeneration"},
    "base_model_name_or_path": "/home/me/base",
    "bias": "none",
    "ensure_weight_tying": False,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_bias": False,
    "lora_dropout": 0.0,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "rank_pattern": {},
    "target_modules": r".*talker\.model\.layers\..*_proj",
    "task_type": None,
    "use_dora": False,
    "use_rslora": False,
}


def write_adapter(
    folder: Path, base: Path, *, seed: int, rank: int = 4, alpha: float = 8.0, prefix: str = PREFIXES[0], **entries: Any
) -> Path:
    """An adapter of every linear layer of the talker of a checkpoint; `entries` are of its configuration."""
    noise = torch.Generator().manual_seed(seed)
    weights, tensors = load_file(base / "model.safetensors"), {}
    for layer in range(ModelConfig.read(base).talker.num_hidden_layers):
        for linear in LINEARS:
            outputs, inputs = weights[f"talker.model.layers.{layer}.{linear}.weight"].shape
            name = f"{prefix}layers.{layer}.{linear}.lora"
            tensors[f"{name}_A.weight"] = torch.randn(rank, inputs, generator=noise) / math.sqrt(inputs)
            tensors[f"{name}_B.weight"] = torch.randn(outputs, rank, generator=noise) / math.sqrt(rank)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | {"r": rank, "lora_alpha": alpha} | entries))
    return folder


def merge(base: Path, adapter: Path, out: Path) -> Path:
    """A checkpoint in float32 with an adapter merged into it, as PEFT's `merge_and_unload` does."""
    shutil.copytree(base, out)
    config = json.loads((adapter / "adapter_config.json").read_text())
    rank = config["r"]
    scale = config["lora_alpha"] / (math.sqrt(rank) if config["use_rslora"] else rank)
    tensors: dict[str, Tensor] = load_file(adapter / "adapter_model.safetensors")
    weights = {name: weight.float() for name, weight in load_file(base / "model.safetensors").items()}
    for name, a in tensors.items():
        if name.endswith("lora_A.weight"):
            inner = name[name.index("layers.") :].replace("lora_A.", "")
            weights[f"talker.model.{inner}"] += scale * tensors[name.replace("lora_A", "lora_B")] @ a
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    return out
