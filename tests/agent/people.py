"""Callers: natural speech by the voice of hibari, and noises, each with a seed. pcm_s16le at 24 kHz, mono."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from agent_tts.engine.hibari.speech import HibariVoice

RATE = 24_000
FULL = 32_767


@functools.cache
def _voice() -> HibariVoice:
    voice = HibariVoice("heart")
    voice.load()
    return voice


@functools.lru_cache(maxsize=64)
def says(text: str, speed: float = 1.0, seed: int = 0) -> bytes:
    """A sentence, at about -20 dBFS, from its first sound to its last."""
    words = [f"{word} " for word in text.split()]
    spoken = _voice().speak(words, (), speed=speed, seed=seed)
    return pcm(spoken.samples[spoken.words[0][0] : spoken.words[-1][1]])


def pcm(samples: NDArray[np.float32]) -> bytes:
    return np.clip(samples, -FULL, FULL).astype("<i2").tobytes()


def silence(seconds: float) -> bytes:
    return bytes(2 * round(RATE * seconds))


def noise(seconds: float, dbfs: float, seed: int) -> bytes:
    """A burst of white noise that fades in and out."""
    count = round(RATE * seconds)
    shape = np.hanning(count) * FULL * 10 ** (dbfs / 20)
    return pcm((np.random.default_rng(seed).standard_normal(count) * shape).astype(np.float32))


def at_level(speech: bytes, dbfs: float) -> bytes:
    """The same sound with this level of its loudest half-second."""
    samples = np.frombuffer(speech, "<i2").astype(np.float32)
    blocks = [samples[at : at + RATE // 2] for at in range(0, max(1, len(samples) - RATE // 2), RATE // 10)]
    loudest = max(float(np.sqrt(np.mean(block**2))) for block in blocks)
    return pcm(samples * np.float32(FULL * 10 ** (dbfs / 20) / loudest))
