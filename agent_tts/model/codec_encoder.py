"""The codec's encoder: 80 ms of sound in, the 16 codes of a frame out. It is that of Mimi, arXiv:2410.00037.

waveform -> convolutions, a step for 40 ms -> transformer -> convolution, two steps to a frame -> residual quantisation

All of it is causal. It encodes whole clips, one at a time. Parameters except codebooks are named as in the released
checkpoints. Shapes: one clip; T steps of the layer's own rate, C channels.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_tts.model.codec_layers import Codebook, LayerScale
from agent_tts.model.config import TransformerConfig
from agent_tts.model.entries import JsonObject
from agent_tts.model.layers import Projections, Rope, rotate
from agent_tts.model.weights import Loadable

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
        out: Tensor = self.conv(F.pad(x, (kernel - stride, -x.shape[-1] % stride), self.padding))
        return out


class EncoderResidual(nn.Module):
    """[C, T] -> [C, T]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            *(nn.ELU(), StridedConv(channels, channels // 2, 3)),
            *(nn.ELU(), StridedConv(channels // 2, channels, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.block(x)
        return out


class EncoderLayer(nn.Module):
    """[1, T, C] -> [1, T, C]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        channels, inner = config.hidden_size, config.intermediate_size
        self.input_layernorm = nn.LayerNorm(channels, config.norm_eps)
        self.self_attn = Projections(config, bias=False)
        self.self_attn_layer_scale = LayerScale(channels)
        self.post_attention_layernorm = nn.LayerNorm(channels, config.norm_eps)
        widen, narrow = nn.Linear(channels, inner, bias=False), nn.Linear(inner, channels, bias=False)
        self.mlp = nn.Sequential(OrderedDict(fc1=widen, gelu=nn.GELU(), fc2=narrow))
        self.mlp_layer_scale = LayerScale(channels)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query, key, value = (heads.transpose(1, 2) for heads in self.self_attn.heads(self.input_layernorm(x)))
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.self_attn_layer_scale(self.self_attn.o_proj(mixed.transpose(1, 2).flatten(2)))
        out: Tensor = x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))
        return out


class ResidualQuantizer(nn.Module):
    """[C, T] -> codes int64[T, codebooks]: of each codebook the vector nearest to what those before it left over."""

    def __init__(self, codebooks: int, config: EncoderConfig) -> None:
        super().__init__()
        size, dim = config.codebook_size, config.vector_quantization_hidden_dimension
        self.input_proj = nn.Conv1d(config.hidden_size, dim, 1, bias=False)
        self.codebooks = nn.ModuleList(Codebook(size, dim) for _ in range(codebooks))
        self._every: Tensor  # int64[size]
        self.register_buffer("_every", torch.arange(size), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        left, codes = self.input_proj(x).T, []
        for codebook in self.codebooks:
            vectors = codebook(self._every)
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
        blocks = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_hidden_layers))
        self.encoder_transformer = nn.ModuleDict({"layers": blocks})
        self.rope = Rope(config.head_dim, config.rope_theta)
        self.downsample = StridedConv(channels, channels, 4, 2, repeats_ends=True)
        # The first, semantic code has a projection of its own.
        first_code, others = ResidualQuantizer(1, config), ResidualQuantizer(codebooks - 1, config)
        names = "semantic_residual_vector_quantizer", "acoustic_residual_vector_quantizer"
        self.quantizer = nn.ModuleDict(dict(zip(names, (first_code, others), strict=True)))

    def forward(self, waveform: Tensor) -> Tensor:
        x = self.encoder["layers"](waveform[None]).T[None]
        cos, sin = (
            turn.transpose(1, 2) for turn in self.rope(torch.arange(x.shape[1], device=x.device)[None], x.dtype)
        )
        for layer in self.encoder_transformer["layers"].children():
            x = layer(x, cos, sin)
        frames = self.downsample(x[0].T)
        return torch.cat([quantizer(frames) for quantizer in self.quantizer.values()], dim=1)

    def checkpoint_name(self, name: str) -> str:
        name = re.sub(r"codebooks\.(\d+)", r"layers.\1.codebook", name)
        return "encoder." + name.replace("embedding_sum", "embed_sum")
