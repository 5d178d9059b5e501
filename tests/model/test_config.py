"""Settings of a checkpoint are read as they stand, or refused with their name."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from agent_tts.bench.checkpoint import SIZES, write_configuration
from agent_tts.model.config import (
    CodecConfig,
    ModelConfig,
    ModelType,
    PredictorConfig,
    SpeakerConfig,
    TalkerConfig,
    TransformerConfig,
)
from agent_tts.model.entries import CheckpointError
from tests.model import oracle, tiny


def reference(name: str) -> Any:
    """Its class of configurations with this name."""
    package = oracle.qwen_tts().core
    modules = package.models.configuration_qwen3_tts, package.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2
    return next(getattr(module, name) for module in modules if hasattr(module, name))


Edit = Callable[..., Path]


@pytest.fixture
def edited(tmp_path: Path) -> Edit:
    """A checkpoint's JSON files with an entry changed: `edited("config.json", "talker_config.hidden_size", 3)`."""

    def edit(file: str, entry: str, value: Any = ..., model_type: ModelType = "custom_voice") -> Path:
        if not (tmp_path / file).exists():
            shutil.copytree(tiny.checkpoint(model_type), tmp_path, ignore=_all_but_json, dirs_exist_ok=True)
        entries = json.loads((tmp_path / file).read_text())
        *outer, last = entry.split(".")
        section = entries
        for name in outer:
            section = section[name]
        if value is ...:
            del section[last]
        else:
            section[last] = value
        (tmp_path / file).write_text(json.dumps(entries))
        return tmp_path

    return edit


def _all_but_json(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith("config.json") and name != "speech_tokenizer"]


@pytest.mark.parametrize("model_type", get_args(ModelType))
def test_each_type_has_its_own_voices(model_type: ModelType) -> None:
    config = ModelConfig.read(tiny.checkpoint(model_type))
    assert config.tts_model_type == model_type
    assert (config.speaker_encoder is not None) == (model_type == "base")
    assert ("ryan" in config.talker.spk_id) == (model_type == "custom_voice")


def test_ids_and_dialects_are_those_of_the_file() -> None:
    config = ModelConfig.read(tiny.checkpoint("custom_voice"))
    talker = config.talker
    assert (talker.codec_pad_id, talker.codec_bos_id, talker.codec_eos_token_id) == (2148, 2149, 2150)
    assert talker.codec_language_id["english"] == 2050
    assert talker.spk_id["eric"] == 2875
    assert talker.spk_is_dialect["eric"] == "sichuan_dialect"
    assert talker.spk_is_dialect["ryan"] is False
    assert (config.tts_pad_token_id, config.tts_bos_token_id, config.tts_eos_token_id) == (151671, 151672, 151673)
    assert config.generation.top_k == 50


@pytest.mark.parametrize(("size", "hidden", "label"), [("0.6B", 1024, "0b6"), ("1.7B", 2048, "1b7")])
def test_released_sizes(size: str, hidden: int, label: str, tmp_path: Path) -> None:
    config = write_configuration(tmp_path, SIZES[size], "base")
    talker, predictor, codec = config.talker, config.talker.code_predictor, config.codec
    assert config.tts_model_size == label
    assert (talker.hidden_size, talker.intermediate_size, talker.num_hidden_layers) == (hidden, 3 * hidden, 28)
    assert (talker.num_attention_heads, talker.num_key_value_heads, talker.head_dim) == (16, 8, 128)
    assert (talker.rope_theta, talker.rms_norm_eps, talker.text_hidden_size) == (1e6, 1e-6, 2048)
    assert (predictor.hidden_size, predictor.num_hidden_layers, predictor.vocab_size) == (1024, 5, 2048)
    assert (codec.hidden_size, codec.num_hidden_layers, codec.sliding_window) == (512, 8, 72)
    assert (codec.upsample_rates, codec.upsampling_ratios) == ((8, 5, 4, 3), (2, 2))
    assert config.speaker_encoder is not None
    assert config.speaker_encoder.enc_dim == hidden


@pytest.mark.parametrize(
    ("file", "entry", "value"),
    [
        ("config.json", "tokenizer_type", "qwen3_tts_tokenizer_25hz"),
        ("speech_tokenizer/config.json", "model_type", "qwen3_tts_tokenizer_25hz"),
    ],
)
def test_a_25_hz_checkpoint_is_refused(file: str, entry: str, value: str, edited: Edit) -> None:
    with pytest.raises(CheckpointError, match=r"25 Hz checkpoint; only 12\.5 Hz"):
        ModelConfig.read(edited(file, entry, value))


