"""The callers of the benchmark of agents, at the speed of the voice. pcm_s16le at 24 kHz, mono."""

from __future__ import annotations

import numpy as np

from agent_tts.bench import people
from agent_tts.bench.people import RATE, Sound


def says(text: str, speed: float = 1.0, seed: int = 0) -> bytes:
    """A sentence, at about -20 dBFS."""
    return pcm(people.spoken(text, seed, speed))


def pcm(sound: Sound) -> bytes:
    return np.clip(sound * 32_768, -32_768, 32_767).astype("<i2").tobytes()


def silence(seconds: float) -> bytes:
    return bytes(2 * round(RATE * seconds))


def noise(seconds: float, dbfs: float, seed: int) -> bytes:
    """A burst of white noise that fades in and out."""
    return pcm(people.noise("burst", seconds, seed) * np.float32(10 ** (dbfs / 20)))


def at_level(speech: bytes, dbfs: float) -> bytes:
    """The same sound with this level of its loudest half-second."""
    return pcm(people.at_level(np.frombuffer(speech, "<i2").astype(np.float32) / np.float32(32_768), dbfs))
