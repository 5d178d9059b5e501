"""From a clip to the parts of a cloned voice: the vector of the speaker, and the clip as codes.

Only `base` checkpoints have the encoders. They run in float32, whatever the dtype of the speech: they run once a voice.

The speaker encoder is ECAPA-TDNN, arXiv:2005.07143, with parameters named as in the released checkpoints. Its shapes:
one clip; T steps of 256 samples, C channels.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_tts.model.codec_encoder import UNUSED, CodecEncoder, EncoderConfig
from agent_tts.model.config import FRAME_SAMPLES, SAMPLE_RATE, ModelConfig, SpeakerConfig
from agent_tts.model.entries import CheckpointError, JsonObject
from agent_tts.model.weights import CODEC, MODEL, Loadable, build, plan

FFT_SIZE = 1024  # samples, of the window too
HOP = 256  # samples


class LogMel(nn.Module):
    """The log mel spectrogram: waveform [N] -> [bands, N // HOP], mirrored at its ends; N > (FFT_SIZE - HOP) / 2."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.filters: Tensor  # [bands, FFT_SIZE / 2 + 1]
        self.window: Tensor  # [FFT_SIZE]
        self.register_buffer("filters", slaney_filters(bands), persistent=False)
        self.register_buffer("window", torch.hann_window(FFT_SIZE), persistent=False)

    def forward(self, waveform: Tensor) -> Tensor:
        margin = (FFT_SIZE - HOP) // 2
        x = F.pad(waveform[None], (margin, margin), mode="reflect")[0]
        spectrum = torch.stft(x, FFT_SIZE, HOP, window=self.window, center=False, return_complex=True)
        magnitude = (torch.view_as_real(spectrum).square().sum(-1) + 1e-9).sqrt()
        return (self.filters @ magnitude).clamp(min=1e-5).log()


def slaney_filters(bands: int) -> Tensor:
    """Triangles of equal area from 0 Hz to half the sample rate: [bands, FFT_SIZE / 2 + 1].

    Their centres are equidistant on the mel scale of Slaney's Auditory Toolbox (1998), as in librosa: 200 / 3 Hz a
    mel up to 1 kHz, which is mel 15, and from there 27 mels for every factor of 6.4.
    """
    highest = 15 + 27 * math.log(SAMPLE_RATE / 2 / 1000, 6.4)
    mels = torch.linspace(0, highest, bands + 2, dtype=torch.float64)
    hertz = torch.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))[:, None]
    low, centre, high = hertz[:-2], hertz[1:-1], hertz[2:]
    bins = torch.linspace(0, SAMPLE_RATE / 2, FFT_SIZE // 2 + 1, dtype=torch.float64)
    triangles = torch.minimum((bins - low) / (centre - low), (high - bins) / (high - centre)).clamp(min=0)
    return (triangles * 2 / (high - low)).float()


class TimeDelay(nn.Module):
    """[C_in, T] -> [C_out, T]: a convolution over the clip, mirrored at its ends."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, padding="same", padding_mode="reflect")

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))


class Res2Net(nn.Module):
    """[C, T] -> [C, T]: of `scale` groups of channels the first passes, and each other adds the result before it."""

    def __init__(self, channels: int, kernel: int, dilation: int, scale: int) -> None:
        super().__init__()
        width = channels // scale
        self.blocks = nn.ModuleList(TimeDelay(width, width, kernel, dilation) for _ in range(scale - 1))

    def forward(self, x: Tensor) -> Tensor:
        first, second, *groups = x.chunk(len(self.blocks) + 1)
        results = [first, self.blocks[0](second)]
        for block, group in zip(self.blocks[1:], groups, strict=True):
            results.append(block(group + results[-1]))
        return torch.cat(results)


class SqueezeExcitation(nn.Module):
    """[C, T] -> [C, T]: scales every channel by a function of the whole clip."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, squeezed, 1)
        self.conv2 = nn.Conv1d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.sigmoid(self.conv2(F.relu(self.conv1(x.mean(1, keepdim=True)))))
        return x * scale


class SpeakerBlock(nn.Module):
    """[C, T] -> [C, T]."""

    def __init__(self, channels: int, kernel: int, dilation: int, config: SpeakerConfig) -> None:
        super().__init__()
        self.tdnn1 = TimeDelay(channels, channels)
        self.res2net_block = Res2Net(channels, kernel, dilation, config.enc_res2net_scale)
        self.tdnn2 = TimeDelay(channels, channels)
        self.se_block = SqueezeExcitation(channels, config.enc_se_channels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))
        return out