@pytest.mark.parametrize(
    ("file", "entry", "value", "message"),
    [
        ("config.json", "model_type", "qwen3_omni", "config.json: model_type is 'qwen3_omni'; only 'qwen3_tts'"),
        ("config.json", "tts_model_type", "dialogue", "config.json: tts_model_type: 'dialogue' is not"),
        ("config.json", "tts_model_type", ..., "config.json: missing tts_model_type"),
        ("config.json", "talker_config", ..., "config.json: talker_config: missing text_vocab_size"),
        ("config.json", "talker_config", [], "config.json: talker_config: has to be an object"),
        ("config.json", "talker_config.hidden_size", "64", "config.json: talker_config: hidden_size: '64' is not int"),
        ("config.json", "talker_config.hidden_size", True, "config.json: talker_config: hidden_size: True is not int"),
        ("config.json", "talker_config.rope_theta", None, "config.json: talker_config: rope_theta: None is not float"),
        (
            "config.json",
            "talker_config.spk_id",
            {"ryan": "x"},
            "config.json: talker_config: spk_id: ryan: 'x' is not int",
        ),
        ("config.json", "talker_config.spk_id", {}, "a custom_voice checkpoint needs a speaker in spk_id"),
        ("config.json", "talker_config.spk_id", {"ryan": 3072}, "not within the talker's vocabulary of 3072"),
        ("config.json", "talker_config.spk_is_dialect", {"eric": True}, "spk_is_dialect: eric: True is not"),
        ("config.json", "talker_config.spk_is_dialect", {"eric": "hakka"}, "spk_is_dialect names hakka"),
        ("config.json", "talker_config.text_vocab_size", 151_673, "not within the text vocabulary of 151673"),
        ("config.json", "talker_config.spk_id", {"ryan": -1}, "not within the talker's vocabulary of 3072"),
        ("config.json", "talker_config.hidden_act", "gelu", "talker_config: hidden_act is 'gelu'; only 'silu'"),
        ("config.json", "talker_config.attention_bias", True, "attention_bias is True; only False"),
        ("config.json", "talker_config.use_sliding_window", True, "use_sliding_window is True; only False"),
        ("config.json", "talker_config.rope_scaling", {"rope_type": "yarn"}, "rope_scaling of type 'yarn'"),
        ("config.json", "talker_config.rope_parameters", {"rope_type": "yarn"}, "rope_parameters of type 'yarn'"),
        (
            "config.json",
            "talker_config.rope_parameters",
            {"full_attention": {"rope_theta": 1e6}},
            "rope_parameters: one for each type of layer is not supported",
        ),
        (
            "speech_tokenizer/config.json",
            "decoder_config.rope_parameters",
            {"partial_rotary_factor": 0.5},
            "partial_rotary_factor is 0.5; only 1",
        ),
        ("config.json", "talker_config.num_code_groups", 8, "the talker says 8 codes a frame, the code predictor 16"),
        ("config.json", "talker_config.code_predictor_config.vocab_size", 1024, "the predictor has 1024 codes"),
        ("speech_tokenizer/config.json", "output_sample_rate", 48_000, "output_sample_rate is 48000; only 24000"),
        ("speech_tokenizer/config.json", "decoder_config.codebook_dim", ..., "decoder_config: missing codebook_dim"),
        ("speech_tokenizer/config.json", "decoder_config.upsample_rates", 8, "upsample_rates: 8 is not"),
        ("speech_tokenizer/config.json", "decoder_config.upsample_rates", [8.5], "upsample_rates: 8.5 is not int"),
        ("speech_tokenizer/config.json", "decoder_config.upsample_rates", [8, 5, 4], "the codec makes 640 samples"),
        ("speech_tokenizer/config.json", "decoder_config.num_quantizers", 32, "16 codes a frame, the codec reads 32"),
        ("speech_tokenizer/config.json", "decoder_config.num_key_value_heads", 2, "2 key heads for 4 query heads"),
        ("generation_config.json", "top_k", "many", "generation_config.json: top_k: 'many' is not int"),
    ],
)
def test_unsupported_settings_are_refused_with_their_name(
    file: str, entry: str, value: Any, message: str, edited: Edit
) -> None:
    with pytest.raises(CheckpointError) as caught:
        ModelConfig.read(edited(file, entry, value))
    assert message in str(caught.value)


def test_speaker_vectors_have_the_width_of_the_talker(edited: Edit) -> None:
    folder = edited("config.json", "speaker_encoder_config.enc_dim", 192, model_type="base")
    with pytest.raises(CheckpointError, match="speaker vectors of 192 for a talker of 64"):
        ModelConfig.read(folder)


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        (TalkerConfig(text_vocab_size=9, code_predictor=PredictorConfig()), "Qwen3TTSTalkerConfig"),
        (PredictorConfig(), "Qwen3TTSTalkerCodePredictorConfig"),
        (SpeakerConfig(), "Qwen3TTSSpeakerEncoderConfig"),
        (CodecConfig(codebook_dim=8), "Qwen3TTSTokenizerV2DecoderConfig"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TransformerConfig | SpeakerConfig) else "",
)
def test_what_is_left_out_is_what_the_reference_takes(ours: Any, name: str) -> None:
    theirs = reference(name)()
    without = {"text_vocab_size", "codebook_dim", "code_predictor"} | ({"head_dim"} - vars(theirs).keys())
    for field in fields(ours):
        if field.name not in without:
            expected = getattr(theirs, field.name)
            expected = tuple(expected) if isinstance(expected, list) else {} if expected is None else expected
            assert getattr(ours, field.name) == expected, field.name


