"""The speaker encoder equals upstream's: filters, spectrogram and vector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agent_tts.bench.checkpoint import SIZES, write_configuration
from agent_tts.model.clone import FFT_SIZE, HOP, SpeakerEncoder, log_mel, slaney_filters
from agent_tts.model.config import ModelConfig, SpeakerConfig
from agent_tts.model.entries import CheckpointError
from tests.model import oracle
from tests.model.clips import LENGTHS, clip

RELEASED = SpeakerConfig(enc_dim=1024)
SMALL = SpeakerConfig(
    enc_dim=24, enc_channels=(16, 16, 16, 16, 48), enc_attention_channels=8, enc_res2net_scale=4, enc_se_channels=8
)
PARITY = 1e-5  # relative


def modeling() -> Any:
    return oracle.qwen_tts().core.models.modeling_qwen3_tts


def configuration() -> Any:
    return oracle.qwen_tts().core.models.configuration_qwen3_tts


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def upstream_mel(waveform: Tensor) -> Tensor:
    """[N] -> [1, T, 128], with the arguments that upstream's `extract_speaker_embedding` gives."""
    spectrogram: Tensor = modeling().mel_spectrogram(
        waveform[None],
        n_fft=1024,
        num_mels=128,
        sampling_rate=24_000,
        hop_size=256,
        win_size=1024,
        fmin=0,
        fmax=12_000,
    )
    return spectrogram.transpose(1, 2)


def encoders(config: SpeakerConfig) -> tuple[Any, SpeakerEncoder]:
    """Upstream's encoder and ours with the same weights, scaled to keep activations of order one."""
    entries = {name: getattr(config, name) for name in config.__slots__}
    theirs = modeling().Qwen3TTSSpeakerEncoder(configuration().Qwen3TTSSpeakerEncoderConfig(**entries)).eval()
    noise = torch.Generator().manual_seed(1)
    for parameter in theirs.parameters():
        values = torch.randn(parameter.shape, generator=noise)
        parameter.data = values * ((2 / parameter[0].numel()) ** 0.5 if parameter.ndim > 1 else 0.1)
    ours = SpeakerEncoder(config).eval()
    state = {f"speaker_encoder.{name}": value for name, value in theirs.state_dict().items()}
    ours.load_state_dict({name: state.pop(their_name) for name, their_name in ours.checkpoint_names().items()})
    assert not state
    return theirs, ours


def test_the_filters_are_those_of_librosa() -> None:
    theirs = modeling().librosa_mel_fn(sr=24_000, n_fft=FFT_SIZE, n_mels=128, fmin=0, fmax=12_000)
    torch.testing.assert_close(slaney_filters(128), torch.from_numpy(theirs), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("samples", LENGTHS)
def test_the_spectrogram_is_that_of_upstream(samples: int) -> None:
    """Absolute error, including silence: the values are logarithms."""
    waveform = clip(samples)
    waveform[: samples // 3] = 0
    bands = log_mel(waveform, 128)
    assert bands.shape == (128, samples // HOP)
    assert float((bands - upstream_mel(waveform)[0].T).abs().max()) < 1e-3
    assert float(bands.max() - bands.min()) > 5


@pytest.mark.parametrize("config", [RELEASED, SMALL], ids=["released", "small"])
def test_the_vector_is_that_of_upstream(config: SpeakerConfig) -> None:
    theirs, ours = encoders(config)
    with torch.inference_mode():
        for samples in (1920, 24_000, 48_777):
            expected = theirs(upstream_mel(clip(samples)))[0]
            found = ours(clip(samples))
            assert (found.shape, found.dtype) == ((config.enc_dim,), torch.float32)
            assert relative_error(found, expected) < PARITY


@torch.inference_mode()
def test_every_parameter_affects_the_output() -> None:
    """A parameter without effect would weaken the comparison with upstream."""
    _, ours = encoders(SMALL)
    before = ours(clip(24_000))
    for name, parameter in ours.named_parameters():
        kept = parameter.clone()
        parameter.mul_(0.5)
        # Attention ignores an offset that is added to all steps alike.
        assert name == "asp.conv.bias" or relative_error(ours(clip(24_000)), before) > 2 * PARITY, name
        parameter.copy_(kept)


@torch.inference_mode()
def test_voices_differ() -> None:
    _, ours = encoders(SMALL)
    assert relative_error(ours(clip(24_000, seed=1)), ours(clip(24_000, seed=2))) > 100 * PARITY


def test_missing_checkpoint_entries_have_upstreams_defaults(tmp_path: Path) -> None:
    config = write_configuration(tmp_path, SIZES["0.6B"], "base").speaker_encoder
    upstream = configuration().Qwen3TTSSpeakerEncoderConfig()
    for name in SpeakerConfig.__slots__:
        value = getattr(upstream, name)
        assert getattr(config, name) == (tuple(value) if isinstance(value, list) else value), name


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("sample_rate", 16_000, "speaker_encoder_config: sample_rate is 16000; only 24000 is supported"),
        ("enc_channels", [16, 16, 16, 16, 64], "a speaker encoder of (16, 16, 16, 16, 64) channels"),
        ("enc_channels", [8, 16, 16, 16, 48], "the last has to join blocks of equal width"),
        ("enc_channels", [], "a speaker encoder of () channels"),
        ("enc_dilations", [1, 2, 3, 1], "enc_channels, enc_kernel_sizes and enc_dilations have to be equally many"),
        ("enc_kernel_sizes", [5, 3, "3", 3, 1], "enc_kernel_sizes: '3' is not int"),
    ],
)
def test_a_speaker_encoder_that_cannot_be_built_is_refused(
    entry: str, value: Any, message: str, tmp_path: Path
) -> None:
    write_configuration(tmp_path, SIZES["tiny"], "base")
    entries = json.loads((tmp_path / "config.json").read_text())
    entries["speaker_encoder_config"][entry] = value
    (tmp_path / "config.json").write_text(json.dumps(entries))
    with pytest.raises(CheckpointError) as caught:
        ModelConfig.read(tmp_path)
    assert message in str(caught.value)
