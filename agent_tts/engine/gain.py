"""Loudness of samples: a factor, or a target that every voice is brought to."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_tts.options import EngineOptions
from agent_tts.sound.silence import AUDIBLE_PEAK

KNEE = 0.7  # of full scale
FULL_SCALE = 32_767

# A block of ITU-R BS.1770 is 400 ms; one begins every 100 ms. Blocks below the absolute gate are silence; those 10 LU
# below the mean of the others are pauses.
HOP_S, HOPS = 0.1, 4
SILENT_LUFS, PAUSE_LU = -70.0, -10.0

# Seconds of a voice's speech after which its gain moves in pauses only, and after which it is not measured any more:
# its level is known, and what a listener hears does not drift.
KNOWN_S, MEASURED_S = 3.0, 60.0
MOST_DB = 12.0
DB_PER_S = 3.0
MAX_VOICES = 256


def amplify(samples: NDArray[np.int16] | NDArray[np.float32], volume: float) -> NDArray[np.float32]:
    """`volume` times as loud, in the range of int16. Where that is louder, it bends above the knee and never clips."""
    scaled = samples * np.float32(volume)
    return _bent(scaled) if volume > 1 else scaled


def _bent(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    knee, room = KNEE * FULL_SCALE, (1 - KNEE) * FULL_SCALE
    over = np.abs(samples) - knee
    bent: NDArray[np.float32] = np.where(over > 0, np.sign(samples) * (knee + room * np.tanh(over / room)), samples)
    return bent


class Levels:
    """How loud each voice has spoken in this process, before any gain. The voices used last are kept."""

    def __init__(self) -> None:
        # Mean squares of the blocks of each voice, full scale 1.
        self._blocks: OrderedDict[Hashable, list[float]] = OrderedDict()

    def leveler(self, options: EngineOptions, rate: int) -> Leveler | None:
        """For one request, whose voice speaks at `rate` Hz; None where it has no target."""
        if options.loudness is None:
            return None
        voice = (options.model, options.voice)
        blocks = self._blocks[voice] = self._blocks.pop(voice, [])
        if len(self._blocks) > MAX_VOICES:
            self._blocks.popitem(last=False)
        return Leveler(options.loudness, blocks, rate)


class Leveler:
    """Brings one request to `target` LUFS by a gain that hardly changes, so that nothing pumps.

    It begins with what the voice needs by what it has said before, or with 0 dB. From then on it moves in pauses, and
    while little of the voice is known also in speech, by at most 3 dB a second.

    Args:
        blocks: the measurement of the voice, shared by its requests.
        rate: of the samples, Hz.
    """

    def __init__(self, target: float, blocks: list[float], rate: int) -> None:
        self._target = target
        self._blocks = blocks
        self._rate = rate
        self._meter = LoudnessMeter(rate)
        self._db = self._wanted_db()

    def apply(self, samples: NDArray[np.int16]) -> NDArray[np.float32]:
        """int16[n] to float32[n] in the range of int16, nothing clipped."""
        hop = round(HOP_S * self._rate)
        levelled = [self._apply(samples[start : start + hop]) for start in range(0, len(samples), hop)]
        return np.concatenate(levelled) if levelled else samples.astype(np.float32)

    def _apply(self, samples: NDArray[np.int16]) -> NDArray[np.float32]:
        if len(self._blocks) < MEASURED_S / HOP_S:
            self._blocks += [block for block in self._meter.push(samples / FULL_SCALE) if lufs(block) > SILENT_LUFS]
        before = self._db
        in_pause = np.abs(samples.astype(np.int32)).max() <= AUDIBLE_PEAK
        if in_pause or len(self._blocks) < KNOWN_S / HOP_S:
            most = DB_PER_S * len(samples) / self._rate
            self._db += min(max(self._wanted_db() - before, -most), most)
        ramp = np.linspace(before, self._db, len(samples) + 1, dtype=np.float32)[1:]
        return _bent((samples * 10 ** (ramp / 20)).astype(np.float32))

    def _wanted_db(self) -> float:
        level = integrated(self._blocks)
        return 0.0 if level is None else min(max(self._target - level, -MOST_DB), MOST_DB)


def lufs(mean_square: float) -> float:
    """Loudness of a mean square of K-weighted samples, full scale 1."""
    return -0.691 + 10 * math.log10(max(mean_square, 1e-12))


def integrated(blocks: list[float]) -> float | None:
    """Loudness of blocks above the absolute gate, LUFS; None without any."""
    if not blocks:
        return None
    values = np.array(blocks)
    loud = values[values > values.mean() * 10 ** (PAUSE_LU / 10)]
    return lufs(float(loud.mean()))


class LoudnessMeter:
    """The blocks of ITU-R BS.1770 of one stream, mono."""

    def __init__(self, rate: int) -> None:
        self._hop = round(HOP_S * rate)
        # complex128[size / 2 + 1] and the number of the filter's taps.
        self._response, self._taps = _weighting(rate)
        # float64: what the filter still needs of the samples before, and samples of an incomplete hop.
        self._input: NDArray[np.floating[Any]] = np.zeros(self._taps - 1)
        # Mean squares of the last hops.
        self._hops: list[float] = []

    def push(self, samples: NDArray[np.floating[Any]]) -> list[float]:
        """Samples [n], full scale 1; gives the mean squares of the blocks that they complete."""
        self._input = np.concatenate((self._input, samples))
        blocks = []
        while len(self._input) >= self._taps - 1 + self._hop:
            size = 2 * (len(self._response) - 1)
            spectrum = np.fft.rfft(self._input[: self._taps - 1 + self._hop], size)
            weighted = np.fft.irfft(spectrum * self._response, size)[self._taps - 1 :][: self._hop]
            self._input = self._input[self._hop :]
            self._hops = [*self._hops[1 - HOPS :], float(np.mean(weighted**2))]
            if len(self._hops) == HOPS:
                blocks.append(sum(self._hops) / HOPS)
        return blocks


@lru_cache(maxsize=4)
def _weighting(rate: int) -> tuple[NDArray[np.complex128], int]:
    """The K-weighting at a rate as a filter of 75 ms, which holds all of it but -100 dB: (its response, its taps)."""
    taps = round(0.075 * rate)
    size = 1 << (taps + round(HOP_S * rate)).bit_length()
    z = np.exp(-2j * np.pi * np.arange(2 * size + 1) / (4 * size))  # long enough that nothing wraps around
    shelf, high_pass = _biquads(rate)
    response = np.ones_like(z)
    for numerator, denominator in (shelf, high_pass):
        response *= np.polyval(numerator[::-1], z) / np.polyval(denominator[::-1], z)
    return np.fft.rfft(np.fft.irfft(response)[:taps], size), taps


def _biquads(rate: int) -> tuple[tuple[list[float], list[float]], tuple[list[float], list[float]]]:
    """The two filters of BS.1770, given there at 48 kHz, at any rate: coefficients of z^0, z^-1, z^-2."""
    k, q, high = math.tan(math.pi * 1_681.974450955533 / rate), 0.7071752369554196, 10 ** (3.999843853973347 / 20)
    mid, one = high**0.4996667741545416, 1 + k / q + k * k
    shelf = (
        [(high + mid * k / q + k * k) / one, 2 * (k * k - high) / one, (high - mid * k / q + k * k) / one],
        [1.0, 2 * (k * k - 1) / one, (1 - k / q + k * k) / one],
    )
    k, q = math.tan(math.pi * 38.13547087602444 / rate), 0.5003270373238773
    one = 1 + k / q + k * k
    return shelf, ([1.0, -2.0, 1.0], [1.0, 2 * (k * k - 1) / one, (1 - k / q + k * k) / one])
