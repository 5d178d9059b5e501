"""What the speaker encoder hears: the log mel spectrogram that it was trained on."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_tts.model.config import SAMPLE_RATE

FFT_SIZE = 1024  # samples, of the window too
HOP = 256  # samples


class LogMel(nn.Module):
    """Waveform [N] -> [bands, N // HOP]. N is more than (FFT_SIZE - HOP) / 2: the clip is mirrored at its ends."""

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

    They stand at equal distances on the mel scale of Slaney's Auditory Toolbox (1998), as librosa has it: 200 / 3 Hz a
    mel up to 1 kHz, which is mel 15, and from there 27 mels for every factor of 6.4.
    """
    highest = 15 + 27 * math.log(SAMPLE_RATE / 2 / 1000, 6.4)
    mels = torch.linspace(0, highest, bands + 2, dtype=torch.float64)
    hertz = torch.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))[:, None]
    low, centre, high = hertz[:-2], hertz[1:-1], hertz[2:]
    bins = torch.linspace(0, SAMPLE_RATE / 2, FFT_SIZE // 2 + 1, dtype=torch.float64)
    triangles = torch.minimum((bins - low) / (centre - low), (high - bins) / (high - centre)).clamp(min=0)
    return (triangles * 2 / (high - low)).float()