class AttentiveStatistics(nn.Module):
    """[C, T] -> [2 C, 1]: mean and deviation over time, weighted by attention for each channel."""

    def __init__(self, channels: int, attention: int) -> None:
        super().__init__()
        self.tdnn = TimeDelay(3 * channels, attention)
        self.conv = nn.Conv1d(attention, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean, deviation = _statistics(x, torch.full_like(x, 1 / x.shape[1]))
        context = torch.cat((x, mean.expand_as(x), deviation.expand_as(x)))
        weights = self.conv(torch.tanh(self.tdnn(context))).softmax(1)
        return torch.cat(_statistics(x, weights))


def _statistics(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation over time, each [C, 1]; the weights [C, T] of a channel sum to one."""
    mean = (weights * x).sum(1, keepdim=True)
    variance = (weights * (x - mean).square()).sum(1, keepdim=True)
    return mean, variance.clamp(min=1e-12).sqrt()


class SpeakerEncoder(Loadable):
    """Waveform float32[N] at 24 kHz -> speaker vector float32[enc_dim]; N is at least a frame of speech, 1920."""

    def __init__(self, config: SpeakerConfig) -> None:
        super().__init__()
        first, *blocks, last = zip(config.enc_channels, config.enc_kernel_sizes, config.enc_dilations, strict=True)
        channels = last[0]
        self.mel = LogMel(config.mel_dim)
        self.blocks = nn.ModuleList(
            [TimeDelay(config.mel_dim, *first), *(SpeakerBlock(*shape, config) for shape in blocks)]
        )
        self.mfa = TimeDelay(channels, *last)
        self.asp = AttentiveStatistics(channels, config.enc_attention_channels)
        self.fc = nn.Conv1d(2 * channels, config.enc_dim, 1)

    def forward(self, waveform: Tensor) -> Tensor:
        first, *blocks = self.blocks
        x = first(self.mel(waveform))
        heard = []
        for block in blocks:
            x = block(x)
            heard.append(x)
        vector: Tensor = self.fc(self.asp(self.mfa(torch.cat(heard))))
        return vector[:, 0]

    def checkpoint_name(self, name: str) -> str:
        return f"speaker_encoder.{name}"


class VoiceEncoder:
    """Makes voices of clips: 24 kHz, one channel, float32 within -1 and 1, at least 80 ms."""

    def __init__(self, speaker: SpeakerEncoder, codec: CodecEncoder | None, device: torch.device | str) -> None:
        self._speaker = speaker
        self._codec = codec
        self._device = device

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu", *, vector_only: bool = False) -> Self:
        """Reads only the encoders of a checkpoint folder; `vector_only` leaves out the codec's.

        Raises CheckpointError: the checkpoint is not `base`, or incomplete.
        """
        config, codec = ModelConfig.read(folder), JsonObject.load(folder, "speech_tokenizer/config.json")
        if config.speaker_encoder is None:
            raise CheckpointError(
                f"config.json: tts_model_type is {config.tts_model_type!r}; only 'base' checkpoints clone voices"
            )
        codec.require("input_sample_rate", SAMPLE_RATE, default=SAMPLE_RATE)
        codec.require("encode_downsample_rate", FRAME_SAMPLES, default=FRAME_SAMPLES)
        codec.require("encoder_valid_num_quantizers", config.codec.num_quantizers, default=16)
        speaker_encoder = build(SpeakerEncoder, config.speaker_encoder)
        plans = [plan(speaker_encoder, folder, MODEL, torch.float32, unused=("talker.",))]
        codec_encoder = None
        if not vector_only:
            entries = EncoderConfig.read(codec.section("encoder_config"))
            codec_encoder = build(CodecEncoder, entries, config.codec.num_quantizers)
            plans.append(plan(codec_encoder, folder, CODEC, torch.float32, unused=UNUSED))
        for part in plans:
            part.load(device)
        return cls(speaker_encoder, codec_encoder, device)

    @torch.inference_mode()
    def vector(self, waveform: Tensor) -> Tensor:
        """Who speaks: float32[N] -> float32[H]. Raises ValueError: several channels, or shorter than a frame."""
        return self._speaker(self._clip(waveform))

    @torch.inference_mode()
    def codes(self, waveform: Tensor) -> Tensor:
        """The clip as codes: float32[N] -> int64[ceil(N / 1920), 16]. Raises ValueError as `vector` does."""
        assert self._codec is not None, "it was loaded for vectors alone"
        return self._codec(self._clip(waveform))

    def _clip(self, waveform: Tensor) -> Tensor:
        if waveform.ndim != 1 or len(waveform) < FRAME_SAMPLES:
            raise ValueError(f"a clip is one channel of at least {FRAME_SAMPLES} samples, not {[*waveform.shape]}")
        return waveform.to(self._device, torch.float32)


def add_silence(waveform: Tensor, seconds: float = 0.5) -> Tensor:
    """[N] -> [N + seconds]: without silence behind a reference, the new text begins within its last phoneme."""
    return F.pad(waveform, (0, round(seconds * SAMPLE_RATE)))
