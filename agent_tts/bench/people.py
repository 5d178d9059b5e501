"""What callers sound like: natural voices, and noises that are no speech. Equal seeds give equal sounds."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from agent_tts.bench.recording import read_clip

if TYPE_CHECKING:
    from agent_tts.engine.hibari.speech import HibariVoice

RATE = 24_000
SPEED, PITCH = (0.9, 1.15), (0.85, 1.15)  # of people, against the only voice of hibari that needs no download

Noise = Literal["burst", "breath", "hum"]
Sound = NDArray[np.float32]  # float32[n] at RATE, mono, full scale 1


def says(text: str, seed: int) -> Sound:
    """A sentence of the person with this seed. Raises as `spoken`."""
    draw = np.random.default_rng(seed)
    speed, pitch = (round(float(draw.uniform(*bounds)), 2) for bounds in (SPEED, PITCH))
    return spoken(text, seed, speed, pitch)


@functools.lru_cache(maxsize=1_000)
def spoken(text: str, seed: int, speed: float = 1.0, pitch: float = 1.0) -> Sound:
    """A sentence from its first sound to its last. Raises ImportError: hibari (agent-tts[voice]) is not installed."""
    made = _voice().speak([f"{word} " for word in text.split()], (), speed=speed, pitch=pitch, seed=seed)
    first = min(begin for begin, end in made.words if end > begin)
    return (made.samples[first : made.cuts[-1]] / np.float32(32_768)).astype(np.float32)


@functools.cache
def _voice() -> HibariVoice:
    from agent_tts.engine.hibari.speech import HibariVoice

    voice = HibariVoice("heart")
    voice.load()
    return voice


def recorded(path: Path) -> Sound:
    """The sound of a file. Raises SettingsError: it cannot be read."""
    return read_clip(path, "recording").at(RATE)


def noise(kind: Noise, seconds: float, seed: int) -> Sound:
    """Noise of a kind: a burst of white noise that fades in and out, a breath, or the hum of a room."""
    count = round(RATE * seconds)
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(count))
    hz = np.fft.rfftfreq(count, 1 / RATE)
    if kind == "hum":
        spectrum /= np.maximum(hz, 50) ** 0.5
    elif kind == "breath":
        spectrum *= np.exp(-(((hz - 1_200) / 900) ** 2))
    samples = np.fft.irfft(spectrum, count)
    return (samples * (1.0 if kind == "hum" else np.hanning(count))).astype(np.float32)


def at_level(sound: Sound, dbfs: float) -> Sound:
    """The same sound with this level of its loudest half-second."""
    blocks = [sound[at : at + RATE // 2] for at in range(0, max(1, len(sound) - RATE // 2), RATE // 10)]
    loudest = max(float(np.sqrt(np.mean(block**2))) for block in blocks)
    return np.asarray(np.clip(sound * (10 ** (dbfs / 20) / max(loudest, 1e-6)), -1, 1), np.float32)
