"""The configuration of a checkpoint: typed, checked, and only what this implementation reads.

Names are those of the checkpoint, defaults those of the reference implementation's configuration classes. A value that
is not supported is an error, so that a checkpoint either runs as it was trained or not at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self, TypeVar

from agent_tts.model.entries import CheckpointError, JsonObject, brief

MODEL_TYPE = "qwen3_tts"
TOKENIZER_TYPE = "qwen3_tts_tokenizer_12hz"
SAMPLE_RATE = 24_000
FRAME_SAMPLES = 1_920
PEAK = 32_767  # of a sample of int16

ModelType = Literal["custom_voice", "voice_design", "base"]
T = TypeVar("T", bound="TransformerConfig")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 0  # left out: hidden_size / num_attention_heads
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0

    def with_head_dim(self) -> Self:
        """With the size of a head, also where it was left out."""
        return self if self.head_dim else replace(self, head_dim=self.hidden_size // self.num_attention_heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorConfig(TransformerConfig):
    """The code predictor: 15 codes of a frame from the talker's hidden state and the first code."""

    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_hidden_layers: int = 5
    num_attention_heads: int = 16
    num_key_value_heads: int = 8
    head_dim: int = 128
    vocab_size: int = 2048  # codes of one codebook
    num_code_groups: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkerConfig(TransformerConfig):
    """The talker: the first code of each frame. Its rotary embedding has one axis: all have equal positions."""

    hidden_size: int = 1024
    intermediate_size: int = 2048
    num_hidden_layers: int = 20
    num_attention_heads: int = 16
    num_key_value_heads: int = 2
    max_position_embeddings: int = 32_768
    vocab_size: int = 3072  # codes and control ids
    text_vocab_size: int
    text_hidden_size: int = 2048
    num_code_groups: int = 32  # codes of one frame
    codec_pad_id: int = 4196
    codec_bos_id: int = 4197
    codec_eos_token_id: int = 4198
    codec_think_id: int = 4202
    codec_nothink_id: int = 4203
    codec_think_bos_id: int = 4204
    codec_think_eos_id: int = 4205
    # Names are in lower case, as they are looked up.
    codec_language_id: dict[str, int] = field(default_factory=dict)  # language or dialect -> id
    spk_id: dict[str, int] = field(default_factory=dict)  # speaker -> id; empty unless the type is custom_voice
    # Speaker -> its dialect's name in codec_language_id.
    spk_is_dialect: dict[str, str | Literal[False]] = field(default_factory=dict)
    code_predictor: PredictorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecConfig(TransformerConfig):
    """The codec's decoder: 16 codes to 80 ms of waveform. It has as many key/value heads as query heads."""

    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_hidden_layers: int = 8
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    rms_norm_eps: float = 1e-5
    codebook_dim: int
    codebook_size: int = 2048
    latent_dim: int = 1024
    attention_bias: bool = False
    sliding_window: int = 72  # frames that a frame attends to, itself included
    num_quantizers: int = 16
    upsample_rates: tuple[int, ...] = (8, 5, 4, 3)
    upsampling_ratios: tuple[int, ...] = (2, 2)
    decoder_dim: int = 1536


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerConfig:
    """The speaker encoder; `base` checkpoints only.

    Tuples are of the first convolution, the blocks, and the layer that joins them.
    """

    enc_dim: int = 1024  # of the speaker vector
    mel_dim: int = 128
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    do_sample: bool = True
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    subtalker_dosample: bool = True
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request draws its codes. Raises ValueError: a value is out of its range; the message names it."""

    seed: int = 0  # any integer; its low 64 bits count
    temperature: float = 0.9  # of the first code; 0 takes the likeliest
    top_k: int = 50  # 0 is off
    top_p: float = 1.0  # 1 is off
    repetition_penalty: float = 1.05  # on first codes the request has already drawn; 1 is off
    predictor_temperature: float = 0.9  # of the other fifteen codes
    predictor_top_k: int = 50
    predictor_top_p: float = 1.0
    min_frames: int = 2  # the end of speech is not drawn before this many frames

    @classmethod
    def of(cls, defaults: SamplingDefaults, seed: int = 0) -> SamplingParams:
        return cls(
            seed=seed,
            temperature=defaults.temperature if defaults.do_sample else 0,
            top_k=defaults.top_k,
            top_p=defaults.top_p,
            repetition_penalty=defaults.repetition_penalty,
            predictor_temperature=defaults.subtalker_temperature if defaults.subtalker_dosample else 0,
            predictor_top_k=defaults.subtalker_top_k,
            predictor_top_p=defaults.subtalker_top_p,
        )

    def __post_init__(self) -> None:
        for name in ("temperature", "top_k", "predictor_temperature", "predictor_top_k", "min_frames"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative")
        for name in ("top_p", "predictor_top_p"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1")
        if not self.repetition_penalty > 0:
            raise ValueError("repetition_penalty must be above 0")

    def numbers(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The integers, with the seed in two's complement, and the floats of a column of `SamplingRows.of`."""
        counts = ((self.seed + 2**63) % 2**64 - 2**63, self.min_frames, self.top_k, self.predictor_top_k)
        talker, predictor = (self.temperature, self.top_p), (self.predictor_temperature, self.predictor_top_p)
        return counts, (self.repetition_penalty, *talker, *predictor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A checkpoint folder: config.json, generation_config.json and speech_tokenizer/config.json."""

    tts_model_type: ModelType
    tts_model_size: str | None = None  # "0b6" or "1b7"
    im_start_token_id: int = 151_644
    im_end_token_id: int = 151_645
    tts_pad_token_id: int = 151_671
    tts_bos_token_id: int = 151_672
    tts_eos_token_id: int = 151_673
    talker: TalkerConfig
    codec: CodecConfig
    speaker_encoder: SpeakerConfig | None  # None unless the type is base
    generation: SamplingDefaults

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads a folder in the released layout. Raises CheckpointError: an entry is missing or not supported."""
        top = JsonObject.load(folder, "config.json")
        tokenizer = JsonObject.load(folder, "speech_tokenizer/config.json")
        _refuse_25_hz(top, tokenizer)
        top.require("model_type", MODEL_TYPE)
        tokenizer.require("model_type", TOKENIZER_TYPE)
        tokenizer.require("output_sample_rate", SAMPLE_RATE, default=SAMPLE_RATE)
        tokenizer.require("decode_upsample_rate", FRAME_SAMPLES, default=FRAME_SAMPLES)
        talker = _with_names(top.section("talker_config"))
        predictor = talker.section("code_predictor_config")
        for section in (talker, predictor):
            section.require("attention_bias", False, default=False)
            section.require("use_sliding_window", False, default=False)
        speaker_encoder = None
        if top.entries.get("tts_model_type") == "base":
            section = top.section("speaker_encoder_config")
            section.require("sample_rate", SAMPLE_RATE, default=SAMPLE_RATE)
            speaker_encoder = section.typed(SpeakerConfig)
        config = top.typed(
            cls,
            talker=_transformer(talker, TalkerConfig, code_predictor=_transformer(predictor, PredictorConfig)),
            codec=_transformer(tokenizer.section("decoder_config"), CodecConfig),
            speaker_encoder=speaker_encoder,
            generation=JsonObject.load(folder, "generation_config.json").typed(SamplingDefaults),
        )
        config._check()
        return config

    def _check(self) -> None:
        talker, predictor, codec, speaker = self.talker, self.talker.code_predictor, self.codec, self.speaker_encoder
        samples = math.prod(codec.upsample_rates) * math.prod(codec.upsampling_ratios)
        groups, key_heads = talker.num_code_groups, codec.num_key_value_heads
        ids = [
            *(talker.codec_pad_id, talker.codec_bos_id, talker.codec_eos_token_id, talker.codec_think_id),
            *(talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id),
            *talker.codec_language_id.values(),
            *talker.spk_id.values(),
        ]
        unknown = {name for name in talker.spk_is_dialect.values() if name and name not in talker.codec_language_id}
        texts = [self.im_start_token_id, self.im_end_token_id]
        texts += [self.tts_pad_token_id, self.tts_bos_token_id, self.tts_eos_token_id]
        equal = {
            "the talker says {} codes a frame, the code predictor {}": (groups, predictor.num_code_groups),
            "the talker says {} codes a frame, the codec reads {}": (groups, codec.num_quantizers),
            "the predictor has {} codes, the codec's codebooks {}": (predictor.vocab_size, codec.codebook_size),
            "the codec makes {} samples of a frame; {} are supported": (samples, FRAME_SAMPLES),
            "the codec has {} key heads for {} query heads": (key_heads, codec.num_attention_heads),
        }
        if speaker:
            equal["speaker vectors of {} for a talker of {}"] = speaker.enc_dim, talker.hidden_size
        rules = {complaint.format(one, other): one == other for complaint, (one, other) in equal.items()}
        rules |= {
            f"a language, speaker or control id is not within the talker's vocabulary of {talker.vocab_size}": (
                all(0 <= code < talker.vocab_size for code in ids)
            ),
            f"a text id is not within the text vocabulary of {talker.text_vocab_size}": (
                all(0 <= token < talker.text_vocab_size for token in texts)
            ),
            "a custom_voice checkpoint needs a speaker in spk_id": (
                self.tts_model_type != "custom_voice" or bool(talker.spk_id)
            ),
            f"spk_is_dialect names {', '.join(sorted(unknown))}, which codec_language_id does not have": not unknown,
        }
        if speaker:
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
                f"{section.where}: {entry} is {brief(section.entries[entry])}: a 25 Hz checkpoint; "
                "only 12.5 Hz checkpoints (Qwen3-TTS-12Hz-...) are supported"
            )


