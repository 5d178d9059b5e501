"""What a synthetic checkpoint says about itself: the released sizes, ids and names, and sizes for tests."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_tts.model.config import MODEL_TYPE, TOKENIZER_TYPE, ModelConfig, ModelType

LANGUAGES = {
    "chinese": 2055,
    "english": 2050,
    "german": 2053,
    "italian": 2070,
    "portuguese": 2071,
    "spanish": 2054,
    "japanese": 2058,
    "korean": 2064,
    "french": 2061,
    "russian": 2069,
}
DIALECTS = {"beijing_dialect": 2074, "sichuan_dialect": 2062}
SPEAKERS = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
SPEAKER_DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}


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
class Size:
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
    ]  # what is not as in the reference implementation; enc_dim is the talker's hidden_size


_PREDICTOR = TransformerSize(
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=5,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
)
_CODEC = TransformerSize(
    hidden_size=512,
    intermediate_size=1024,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=16,
    head_dim=64,
)
_CODEC_WIDTHS = {"latent_dim": 1024, "codebook_dim": 512, "decoder_dim": 1536}
_ENCODER = {
    "hidden_size": 512,
    "num_filters": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2048,
    "codebook_dim": 256,
    "vector_quantization_hidden_dimension": 256,
    "upsample_groups": 512,
}


def _released(label: str, hidden_size: int, intermediate_size: int) -> Size:
    return Size(
        label=label,
        talker=TransformerSize(
            hidden_size=hidden_size,
            intermediate_size=intermediate_size,
            num_hidden_layers=28,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
        ),
        text_hidden_size=2048,
        mrope_section=(24, 20, 20),
        predictor=_PREDICTOR,
        codec=_CODEC,
        codec_widths=_CODEC_WIDTHS,
        encoder=_ENCODER,
        speaker_encoder={},
    )


def _tiny(label: str, predictor_hidden_size: int) -> Size:
    """Runs on a CPU in milliseconds. Heads are wider than the hidden size divided by them, as in the released sizes."""
    return Size(
        label=label,
        talker=TransformerSize(
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
        ),
        text_hidden_size=48,
        mrope_section=(6, 5, 5),
        predictor=TransformerSize(
            hidden_size=predictor_hidden_size,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
        ),
        codec=TransformerSize(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=16,
        ),
        codec_widths={"latent_dim": 48, "codebook_dim": 32, "decoder_dim": 128},
        encoder={
            "hidden_size": 32,
            "num_filters": 4,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 8,
            "intermediate_size": 48,
            "codebook_dim": 16,
            "vector_quantization_hidden_dimension": 16,
            "upsample_groups": 32,
        },
        speaker_encoder={
            "enc_channels": [16, 16, 16, 16, 48],
            "enc_attention_channels": 8,
            "enc_res2net_scale": 4,
            "enc_se_channels": 8,
        },
    )


SIZES = {
    "tiny": _tiny("1b7", predictor_hidden_size=32),
    "tiny-0.6B": _tiny(
        "0b6", predictor_hidden_size=64
    ),  # as 0.6B: no projection into the predictor, instructions ignored
    "0.6B": _released("0b6", hidden_size=1024, intermediate_size=3072),
    "1.7B": _released("1b7", hidden_size=2048, intermediate_size=6144),
}


def write_configuration(out: Path, size: Size, model_type: ModelType) -> ModelConfig:
    """Writes the JSON files that say what the checkpoint is."""
    files = {
        "config.json": _config(size, model_type),
        "generation_config.json": _generation(),
        "preprocessor_config.json": {
            "padding_side": "left",
            "padding_value": 0.0,
            "processor_class": "Qwen3TTSProcessor",
            "return_attention_mask": True,
        },
        "speech_tokenizer/config.json": codec_config(size),
        "speech_tokenizer/configuration.json": {"framework": "pytorch", "task": "feature-extraction"},
        "speech_tokenizer/preprocessor_config.json": {
            "chunk_length_s": None,
            "feature_extractor_type": "EncodecFeatureExtractor",
            "feature_size": 1,
            "overlap": None,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": True,
            "sampling_rate": 24_000,
        },
    }
    (out / "speech_tokenizer").mkdir(parents=True, exist_ok=True)
    for name, entries in files.items():
        (out / name).write_text(json.dumps(entries, indent=2), "utf-8")
    return ModelConfig.read(out)


def _config(size: Size, model_type: ModelType) -> dict[str, Any]:
    rotary = {"interleaved": True, "mrope_section": list(size.mrope_section), "rope_type": "default", "type": "default"}
    common = {"attention_bias": False, "attention_dropout": 0, "hidden_act": "silu", "initializer_range": 0.02}
    common |= {"rms_norm_eps": 1e-06, "rope_theta": 1_000_000, "sliding_window": None, "use_sliding_window": False}
    common |= {"num_code_groups": 16, "use_cache": True}
    named = model_type == "custom_voice"
    predictor = (
        common
        | asdict(size.predictor)
        | {
            "layer_types": ["full_attention"] * size.predictor.num_hidden_layers,
            "max_position_embeddings": 65_536,
            "model_type": "qwen3_tts_talker_code_predictor",
            "rope_scaling": None,
            "vocab_size": 2048,
        }
    )
    talker = (
        common
        | asdict(size.talker)
        | {
            "code_predictor_config": predictor,
            "codec_bos_id": 2149,
            "codec_eos_token_id": 2150,
            "codec_language_id": LANGUAGES | DIALECTS if named else LANGUAGES,
            "codec_nothink_id": 2155,
            "codec_pad_id": 2148,
            "codec_think_bos_id": 2156,
            "codec_think_eos_id": 2157,
            "codec_think_id": 2154,
            "max_position_embeddings": 32_768,
            "model_type": "qwen3_tts_talker",
            "position_id_per_seconds": 13,
            "rope_scaling": rotary,
            "spk_id": SPEAKERS if named else {},
            "spk_is_dialect": {name: SPEAKER_DIALECTS.get(name, False) for name in SPEAKERS} if named else {},
            "text_hidden_size": size.text_hidden_size,
            "text_vocab_size": 151_936,
            "vocab_size": 3072,
        }
    )
    config = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "assistant_token_id": 77_091,
        "im_end_token_id": 151_645,
        "im_start_token_id": 151_644,
        "model_type": MODEL_TYPE,
        "talker_config": talker,
        "tokenizer_type": TOKENIZER_TYPE,
        "transformers_version": "4.57.3",
        "tts_bos_token_id": 151_672,
        "tts_eos_token_id": 151_673,
        "tts_model_size": size.label,
        "tts_model_type": model_type,
        "tts_pad_token_id": 151_671,
    }
    if model_type == "base":
        vector = {"enc_dim": size.talker.hidden_size, "sample_rate": 24_000}
        config["speaker_encoder_config"] = vector | size.speaker_encoder
    return config


def _generation() -> dict[str, Any]:
    sampling = {"temperature": 0.9, "top_k": 50, "top_p": 1.0}
    return {
        "do_sample": True,
        "max_new_tokens": 8192,
        "repetition_penalty": 1.05,
        "subtalker_dosample": True,
        **sampling,
        **{f"subtalker_{name}": value for name, value in sampling.items()},
    }


def codec_config(size: Size) -> dict[str, Any]:
    decoder = (
        asdict(size.codec)
        | size.codec_widths
        | {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "codebook_size": 2048,
            "hidden_act": "silu",
            "layer_scale_initial_scale": 0.01,
            "max_position_embeddings": 8000,
            "num_quantizers": 16,
            "num_semantic_quantizers": 1,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10_000,
            "semantic_codebook_size": 4096,
            "sliding_window": 72,
            "upsample_rates": [8, 5, 4, 3],
            "upsampling_ratios": [2, 2],
            "vector_quantization_hidden_dimension": 512,
        }
    )
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "decode_upsample_rate": 1920,
        "decoder_config": decoder,
        "encode_downsample_rate": 1920,
        "encoder_config": encoder_config(size),
        "encoder_valid_num_quantizers": 16,
        "input_sample_rate": 24_000,
        "model_type": TOKENIZER_TYPE,
        "output_sample_rate": 24_000,
        "transformers_version": "4.57.3",
    }


def encoder_config(size: Size) -> dict[str, Any]:
    """The entries of the Mimi whose first half encodes."""
    return size.encoder | {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "audio_channels": 1,
        "codebook_size": 2048,
        "compress": 2,
        "dilation_growth_rate": 2,
        "hidden_act": "gelu",
        "kernel_size": 7,
        "last_kernel_size": 3,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "norm_eps": 1e-05,
        "num_quantizers": 32,
        "num_residual_layers": 1,
        "num_semantic_quantizers": 1,
        "pad_mode": "constant",
        "residual_kernel_size": 3,
        "rope_theta": 10_000.0,
        "sampling_rate": 24_000,
        "sliding_window": 250,
        "trim_right_ratio": 1.0,
        "upsampling_ratios": [8, 6, 5, 4],
        "use_causal_conv": True,
        "use_conv_shortcut": False,
    }
