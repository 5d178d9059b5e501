"""Vector and codes of a clip equal upstream's `create_voice_clone_prompt`; invalid checkpoints are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from agent_tts.model.clone import VoiceEncoder, add_silence
from agent_tts.model.config import ModelType
from agent_tts.model.entries import CheckpointError
from tests.model import oracle, tiny
from tests.model.clips import LENGTHS, clip

PARITY = 1e-5  # relative
CODEC_WEIGHTS = "speech_tokenizer/model.safetensors"


@pytest.fixture(scope="module")
def encoder() -> VoiceEncoder:
    return VoiceEncoder.load(tiny.checkpoint("base"))


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A writable copy of a checkpoint."""
    return Path(shutil.copytree(tiny.checkpoint("base"), tmp_path / "checkpoint"))


@pytest.mark.parametrize("samples", LENGTHS)
def test_vector_and_codes_are_those_of_upstream(encoder: VoiceEncoder, samples: int) -> None:
    waveform = clip(samples, seed=samples)
    (prompt,) = oracle.load(tiny.checkpoint("base")).create_voice_clone_prompt(
        ref_audio=(waveform.numpy(), 24_000), ref_text="A clip.", x_vector_only_mode=False
    )
    vector, codes = encoder.vector(waveform), encoder.codes(waveform)
    assert (vector.dtype, codes.dtype) == (torch.float32, torch.int64)
    assert vector.shape == prompt.ref_spk_embedding.shape
    assert float((vector - prompt.ref_spk_embedding).norm() / prompt.ref_spk_embedding.norm()) < PARITY
    assert codes.shape == (-(-samples // 1920), 16)
    assert torch.equal(codes, prompt.ref_code)


def test_clips_differ_in_vector_and_codes(encoder: VoiceEncoder) -> None:
    """Proves that the test above does not compare constants."""
    one, other = clip(48_000, seed=1), clip(48_000, seed=2)
    vector = encoder.vector(one)
    assert float((encoder.vector(other) - vector).norm() / vector.norm()) > 100 * PARITY
    codes = encoder.codes(one)
    assert float((encoder.codes(other) != codes).float().mean()) > 0.5
    assert all(len(set(codes[:, codebook].tolist())) > 1 for codebook in range(16))


def test_a_vector_alone_is_the_same_and_needs_no_codec(encoder: VoiceEncoder, copied: Path) -> None:
    (copied / CODEC_WEIGHTS).unlink()
    waveform = clip(48_000)
    assert torch.equal(VoiceEncoder.load(copied, vector_only=True).vector(waveform), encoder.vector(waveform))
    with pytest.raises(CheckpointError, match="missing from the checkpoint"):
        VoiceEncoder.load(copied)


def test_silence_follows_a_reference(encoder: VoiceEncoder) -> None:
    waveform = clip(30_000)
    padded = add_silence(waveform)
    assert torch.equal(padded, torch.cat((waveform, torch.zeros(12_000))))
    assert len(add_silence(waveform, 0.08)) == 31_920
    assert len(encoder.codes(padded)) == 22
    whole = 30_000 // 1920  # the codec is causal
    assert torch.equal(encoder.codes(padded)[:whole], encoder.codes(waveform)[:whole])


@pytest.mark.parametrize("waveform", [clip(1919), torch.zeros(0), torch.zeros(2, 24_000), torch.zeros(24_000, 2)])
def test_invalid_clips_are_refused(encoder: VoiceEncoder, waveform: Tensor) -> None:
    for encode in (encoder.vector, encoder.codes):
        with pytest.raises(ValueError, match="one channel of at least 1920 samples"):
            encode(waveform)


@pytest.mark.parametrize("model_type", ["custom_voice", "voice_design"])
def test_only_base_checkpoints_clone(model_type: ModelType) -> None:
    with pytest.raises(CheckpointError, match=f"tts_model_type is '{model_type}'; only 'base' checkpoints clone"):
        VoiceEncoder.load(tiny.checkpoint(model_type))


@pytest.mark.parametrize(
    ("file", "name", "message"),
    [
        ("model.safetensors", "speaker_encoder.fc.bias", "speaker_encoder.fc.bias missing"),
        ("model.safetensors", "speaker_encoder.odd", "speaker_encoder.odd not known here"),
        ("model.safetensors", "odd", "odd not known here"),
        (CODEC_WEIGHTS, "encoder.downsample.conv.weight", "encoder.downsample.conv.weight missing"),
        (CODEC_WEIGHTS, "encoder.upsample.conv.weight", "encoder.upsample.conv.weight not known here"),
    ],
)
def test_a_checkpoint_fits_or_is_refused(file: str, name: str, message: str, copied: Path) -> None:
    """Removes each existing tensor, and adds each missing one."""
    tensors = load_file(copied / file)
    if tensors.pop(name, None) is None:
        tensors[name] = torch.zeros(1)
    save_file(tensors, copied / file)
    with pytest.raises(CheckpointError, match=message):
        VoiceEncoder.load(copied)


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("input_sample_rate", 16_000, "input_sample_rate is 16000; only 24000 is supported"),
        ("encode_downsample_rate", 960, "encode_downsample_rate is 960; only 1920 is supported"),
        ("encoder_valid_num_quantizers", 8, "encoder_valid_num_quantizers is 8; only 16 is supported"),
        ("encoder_config", [], "encoder_config: has to be an object"),
        ("encoder_config", {"use_conv_shortcut": True}, "use_conv_shortcut is True; only False is supported"),
        ("encoder_config", {"num_key_value_heads": 4}, "num_key_value_heads is 4; only 8 is supported"),
    ],
)
def test_an_unsupported_encoder_is_refused(entry: str, value: Any, message: str, copied: Path) -> None:
    path = copied / "speech_tokenizer/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {entry: value}))
    with pytest.raises(CheckpointError, match=message):
        VoiceEncoder.load(copied)
