"""From a clip to the parts of a cloned voice: the vector of the speaker, and the clip as codes.

Only `base` checkpoints have the encoders. They run in float32, whatever the dtype of the speech: they run once a voice.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_tts.model.config import FRAME_SAMPLES, SAMPLE_RATE, ModelConfig
from agent_tts.model.entries import CheckpointError, JsonObject
from agent_tts.model.speaker import SpeakerEncoder
from agent_tts.model.weights import build, plan


class CodecEncoder(nn.Module):
    """The encoder of the codec, which is that of Mimi: waveform float32[N] -> codes int64[ceil(N / 1920), K].

    Args:
        entries: the configuration of Mimi.
        codebooks: K, the first ones of Mimi's.
    """

    def __init__(self, entries: Mapping[str, Any], codebooks: int) -> None:
        from transformers import MimiConfig, MimiModel  # seconds to import

        super().__init__()
        self.codebooks = codebooks
        self.encoder = MimiModel(MimiConfig(**entries))
        for decoding in ("upsample", "decoder_transformer", "decoder"):
            setattr(self.encoder, decoding, None)

    def forward(self, waveform: Tensor) -> Tensor:
        encoded: Any = self.encoder.encode(waveform[None, None], num_quantizers=self.codebooks, return_dict=True)
        codes: Tensor = encoded.audio_codes[0]
        return codes.T

    def checkpoint_names(self) -> dict[str, str]:
        """Our name of each tensor -> its name in the checkpoint, which is the same."""
        return {name: name for name in self.state_dict()}


class VoiceEncoder:
    """Makes voices of clips: 24 kHz, one channel, float32 within -1 and 1, at least 80 ms."""

    def __init__(self, speaker: SpeakerEncoder, codec: CodecEncoder | None, device: torch.device | str) -> None:
        self._speaker = speaker
        self._codec = codec
        self._device = device

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu", *, vector_only: bool = False) -> Self:
        """Reads only the two encoders of a checkpoint folder.

        Args:
            vector_only: leave out the codec's encoder, which takes seconds to load: there are no `codes` then.
        Raises:
            CheckpointError: the checkpoint is not `base`, or incomplete.
        """
        config, codec = ModelConfig.read(folder), JsonObject.load(folder, "speech_tokenizer/config.json")
        if config.speaker_encoder is None:
            raise CheckpointError(
                f"config.json: tts_model_type is {config.tts_model_type!r}; only 'base' checkpoints clone voices"
            )
        codec.require("input_sample_rate", SAMPLE_RATE)
        codec.require("encode_downsample_rate", FRAME_SAMPLES)
        codec.require("encoder_valid_num_quantizers", config.codec.num_quantizers)
        speaker_encoder = build(SpeakerEncoder, config.speaker_encoder)
        plans = [plan(speaker_encoder, folder / "model.safetensors", torch.float32, unused=("talker.",))]
        codec_encoder = None
        if not vector_only:
            codec_encoder = build(CodecEncoder, codec.section("encoder_config").entries, config.codec.num_quantizers)
            codec_file = folder / "speech_tokenizer/model.safetensors"
            plans.append(plan(codec_encoder, codec_file, torch.float32, unused=("decoder.",)))
        for part in plans:
            part.load(device)
        return cls(speaker_encoder, codec_encoder, device)

    @torch.inference_mode()
    def vector(self, waveform: Tensor) -> Tensor:
        """Who speaks: float32[N] -> float32[H].

        Raises:
            ValueError: the clip has several channels, or is shorter than a frame.
        """
        vector: Tensor = self._speaker(self._clip(waveform))
        return vector

    @torch.inference_mode()
    def codes(self, waveform: Tensor) -> Tensor:
        """The clip as codes: float32[N] -> int64[ceil(N / 1920), 16].

        Raises:
            ValueError: the clip has several channels, or is shorter than a frame.
        """
        assert self._codec is not None, "it was loaded for vectors alone"
        codes: Tensor = self._codec(self._clip(waveform))
        return codes

    def _clip(self, waveform: Tensor) -> Tensor:
        if waveform.ndim != 1 or len(waveform) < FRAME_SAMPLES:
            raise ValueError(f"a clip is one channel of at least {FRAME_SAMPLES} samples, not {[*waveform.shape]}")
        return waveform.to(self._device, torch.float32)


def add_silence(waveform: Tensor, seconds: float = 0.5) -> Tensor:
    """[N] -> [N + seconds]: without silence behind a reference, the new text begins within its last phoneme."""
    return F.pad(waveform, (0, round(seconds * SAMPLE_RATE)))
