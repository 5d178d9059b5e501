"""The configuration of a checkpoint: typed, checked, and only what this implementation reads.

Names are those of the checkpoint. A value that is not supported is an error, so that a checkpoint either runs as it was
trained or not at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from agent_tts.model.entries import CheckpointError, JsonObject

MODEL_TYPE = "qwen3_tts"
TOKENIZER_TYPE = "qwen3_tts_tokenizer_12hz"
SAMPLE_RATE = 24_000
FRAME_SAMPLES = 1_920

ModelType = Literal["custom_voice", "voice_design", "base"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """What all transformers have."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorConfig(TransformerConfig):
    """The code predictor: 15 codes of a frame from the talker's hidden state and the first code."""

    vocab_size: int  # codes of one codebook
    num_code_groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerConfig(TransformerConfig):
    """The talker: the first code of each frame. Its rotary embedding has one axis: all have equal positions."""

    max_position_embeddings: int
    vocab_size: int  # codes and control ids
    text_vocab_size: int
    text_hidden_size: int
    num_code_groups: int  # codes of one frame
    codec_pad_id: int
    codec_bos_id: int
    codec_eos_token_id: int
    codec_think_id: int
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int
    codec_language_id: dict[str, int]  # language or dialect, lower case -> id
    spk_id: dict[str, int]  # speaker, lower case -> id; empty unless the type is custom_voice
    spk_is_dialect: dict[str, str | Literal[False]]  # speaker -> its dialect's name in codec_language_id
    code_predictor: PredictorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecConfig(TransformerConfig):
    """The codec's decoder: 16 codes to 80 ms of waveform. It has as many key/value heads as query heads."""

    codebook_dim: int
    codebook_size: int
    latent_dim: int
    attention_bias: bool
    sliding_window: int  # frames that a frame attends to, itself included
    num_quantizers: int
    upsample_rates: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]
    decoder_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerConfig:
    """The speaker encoder; `base` checkpoints only. Defaults are those of the reference implementation.

    Tuples are of the first convolution, the blocks, and the layer that joins them.
    """

    enc_dim: int  # of the speaker vector
    mel_dim: int = 128
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """Sampling defaults of the checkpoint; ours are those of the reference implementation."""

    do_sample: bool = True
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    subtalker_dosample: bool = True
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0
    max_new_tokens: int = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A checkpoint folder: config.json, generation_config.json and speech_tokenizer/config.json."""

    tts_model_type: ModelType
    tts_model_size: str  # "0b6" or "1b7"
    im_start_token_id: int
    im_end_token_id: int
    tts_pad_token_id: int
    tts_bos_token_id: int
    tts_eos_token_id: int
    talker: TalkerConfig
    codec: CodecConfig
    speaker_encoder: SpeakerConfig | None  # None unless the type is base
    generation: GenerationConfig

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads a folder in the released layout. Raises CheckpointError: an entry is missing or not supported."""
        top = JsonObject.load(folder, "config.json")
        tokenizer = JsonObject.load(folder, "speech_tokenizer/config.json")
        _refuse_25_hz(top, tokenizer)
        top.require("model_type", MODEL_TYPE)
        talker, decoder = top.section("talker_config"), tokenizer.section("decoder_config")
        predictor = talker.section("code_predictor_config")
        _require_supported(tokenizer, talker, predictor, decoder)
        speaker_encoder = None
        if top.entries.get("tts_model_type") == "base":
            section = top.section("speaker_encoder_config")
            section.require("sample_rate", SAMPLE_RATE, default=SAMPLE_RATE)
            speaker_encoder = section.typed(SpeakerConfig)
        config = top.typed(
            cls,
            talker=talker.typed(TalkerConfig, code_predictor=predictor.typed(PredictorConfig)),
            codec=decoder.typed(CodecConfig),
            speaker_encoder=speaker_encoder,
            generation=JsonObject.load(folder, "generation_config.json").typed(GenerationConfig),
        )
        config._check()
        return config

    def _check(self) -> None:
        """Checks entries that have to agree."""
        talker, predictor, codec = self.talker, self.talker.code_predictor, self.codec
        samples = math.prod(codec.upsample_rates) * math.prod(codec.upsampling_ratios)
        ids = [
            *(talker.codec_pad_id, talker.codec_bos_id, talker.codec_eos_token_id, talker.codec_think_id),
            *(talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id),
            *talker.codec_language_id.values(),
            *talker.spk_id.values(),
        ]
        unknown = {name for name in talker.spk_is_dialect.values() if name and name not in talker.codec_language_id}
        texts = [self.im_start_token_id, self.im_end_token_id]
        texts += [self.tts_pad_token_id, self.tts_bos_token_id, self.tts_eos_token_id]
        rules = {
            f"the talker says {talker.num_code_groups} codes a frame, the code predictor {predictor.num_code_groups}": (
                talker.num_code_groups == predictor.num_code_groups
            ),
            f"the talker says {talker.num_code_groups} codes a frame, the codec reads {codec.num_quantizers}": (
                talker.num_code_groups == codec.num_quantizers
            ),
            f"the predictor has {predictor.vocab_size} codes, the codec's codebooks {codec.codebook_size}": (
                predictor.vocab_size == codec.codebook_size
            ),
            f"the codec makes {samples} samples of a frame; {FRAME_SAMPLES} are supported": samples == FRAME_SAMPLES,
            f"the codec has {codec.num_key_value_heads} key heads for {codec.num_attention_heads} query heads": (
                codec.num_key_value_heads == codec.num_attention_heads
            ),
            f"a language, speaker or control id is not within the talker's vocabulary of {talker.vocab_size}": (
                all(0 <= code < talker.vocab_size for code in ids)
            ),
            f"a text id is not within the text vocabulary of {talker.text_vocab_size}": (
                all(0 <= token < talker.text_vocab_size for token in texts)
            ),
            f"spk_is_dialect names {', '.join(sorted(unknown))}, which codec_language_id does not have": not unknown,
        }
        if speaker := self.speaker_encoder:
            rules[f"speaker vectors of {speaker.enc_dim} for a talker of {talker.hidden_size}"] = (
                speaker.enc_dim == talker.hidden_size
            )
            widths = speaker.enc_channels
            rules[f"a speaker encoder of {widths} channels; the last has to join blocks of equal width"] = (
                len(set(widths[:-1])) == 1 and sum(widths[1:-1]) == widths[-1]
            )
            rules["enc_channels, enc_kernel_sizes and enc_dilations have to be equally many"] = (
                len(widths) == len(speaker.enc_kernel_sizes) == len(speaker.enc_dilations)
            )
        for complaint, holds in rules.items():
            if not holds:
                raise CheckpointError(f"config.json: {complaint}")


def _refuse_25_hz(top: JsonObject, tokenizer: JsonObject) -> None:
    for section, entry in ((top, "tokenizer_type"), (tokenizer, "model_type")):
        if "25hz" in str(section.entries.get(entry)):
            raise CheckpointError(
                f"{section.where}: {entry} is {section.entries[entry]!r}: a 25 Hz checkpoint; "
                "only 12.5 Hz checkpoints (Qwen3-TTS-12Hz-...) are supported"
            )


def _require_supported(tokenizer: JsonObject, talker: JsonObject, predictor: JsonObject, decoder: JsonObject) -> None:
    tokenizer.require("model_type", TOKENIZER_TYPE)
    tokenizer.require("output_sample_rate", SAMPLE_RATE)
    tokenizer.require("decode_upsample_rate", FRAME_SAMPLES)
    for section in (talker, predictor):
        section.require("attention_bias", False, default=False)
        section.require("use_sliding_window", False, default=False)
    for section in (talker, predictor, decoder):
        section.require("hidden_act", "silu", default="silu")
        scaling = section.entries.get("rope_scaling") or {}
        kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else scaling
        if kind != "default":
            raise CheckpointError(f"{section.where}: rope_scaling of type {kind!r} is not supported; only 'default' is")