@pytest.mark.parametrize("model_type", get_args(ModelType))
def test_entries_of_the_references_defaults_may_be_left_out(model_type: ModelType, tmp_path: Path) -> None:
    folder = tiny.checkpoint(model_type)
    shutil.copytree(folder, tmp_path, ignore=_all_but_json, dirs_exist_ok=True)
    top = json.loads((folder / "config.json").read_text())
    codec = json.loads((folder / "speech_tokenizer/config.json").read_text())
    parts = [
        (top, reference("Qwen3TTSConfig")),
        (top["talker_config"], reference("Qwen3TTSTalkerConfig")),
        (top["talker_config"]["code_predictor_config"], reference("Qwen3TTSTalkerCodePredictorConfig")),
        (top.get("speaker_encoder_config", {}), reference("Qwen3TTSSpeakerEncoderConfig")),
        (codec, reference("Qwen3TTSTokenizerV2Config")),
        (codec["decoder_config"], reference("Qwen3TTSTokenizerV2DecoderConfig")),
    ]
    for entries, kind in parts:
        for name, parameter in inspect.signature(kind.__init__).parameters.items():
            default = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
            if name in entries and entries[name] == default:
                del entries[name]
    assert "tts_pad_token_id" not in top
    assert "upsample_rates" not in codec["decoder_config"]
    (tmp_path / "config.json").write_text(json.dumps(top))
    (tmp_path / "speech_tokenizer/config.json").write_text(json.dumps(codec))
    assert ModelConfig.read(tmp_path) == ModelConfig.read(folder)


def test_the_width_of_a_head_is_computed_where_it_is_left_out(edited: Edit) -> None:
    config = ModelConfig.read(edited("speech_tokenizer/config.json", "decoder_config.head_dim"))
    assert config.codec.head_dim == config.codec.hidden_size // config.codec.num_attention_heads


@pytest.mark.parametrize(
    ("file", "entry"),
    [
        ("config.json", "talker_config"),
        ("config.json", "talker_config.code_predictor_config"),
        ("speech_tokenizer/config.json", "decoder_config"),
    ],
)
def test_rotary_embeddings_as_transformers_5_writes_them(file: str, entry: str, edited: Edit) -> None:
    expected = ModelConfig.read(tiny.checkpoint("custom_voice"))
    parts = {"talker_config": expected.talker, "decoder_config": expected.codec}
    theta = parts.get(entry, expected.talker.code_predictor).rope_theta
    edited(file, f"{entry}.rope_theta")
    folder = edited(file, f"{entry}.rope_parameters", {"rope_theta": theta, "rope_type": "default"})
    assert ModelConfig.read(folder) == expected


def test_names_are_read_in_lower_case(edited: Edit) -> None:
    """As the reference looks them up, which finds no others."""
    edited("config.json", "talker_config.spk_id", {"Nina": 3000, "nina": 3001, "Uncle_Bo": 3002})
    folder = edited("config.json", "talker_config.spk_is_dialect", {"Uncle_Bo": "Sichuan_Dialect"})
    talker = ModelConfig.read(folder).talker
    assert talker.spk_id == {"nina": 3001, "uncle_bo": 3002}
    assert talker.spk_is_dialect == {"uncle_bo": "sichuan_dialect"}


def test_missing_sampling_defaults_are_upstreams(edited: Edit) -> None:
    assert ModelConfig.read(edited("generation_config.json", "top_p")).generation.top_p == 1.0


def test_unknown_entries_are_ignored(edited: Edit) -> None:
    assert ModelConfig.read(edited("config.json", "talker_config.something_new", {"a": 1}))


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "speech_tokenizer/config.json"])
def test_a_missing_or_broken_file_is_named(file: str, edited: Edit) -> None:
    folder = edited("config.json", "transformers_version")
    for content, complaint in ((b"{", "not valid JSON"), (b"\xff\xfe\x00", "not valid JSON"), (b"[]", "an object")):
        (folder / file).write_bytes(content)
        with pytest.raises(CheckpointError, match=f"{file}: .*{complaint}"):
            ModelConfig.read(folder)
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=f"{file}: missing from the checkpoint"):
        ModelConfig.read(folder)