def _with_names(talker: JsonObject) -> JsonObject:
    """A talker with its names of speakers and languages in lower case. A name that is there in lower case counts."""
    names = {}
    for entry in ("codec_language_id", "spk_id", "spk_is_dialect"):
        given = talker.section(entry).entries
        lowered = {name.lower(): given.get(name.lower(), value) for name, value in given.items()}
        names[entry] = {name: value.lower() if isinstance(value, str) else value for name, value in lowered.items()}
    return replace(talker, entries=talker.entries | names)


def _transformer(section: JsonObject, kind: type[T], **others: object) -> T:
    """A transformer's entries, those of its rotary embedding in the places of transformers 4 or 5."""
    section.require("hidden_act", "silu", default="silu")
    place = "rope_parameters" if section.entries.get("rope_parameters") is not None else "rope_scaling"
    rope = section.section(place)
    if any(isinstance(value, dict) for value in rope.entries.values()):
        raise CheckpointError(f"{rope.where}: one for each type of layer is not supported")
    rope_type = rope.entries.get("rope_type", rope.entries.get("type", "default"))
    if rope_type != "default":
        raise CheckpointError(
            f"{section.where}: {place} of type {brief(rope_type)} is not supported; only 'default' is"
        )
    rope.require("partial_rotary_factor", 1, default=1)
    if place == "rope_parameters" and "rope_theta" in rope.entries:
        section = replace(section, entries=section.entries | {"rope_theta": rope.entries["rope_theta"]})
    return section.typed(kind, **others).with_head_dim()
