"""The codec decoder: the 16 codes of a frame in, its 80 ms of sound out.

* codes -> sum of codebook vectors -> conv -> transformer, window 72 -> upsampling x4 -> upsampling x480 -> samples
* causal: frame n is samples [1920 n, 1920 (n + 1)) and does not depend on frame n + 1
* exact: decoding frame by frame equals decoding the whole clip, because the state keeps all that a frame depends on
* a stream is a row; rows are paused and released by masks, so that a step is always the same work on the same tensors
"""

from __future__ import annotations

import re
from functools import reduce
from itertools import accumulate, pairwise
from operator import mul

import torch
from torch import Tensor, nn

from agent_tts.model.codec_layers import (
    CausalConv,
    Codebook,
    CodecAttention,
    DecoderBlock,
    History,
    LayerScale,
    Past,
    SnakeBeta,
    Upsampling,
)
from agent_tts.model.codec_state import CodecState, NextFrame, WholeClip
from agent_tts.model.config import CodecConfig
from agent_tts.model.layers import MLP, RMSNorm, Rope

# Prefixes in speech_tokenizer/model.safetensors of what only encoding needs.
ENCODING = ("encoder.", "decoder.quantizer.rvq_first.input_proj.", "decoder.quantizer.rvq_rest.input_proj.")


