"""From a clip to the parts of a cloned voice: the vector of the speaker, and the clip as codes.

Only `base` checkpoints have the encoders. They run in float32, whatever the dtype of the speech: they run once a voice.

* speaker: ECAPA-TDNN, arXiv:2005.07143, in steps of 256 samples
* codec, which is that of Mimi, arXiv:2410.00037: waveform -> convolutions, a step for 40 ms -> transformer ->
  convolution, two steps to a frame -> residual quantisation. All of it is causal.

Parameters except codebooks are named as in the released checkpoints. Shapes: one clip; T steps of the layer's own rate,
C channels.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_tts.model.codec import Codebook, CodecTransformerLayer, attention
from agent_tts.model.config import FRAME_SAMPLES, SAMPLE_RATE, ModelConfig, SpeakerConfig, TransformerConfig
from agent_tts.model.entries import CheckpointError, JsonObject
from agent_tts.model.layers import rope
from agent_tts.model.weights import CODEC, MODEL, Loadable, build, plan

FFT_SIZE = 1024  # samples, of the window too
HOP = 256  # samples


def log_mel(waveform: Tensor, bands: int) -> Tensor:
    """The log mel spectrogram: waveform [N] -> [bands, N // HOP], mirrored at its ends; N > (FFT_SIZE - HOP) / 2."""
    margin = (FFT_SIZE - HOP) // 2
    x = F.pad(waveform[None], (margin, margin), mode="reflect")[0]
    window = torch.hann_window(FFT_SIZE, device=x.device)
    spectrum = torch.stft(x, FFT_SIZE, HOP, window=window, center=False, return_complex=True)
    magnitude = (torch.view_as_real(spectrum).square().sum(-1) + 1e-9).sqrt()
    return (slaney_filters(bands).to(x.device) @ magnitude).clamp(min=1e-5).log()


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
        return x + self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))


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
        self.bands = config.mel_dim
        self.blocks = nn.ModuleList(
            [TimeDelay(config.mel_dim, *first), *(SpeakerBlock(*shape, config) for shape in blocks)]
        )
        self.mfa = TimeDelay(channels, *last)
        self.asp = AttentiveStatistics(channels, config.enc_attention_channels)
        self.fc = nn.Conv1d(2 * channels, config.enc_dim, 1)

    def forward(self, waveform: Tensor) -> Tensor:
        first, *blocks = self.blocks
        x = first(log_mel(waveform, self.bands))
        heard = []
        for block in blocks:
            x = block(x)
            heard.append(x)
        vector: Tensor = self.fc(self.asp(self.mfa(torch.cat(heard))))
        return vector[:, 0]

    def checkpoint_name(self, name: str) -> str:
        return f"speaker_encoder.{name}"


# ---------------------------------------------------------------- the codec

