"""Loudness: the meter against a reference, and what the engines make of `loudness`."""

from __future__ import annotations

from collections.abc import Iterator

import loudness
import numpy as np
import pytest
from numpy.typing import NDArray

from agent_tts.config.settings import Settings
from agent_tts.directives import Prosody
from agent_tts.engine.base import Engine
from agent_tts.engine.espeak.engine import EspeakEngine
from agent_tts.engine.gain import FULL_SCALE, KNEE, Leveler, Levels, LoudnessMeter, integrated
from agent_tts.engine.tone import ToneEngine
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.options import EngineOptions, NamedVoice, SpeechOptions
from tests.engine.driver import opened, speak

TEXT = "One two three, four five six seven. And a longer sentence, with a comma in it! " * 3
LOUD = SpeechOptions(voice="tone-440", loudness=-18)


def reference(samples: NDArray[np.int16], rate: int = SAMPLE_RATE) -> float:
    """LUFS, by libloudness."""
    measured: float = loudness.integrated_loudness((samples / FULL_SCALE).astype(np.float32), rate)
    return measured


def noise(seconds: float, level: float, rate: int = SAMPLE_RATE) -> NDArray[np.int16]:
    """Noise in bursts of 0.7 s with pauses of 0.3 s, with more low than high tones."""
    white = np.random.default_rng(1).normal(size=round(seconds * rate))
    brown = np.convolve(white, np.exp(-np.arange(60) / 12), "same") / 3
    sounds = np.arange(len(white)) % rate < 0.7 * rate
    return np.clip(level * FULL_SCALE * brown * sounds, -FULL_SCALE, FULL_SCALE).astype(np.int16)


@pytest.mark.parametrize("rate", [22_050, 24_000])
@pytest.mark.parametrize("cut", [1_000, 1_920, 50_000])
def test_the_meter_agrees_with_the_reference(rate: int, cut: int) -> None:
    meter, heard = LoudnessMeter(rate), noise(10, 0.1, rate)
    blocks = [block for at in range(0, len(heard), cut) for block in meter.push(heard[at : at + cut] / FULL_SCALE)]
    assert integrated([block for block in blocks if block > 1e-7]) == pytest.approx(reference(heard, rate), abs=0.1)
    for hz in (40, 100, 997, 4_000, 9_000):
        meter, t = LoudnessMeter(rate), np.arange(4 * rate) / rate
        sine = (0.25 * FULL_SCALE * np.sin(2 * np.pi * hz * t)).astype(np.int16)
        assert integrated(meter.push(sine / FULL_SCALE)[5:]) == pytest.approx(reference(sine, rate), abs=0.1)


@pytest.mark.parametrize("level", [0.02, 0.08, 0.4])
def test_voices_of_any_level_come_to_the_target(level: float) -> None:
    """The second request of a voice has the target from its first sample; a gain ends at 12 dB."""
    blocks: list[float] = []
    voice = noise(12, level)
    Leveler(-20, blocks, SAMPLE_RATE).apply(voice)
    again = Leveler(-20, blocks, SAMPLE_RATE).apply(voice)
    assert np.abs(again).max() <= FULL_SCALE
    wanted = min(max(-20 - reference(voice), -12.0), 12.0)
    assert reference(np.rint(again).astype(np.int16)) == pytest.approx(reference(voice) + wanted, abs=0.7)
    assert reference(np.rint(again[: 2 * SAMPLE_RATE]).astype(np.int16)) == pytest.approx(
        reference(voice[: 2 * SAMPLE_RATE]) + wanted, abs=0.7
    )


def test_the_gain_moves_slowly_and_in_pauses_once_the_voice_is_known() -> None:
    voice = np.concatenate((noise(6, 0.02), noise(6, 0.06)))
    out = Leveler(-26, [], SAMPLE_RATE).apply(voice)
    loud = (np.abs(voice.astype(int)) > 300) & (np.abs(out) < KNEE * FULL_SCALE)
    at, gain_db = np.flatnonzero(loud), 20 * np.log10(out[loud] / voice[loud])
    assert np.abs(np.diff(gain_db)).max() <= (3.1 * np.diff(at) / SAMPLE_RATE).max()
    for second in range(6, 12):  # one burst each
        burst = gain_db[(at >= second * SAMPLE_RATE) & (at < (second + 0.7) * SAMPLE_RATE - 2_400)]
        assert np.ptp(burst) < 0.01


def test_what_is_known_of_voices_is_bounded() -> None:
    levels = Levels()
    for number in range(300):
        levels.leveler(EngineOptions(NamedVoice(str(number)), loudness=-18), SAMPLE_RATE)
    assert len(levels._blocks) == 256
    blocks: list[float] = []
    Leveler(-18, blocks, SAMPLE_RATE).apply(noise(120, 0.1))
    assert len(blocks) <= 604


@pytest.fixture(params=[ToneEngine, pytest.param(EspeakEngine, marks=pytest.mark.node)])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with opened(request.param(Settings(), 4)) as engine:
        yield engine


def test_an_engine_speaks_at_the_loudness_asked_for(engine: Engine) -> None:
    plain = speak(engine, TEXT)
    target = reference(plain.pcm) - 8
    options = EngineOptions(loudness=target)
    speak(engine, TEXT, options=options)
    levelled = speak(engine, TEXT, options=options)
    assert reference(levelled.pcm) == pytest.approx(target, abs=1)
    assert len(levelled.pcm) == len(plain.pcm)
    half = speak(engine, Prosody(volume=0.5), TEXT, options=options)
    assert reference(half.pcm) == pytest.approx(target - 6, abs=1.2)
    assert np.array_equal(speak(engine, TEXT).pcm, plain.pcm)
