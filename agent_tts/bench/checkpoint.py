"""Checkpoints with random weights in the released layout, at the released sizes and ids, for tests and measurements.

They hold no speech. What they share with the released ones is everything that costs time or can be got wrong: names,
shapes, dtypes, vocabularies, prompts, the path of every value through the model.

The entries of their configurations are in checkpoint.json. Transformers of the tiny sizes have heads that are wider
than the hidden size divided by them, as the released ones have; tiny-0.6B has no projection into the predictor, and
ignores instructions.

The text tokenizer is a byte-level BPE with few merges. The prompt's slices count tokens, so `assistant`, `user` and a
newline are one token each, at their released ids. Ids that no merge makes are fillers, up to the special tokens.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from agent_tts.errors import SettingsError
from agent_tts.model.clone import CodecEncoder, EncoderConfig, SpeakerEncoder
from agent_tts.model.codec import Codec
from agent_tts.model.config import ModelConfig, ModelType
from agent_tts.model.entries import JsonObject, Shape
from agent_tts.model.frame import FrameModel
from agent_tts.model.weights import build
from agent_tts.voices.library import CODEBOOKS, Consent, StoredVoice, VoiceLibrary

ENTRIES: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
FIRST_SPECIAL = 151_643
_FIXED_IDS: dict[str, int] = ENTRIES["tokens"]["fixed"]
_WORDS = (*_FIXED_IDS, *ENTRIES["tokens"]["words"])  # fixed ones first, so that no other merge can cut into them

CheckpointSize = dict[str, Any]

# How large the parts of each checkpoint are: talker, predictor and codec are transformers; codec_widths and encoder are
# further widths of the codec's decoder and those of its encoder; speaker_encoder has what differs from the reference
# implementation. mrope_section sums to half the talker's head_dim.
SIZES: dict[str, CheckpointSize] = ENTRIES["sizes"]

# Synthetic voices for the types of checkpoint that have none; they cost what a person's do.
XVECTOR, ICL = "xvector", "icl"  # a speaker's vector alone; with a clip that is spoken on from
CLIP_FRAMES = 38  # 3 s
TRANSCRIPT = "This is how I sound when I speak at my own pace."
INSTRUCTIONS = "A calm woman in her forties with a low, warm voice, who speaks slowly and clearly."

_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}
_CHUNK = 1 << 24  # elements that are in memory at a time


def write(out: Path, *, size: str = "tiny", model_type: ModelType = "custom_voice", seed: int = 0) -> ModelConfig:
    """Writes a checkpoint folder of a size in `SIZES`; equal arguments give equal bytes. Takes under 1 GB of memory.

    Raises SettingsError: an unknown size or type, or `out` is not empty.
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
    shapes = build(FrameModel, config).checkpoint_shapes()
    if config.speaker_encoder:
        shapes |= build(SpeakerEncoder, config.speaker_encoder).checkpoint_shapes()
    return shapes


def codec_shapes(config: ModelConfig, size: CheckpointSize) -> dict[str, Shape]:
    """Name -> shape of every tensor of speech_tokenizer/model.safetensors."""
    entries = encoder_config(size)
    encoder = EncoderConfig.read(JsonObject(entries, "encoder_config"))
    shapes = build(CodecEncoder, encoder, entries["num_quantizers"]).checkpoint_shapes()
    # Training alone reads these.
    for name, shape in [*shapes.items()]:
        if name.endswith(".cluster_usage"):
            shapes[name.replace("cluster_usage", "initialized")] = (1,)
        elif ".input_proj." in name:
            shapes[name.replace("input_proj", "output_proj")] = (shape[1], shape[0], 1)
    width = config.codec.codebook_dim
    for part in ("rvq_first", "rvq_rest"):
        shapes[f"decoder.quantizer.{part}.input_proj.weight"] = (width // 2, width, 1)
    return build(Codec, config.codec).checkpoint_shapes() | shapes


# ---------------------------------------------------------------- configuration and tokenizer


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
    # The symbols of bytes in the order of their ids: those of printable bytes first.
    names = {token: index for index, token in enumerate(sorted(ByteLevel.alphabet()))} | _FIXED_IDS
    free = iter(sorted(set(range(FIRST_SPECIAL)) - set(names.values())))
    names |= {token: next(free) for token in made if token not in names}
    names |= {f"filler{index}": index for index in free}
    vocabulary = dict(sorted(names.items(), key=lambda item: item[1]))
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), "utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(_settings(), indent=2), "utf-8")