class Quantizer(nn.Module):
    """Codes [B, T, K] -> [B, C, T]."""

    def __init__(self, codebooks: int, config: CodecConfig) -> None:
        super().__init__()
        dim = config.codebook_dim // 2
        self.codebooks = nn.ModuleList(Codebook(config.codebook_size, dim) for _ in range(codebooks))
        self.output_proj = nn.Conv1d(dim, config.codebook_dim, 1, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        vectors = [codebook(codes[..., index]) for index, codebook in enumerate(self.codebooks)]
        out: Tensor = self.output_proj(reduce(torch.add, vectors).transpose(1, 2))
        return out


class SplitQuantizer(nn.Module):
    """Codes [B, T, 16] -> [B, C, T]: the first, semantic code has a projection of its own."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.rvq_first = Quantizer(1, config)
        self.rvq_rest = Quantizer(config.num_quantizers - 1, config)

    def forward(self, codes: Tensor) -> Tensor:
        out: Tensor = self.rvq_first(codes[..., :1]) + self.rvq_rest(codes[..., 1:])
        return out


class CodecTransformerLayer(nn.Module):
    """[B, T, C] -> [B, T, C]."""

    def __init__(self, layer: int, config: CodecConfig) -> None:
        super().__init__()
        channels, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(channels, eps)
        self.self_attn = CodecAttention(
            layer, channels, config.num_attention_heads, config.head_dim, config.attention_bias
        )
        self.self_attn_layer_scale = LayerScale(channels)
        self.post_attention_layernorm = RMSNorm(channels, eps)
        self.mlp = MLP(config)
        self.mlp_layer_scale = LayerScale(channels)

    def forward(self, x: Tensor, past: Past, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), past, cos, sin))
        out: Tensor = x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))
        return out


class CodecTransformer(nn.Module):
    """[B, T, latent] -> [B, T, latent]."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.rope = Rope(config.head_dim, config.rope_theta)
        self.input_proj = nn.Linear(config.latent_dim, config.hidden_size)
        self.layers = nn.ModuleList([CodecTransformerLayer(layer, config) for layer in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.output_proj = nn.Linear(config.hidden_size, config.latent_dim)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        cos, sin = self.rope(past.positions, x.dtype)
        x = self.input_proj(x)
        for layer in self.layers:
            x = layer(x, past, cos, sin)
        out: Tensor = self.output_proj(self.norm(x))
        return out


class Codec(nn.Module):
    """Decodes codes of many streams at once, a frame of each a step, or whole clips."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.quantizer = SplitQuantizer(config)
        self.pre_conv = CausalConv(config.codebook_dim, config.latent_dim, 3, rate=1)
        self.pre_transformer = CodecTransformer(config)
        latent = config.latent_dim
        # Steps a frame before and after each upsampling.
        *latent_rates, rate = accumulate(config.upsampling_ratios, mul, initial=1)
        *rates, samples = accumulate(config.upsample_rates, mul, initial=rate)
        self.upsample = nn.ModuleList(
            Upsampling(latent, ratio, rate=rate)
            for ratio, rate in zip(config.upsampling_ratios, latent_rates, strict=True)
        )
        widths = [config.decoder_dim >> level for level in range(len(config.upsample_rates) + 1)]
        blocks = [
            DecoderBlock(*io, stride, rate=rate)
            for io, stride, rate in zip(pairwise(widths), config.upsample_rates, rates, strict=True)
        ]
        first, last = CausalConv(latent, widths[0], 7, rate=rate), CausalConv(widths[-1], 1, 7, rate=samples)
        self.decoder = nn.ModuleList([first, *blocks, SnakeBeta(widths[-1]), last])
        # Those that look back, by their index in the state.
        self._histories = [module for module in self.modules() if isinstance(module, History) and module.size]
        for index, history in enumerate(self._histories):
            history.index = index

    def init_state(self, rows: int, device: torch.device | str, dtype: torch.dtype) -> CodecState:
        """A state of `rows` streams at their start, in the dtype of the weights."""
        config = self.config
        ring = (config.num_hidden_layers, rows, config.sliding_window, config.num_attention_heads, config.head_dim)
        return CodecState(
            position=torch.zeros(rows, dtype=torch.int64, device=device),
            keys=torch.zeros(ring, dtype=dtype, device=device),
            values=torch.zeros(ring, dtype=dtype, device=device),
            histories=tuple(
                torch.zeros(rows, history.frames * history.rate, history.channels, dtype=dtype, device=device)
                for history in self._histories
            ),
        )

    @torch.inference_mode()
    def reset(self, state: CodecState, rows: Tensor) -> None:
        """Puts some rows, int64[n], back to the start of a stream."""
        state.position.index_fill_(0, rows, 0)

    @torch.inference_mode()
    def step(self, state: CodecState, codes: Tensor, run: Tensor, rows: Tensor | None = None) -> Tensor:
        """One frame of the rows of `run`; the batch are the rows int64[B], or all.

        `codes` int64[B, 16] and `run` bool[B] give float32[B, 1920] within -1 and 1. The other rows stay unchanged and
        give zeros; their codes are ignored. A row that occurs twice must not run. Nothing waits for the device, and no
        shape depends on a value: the step can be captured.
        """
        codes = codes.masked_fill(~run[:, None], 0)
        past = NextFrame(state, rows)
        pcm: Tensor = self(codes[:, None], past)
        past.advance(run)
        return pcm.masked_fill(~run[:, None], 0)

    @torch.inference_mode()
    def decode(self, codes: Tensor, state: CodecState | None = None) -> Tensor:
        """Whole clips from their start: int64[B, T, 16] gives float32[B, T * 1920] within -1 and 1.

        Afterwards a `state` of B rows is as behind the last frame, whatever it was before, for steps to go on from.
        """
        pcm: Tensor = self(codes, WholeClip(codes.shape[1], self.config.sliding_window, codes.device, state))
        return pcm

    def forward(self, codes: Tensor, past: Past) -> Tensor:
        """int64[B, T, 16] after what is past -> float32[B, T * 1920]."""
        x = self.pre_conv(self.quantizer(codes), past)
        x = self.pre_transformer(x.transpose(1, 2), past).transpose(1, 2)
        for upsampling in self.upsample:
            x = upsampling(x, past)
        first, *blocks, snake, last = self.decoder
        x = first(x, past)
        for block in blocks:
            x = block(x, past)
        samples: Tensor = last(snake(x), past)
        return samples.squeeze(1).clamp(-1, 1).float()

    def checkpoint_names(self) -> dict[str, str]:
        """Our name of each parameter -> its name in speech_tokenizer/model.safetensors."""
        return {
            name: "decoder." + re.sub(r"codebooks\.(\d+)", r"vq.layers.\1._codebook", name)
            for name, _ in self.named_parameters()
        }
