"""A LoRA adapter of the talker, arXiv:2106.09685, in the two files that PEFT saves. No torch here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_tts.model.config import TransformerConfig
from agent_tts.model.entries import CheckpointError, JsonObject, Shape, brief, tensor_shapes

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_BYTES = 1 << 30  # of the weights
MAX_RANK = 1 << 16

# Trained in the whole model, in its talker, or in the talker's transformer.
_NAME = re.compile(
    r"base_model\.model\.(?:talker\.model\.|model\.)?"
    r"layers\.(?P<layer>\d{1,3})\.(?P<linear>(?:self_attn|mlp)\.\w+)\.lora_(?P<side>[AB])\.weight"
)
_RELEASED = re.compile(r"Qwen3-TTS-12Hz-[\d.]+B-[A-Za-z]+")
# Entries that say how it was made, or that are read below. Every other one has to be empty: it may change the values.
_HARMLESS = {"auto_mapping", "base_model_name_or_path", "exclude_modules", "inference_mode", "init_lora_weights"}
_HARMLESS |= {"layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core", "peft_type"}
_HARMLESS |= {"peft_version", "qalora_group_size", "r", "revision", "runtime_config", "target_modules", "task_type"}
_HARMLESS |= {"use_rslora"}
# Other ways to begin, such as PiSSA, also change the weights of the base.
_INITIAL = (True, False, None, "gaussian", "orthogonal", "eva")


@dataclass(frozen=True, slots=True)
class _Entries:
    r: int
    lora_alpha: float
    use_rslora: bool = False
    base_model_name_or_path: str | None = None


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """A linear layer of weight W becomes W + `scale` B A, with A [rank, inputs] and B [outputs, rank]."""

    weights: Path
    rank: int
    scale: float
    base: str  # the model that it was trained on, or its folder; may be empty
    # Layer and linear layer of it, such as "self_attn.q_proj" -> the names of A and B in the file.
    pairs: Mapping[tuple[int, str], tuple[str, str]]
    shapes: Mapping[str, Shape]  # by name in the file

    @staticmethod
    def read(folder: Path) -> AdapterFile:
        """Reads the configuration, and of the weights the header.

        Raises CheckpointError: a file is missing, damaged or too large, or it is another kind of adapter.
        """
        entries = JsonObject.load(folder, CONFIG)
        entries.require("peft_type", "LORA")
        for name, value in entries.entries.items():
            if name not in _HARMLESS and value not in (None, False, "none", {}, []):
                raise CheckpointError(f"{CONFIG}: {name} is {brief(value)}, which is not supported")
        if entries.entries.get("init_lora_weights") not in _INITIAL:
            raise CheckpointError(f"{CONFIG}: init_lora_weights changes the base model: convert it to plain LoRA")
        if "CodePredictor" in str(entries.entries.get("auto_mapping")):
            raise _of_others("the code predictor")
        config = entries.typed(_Entries)
        if not 1 <= config.r <= MAX_RANK or not math.isfinite(config.lora_alpha):
            raise CheckpointError(f"{CONFIG}: r is {brief(config.r)}, lora_alpha {config.lora_alpha}")
        shapes = tensor_shapes(folder, WEIGHTS, MAX_BYTES)
        scale = config.lora_alpha / (math.sqrt(config.r) if config.use_rslora else config.r)
        base = config.base_model_name_or_path or ""
        return AdapterFile(folder / WEIGHTS, config.r, scale, base, _pairs(shapes), shapes)

    def check(self, talker: TransformerConfig, name: str) -> None:
        """Raises CheckpointError: it does not fit the talker of the model `name`."""
        trained, speaks = _RELEASED.search(self.base), _RELEASED.search(name)
        if trained and speaks and trained[0] != speaks[0]:
            raise CheckpointError(f"{CONFIG}: it was trained on {trained[0]}; this model is {speaks[0]}")
        linears = linear_shapes(talker)
        for (layer, linear), (a, b) in self.pairs.items():
            if linear not in linears or layer >= talker.num_hidden_layers:
                layers = f"{talker.num_hidden_layers} layers, each with {', '.join(linears)}"
                raise CheckpointError(f"{WEIGHTS}: {a}: the talker has {layers}")
            outputs, inputs = linears[linear]
            for tensor, shape in ((a, (self.rank, inputs)), (b, (outputs, self.rank))):
                if self.shapes[tensor] != shape:
                    raise CheckpointError(f"{WEIGHTS}: {tensor} {self.shapes[tensor]} instead of {shape}")


def linear_shapes(talker: TransformerConfig) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of the linear layers of one layer."""
    width, inner = talker.hidden_size, talker.intermediate_size
    queries, pairs = talker.num_attention_heads * talker.head_dim, talker.num_key_value_heads * talker.head_dim
    attention = {"q_proj": (queries, width), "k_proj": (pairs, width), "v_proj": (pairs, width)}
    mlp = {"gate_proj": (inner, width), "up_proj": (inner, width), "down_proj": (width, inner)}
    named = {f"self_attn.{name}": shape for name, shape in (attention | {"o_proj": (width, queries)}).items()}
    return named | {f"mlp.{name}": shape for name, shape in mlp.items()}


def _pairs(shapes: Mapping[str, Shape]) -> dict[tuple[int, str], tuple[str, str]]:
    found: dict[tuple[int, str], dict[str, str]] = {}
    for name in shapes:
        match = _NAME.fullmatch(name)
        if match is None:
            raise _of_others(name)
        found.setdefault((int(match["layer"]), match["linear"]), {})[match["side"]] = name
    if not found:
        raise CheckpointError(f"{WEIGHTS}: it is empty")
    if halves := [sides.popitem()[1] for sides in found.values() if len(sides) < 2]:
        raise CheckpointError(f"{WEIGHTS}: {halves[0]}: lora_A and lora_B come in pairs")
    return {place: (sides["A"], sides["B"]) for place, sides in found.items()}


def _of_others(what: str) -> CheckpointError:
    wanted = r"target_modules=r'.*talker\.model\.layers\..*_proj'"
    return CheckpointError(f"{WEIGHTS}: {what}: only linear layers of the talker may have adapters: {wanted}")
