"""The sound of a fake microphone."""

from __future__ import annotations

import io
import wave

import numpy as np

from tests.measure.microphone import ANSWER_S, LEAD_S, TAIL_S, recording

RATE = 24_000


def test_a_recording_has_a_question_and_interruptions_with_time_for_answers() -> None:
    word = np.full(RATE, 1_000, np.int16).tobytes()  # one second
    sound, seconds = recording([word], turns=3, seed=1)
    with wave.open(io.BytesIO(sound)) as file:
        assert (file.getnchannels(), file.getframerate()) == (1, RATE)
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert len(samples) / RATE == seconds
    edges = np.flatnonzero(np.diff(np.pad(samples, 1) != 0)) / RATE
    begins, ends = edges[::2], edges[1::2]
    assert len(begins) == 4
    assert begins[0] == LEAD_S
    assert all(ANSWER_S[0] <= gap_s <= ANSWER_S[1] for gap_s in begins[1:] - ends[:-1])
    assert seconds - ends[-1] == TAIL_S


def test_a_seed_reproduces_the_sound() -> None:
    assert recording([b"\0\1"], 5, seed=2) == recording([b"\0\1"], 5, seed=2) != recording([b"\0\1"], 5, seed=3)
