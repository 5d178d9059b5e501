"""Clips to clone."""

from __future__ import annotations

import torch
from torch import Tensor

from agent_tts.model.config import SAMPLE_RATE

# Samples; most are no multiple of a frame or of a step of the spectrogram. The last is longer than Mimi's window.
LENGTHS = (1920, 1921, 24_000, 30_001, 48_777, 72_000, 264_000)


def clip(samples: int, seed: int = 0) -> Tensor:
    """Two tones in noise with a changing level: float32[samples] within -1 and 1."""
    noise = torch.Generator().manual_seed(seed)
    seconds = torch.arange(samples, dtype=torch.float64) / SAMPLE_RATE
    pitch = 110 + 200 * torch.rand(2, 1, generator=noise, dtype=torch.float64)
    tones = torch.sin(2 * torch.pi * pitch * seconds).sum(0)
    swell = 0.3 + 0.2 * torch.sin(2 * torch.pi * 3 * seconds)
    hiss = torch.randn(samples, generator=noise, dtype=torch.float64).clamp(-3, 3)
    return (swell * tones + 0.05 * hiss).clamp(-1, 1).float()