# Entries that have one supported value, which is their default.
_FIXED = {
    "attention_bias": False,
    "audio_channels": 1,
    "compress": 2,
    "hidden_act": "gelu",
    "kernel_size": 7,
    "last_kernel_size": 3,
    "num_residual_layers": 1,
    "num_semantic_quantizers": 1,
    "pad_mode": "constant",
    "residual_kernel_size": 3,
    "upsampling_ratios": [8, 6, 5, 4],
    "use_causal_conv": True,
    "use_conv_shortcut": False,
}
# Prefixes in speech_tokenizer/model.safetensors of what this encoder does not need: the decoder; codebooks behind the
# sixteenth, and the way back from codes.
UNUSED = ("decoder.", "encoder.quantizer.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig(TransformerConfig):
    """The encoder. `sliding_window` is not here: the reference implementation ignores it."""

    hidden_size: int = 512
    intermediate_size: int = 2048
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int = 8
    norm_eps: float = 1e-5
    num_filters: int = 64
    codebook_size: int = 2048
    vector_quantization_hidden_dimension: int = 256  # of a codebook's vectors

    @staticmethod
    def read(section: JsonObject) -> EncoderConfig:
        """Raises CheckpointError: an entry is not supported."""
        for entry, value in _FIXED.items():
            section.require(entry, value, default=value)
        config = section.typed(EncoderConfig)
        section.require("num_key_value_heads", config.num_attention_heads, default=config.num_key_value_heads)
        section.require("codebook_dim", config.vector_quantization_hidden_dimension, default=256)
        return config.with_head_dim()


class StridedConv(nn.Module):
    """[C_in, T] -> [C_out, ceil(T / stride)]: a step sees the steps up to the end of its own stride."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, *, repeats_ends: bool = False) -> None:
        super().__init__()
        # Before the first step and after the last: the nearest step again, or silence.
        self.padding = "replicate" if repeats_ends else "constant"
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride, bias=not repeats_ends)

    def forward(self, x: Tensor) -> Tensor:
        (kernel,), (stride,) = self.conv.kernel_size, self.conv.stride
        return self.conv(F.pad(x, (kernel - stride, -x.shape[-1] % stride), self.padding))


class EncoderResidual(nn.Module):
    """[C, T] -> [C, T]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            *(nn.ELU(), StridedConv(channels, channels // 2, 3)),
            *(nn.ELU(), StridedConv(channels // 2, channels, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


def encoder_layer(config: EncoderConfig) -> CodecTransformerLayer:
    channels, inner = config.hidden_size, config.intermediate_size
    widen, narrow = nn.Linear(channels, inner, bias=False), nn.Linear(inner, channels, bias=False)
    mlp = nn.Sequential(OrderedDict[str, nn.Module](fc1=widen, gelu=nn.GELU(), fc2=narrow))
    return CodecTransformerLayer(config, partial(nn.LayerNorm, channels, config.norm_eps), mlp, bias=False)


class ResidualQuantizer(nn.Module):
    """[C, T] -> codes int64[T, codebooks]: of each codebook the vector nearest to what those before it left over."""

    def __init__(self, codebooks: int, config: EncoderConfig) -> None:
        super().__init__()
        size, dim = config.codebook_size, config.vector_quantization_hidden_dimension
        self.input_proj = nn.Conv1d(config.hidden_size, dim, 1, bias=False)
        self.codebooks = nn.ModuleList(Codebook(size, dim) for _ in range(codebooks))

    def forward(self, x: Tensor) -> Tensor:
        left, codes = self.input_proj(x).T, []
        for codebook in self.codebooks:
            vectors = codebook(slice(None))
            codes.append(torch.cdist(left, vectors).argmin(-1))
            left = left - vectors[codes[-1]]
        return torch.stack(codes, dim=1)


class CodecEncoder(Loadable):
    """Waveform float32[N] -> codes int64[ceil(N / 1920), `codebooks`]."""

    def __init__(self, config: EncoderConfig, codebooks: int) -> None:
        super().__init__()
        width, channels = config.num_filters, config.hidden_size
        layers: list[nn.Module] = [StridedConv(1, width, 7)]
        for stride in (4, 5, 6, 8):
            layers += [EncoderResidual(width), nn.ELU(), StridedConv(width, 2 * width, 2 * stride, stride)]
            width *= 2
        layers += [nn.ELU(), StridedConv(width, channels, 3)]
        self.encoder = nn.ModuleDict({"layers": nn.Sequential(*layers)})
        self.shape = config
        blocks = nn.ModuleList(encoder_layer(config) for _ in range(config.num_hidden_layers))
        self.encoder_transformer = nn.ModuleDict({"layers": blocks})
        self.downsample = StridedConv(channels, channels, 4, 2, repeats_ends=True)
        # The first, semantic code has a projection of its own.
        first_code, others = ResidualQuantizer(1, config), ResidualQuantizer(codebooks - 1, config)
        names = "semantic_residual_vector_quantizer", "acoustic_residual_vector_quantizer"
        self.quantizer = nn.ModuleDict(dict(zip(names, (first_code, others), strict=True)))

    def forward(self, waveform: Tensor) -> Tensor:
        x = self.encoder["layers"](waveform[None]).T[None]
        cos, sin = rope(torch.arange(x.shape[1], device=x.device)[None], self.shape, x.dtype)
        for layer in self.encoder_transformer["layers"].children():
            x = layer(x, attention, cos, sin)
        frames = self.downsample(x[0].T)
        return torch.cat([quantizer(frames) for quantizer in self.quantizer.values()], dim=1)

    def checkpoint_name(self, name: str) -> str:
        name = re.sub(r"codebooks\.(\d+)", r"layers.\1.codebook", name)
        return "encoder." + name.replace("embedding_sum", "embed_sum")


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