def _merges() -> list[tuple[str, str]]:
    """The pairs that build each word from the left, each once, in order of rank."""
    merges: dict[tuple[str, str], None] = {}
    for word in _WORDS:
        [(symbols, _)] = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(word)
        left, *others = symbols
        for right in others:
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


# ---------------------------------------------------------------- weights
# Scales keep activations of order one through every layer, so that each part of the model is heard in the output. Norms
# and biases differ from their neutral values, so that leaving one out is seen.


def write_random(path: Path, shapes: Mapping[str, Shape], dtype: torch.dtype, seed: int) -> None:
    """Writes a safetensors file in the order of `shapes`. A tensor depends on the seed, its name and its shape."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            for values in _draw(name, shape, seed):
                file.write(values.to(dtype).view(torch.uint8).numpy().tobytes())


def _draw(name: str, shape: Shape, seed: int) -> Iterator[Tensor]:
    """The elements of a tensor in order, in pieces."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    mean, deviation = distribution(name, shape)
    left = math.prod(shape)
    while left > 0:
        count = min(left, _CHUNK)
        left -= count
        yield torch.empty(count).normal_(mean, deviation, generator=generator)


def distribution(name: str, shape: Shape) -> tuple[float, float]:
    """Mean and standard deviation, by what the tensor is for."""
    match name.rpartition(".")[2]:
        case "initialized":
            return 1.0, 0.0
        case "cluster_usage":
            return 1.0, 0.1
        case "embedding_sum" | "embed_sum":  # a frame is the sum of sixteen
            return 0.0, 0.25
        case "alpha" | "beta":  # exponents
            return 0.0, 0.2
        case "scale" | "gamma":
            return 0.5, 0.1
        case "bias":
            return 0.0, 0.05
    if len(shape) == 1:  # a norm's weight
        return 1.0, 0.1
    if "embedding" in name:  # an input is the sum of seventeen of them
        return 0.0, 0.25
    inputs, gain = math.prod(shape[1:]), 1.0
    if name.startswith("decoder.upsample.") and name.endswith(".0.conv.weight"):
        inputs = shape[0]  # transposed: [inputs, outputs, kernel]
    elif name.startswith("decoder.decoder."):
        if name.endswith(".block.1.conv.weight"):  # transposed, and two taps make a sample
            inputs = 2 * shape[0]
        elif ".conv2." in name:  # the end of a residual unit
            gain = 0.3
        elif shape[0] == 1:  # the waveform: within -1 and 1 nearly always
            gain = 0.1
    return 0.0, gain / math.sqrt(inputs)


@dataclass(frozen=True, slots=True, eq=False)
class SyntheticClone:
    """What a cloned voice is made of."""

    vector: NDArray[np.float32]  # [H]
    codes: NDArray[np.int64]  # [CLIP_FRAMES, 16]
    transcript: str = TRANSCRIPT

    @classmethod
    def synthetic(cls, hidden_size: int, codebook_size: int) -> SyntheticClone:
        """The same at every call, for a model of this hidden size and a codec of this many codes."""
        draw = np.random.default_rng(0)
        vector = draw.standard_normal(hidden_size).astype(np.float32)
        return cls(vector, draw.integers(codebook_size, size=(CLIP_FRAMES, CODEBOOKS)))


def add_clones(folder: Path, clone: SyntheticClone) -> None:
    """A library of two voices, `XVECTOR` and `ICL`, in a folder."""
    library = VoiceLibrary(folder, limit=2)
    consent = Consent("made up of random numbers")
    vector = {f"vector_{len(clone.vector)}": clone.vector}
    library.add(StoredVoice(name=XVECTOR, kind="cloned", consent=consent), vector)
    voice = StoredVoice(name=ICL, kind="cloned", consent=consent, transcript=clone.transcript)
    library.add(voice, vector | {"codes": clone.codes.astype(np.int16)})
