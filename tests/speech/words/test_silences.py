from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.speech.words.fitting import GAP_MS, Gap, Silences
from agent_tts.speech.words.peaks import peaks
from tests.examples import examples


def audio(*spans: tuple[int, int]) -> bytes:
    """Sine waves of the given lengths in ms and amplitudes, one after the other."""
    waves = [loud * np.sin(np.arange(24 * ms) * 0.1) for ms, loud in spans]
    return np.concatenate(waves).astype("<i2").tobytes()


def hear(silences: Silences, pcm: bytes) -> list[Gap]:
    return silences.hear(len(pcm) // 2, peaks(pcm))


def gaps(pcm: bytes, piece: int = 3_840) -> list[Gap]:
    silences = Silences()
    return [gap for start in range(0, len(pcm), piece) for gap in hear(silences, pcm[start : start + piece])]


def test_silence_between_sounds_is_a_gap() -> None:
    pcm = audio((50, 0), (400, 9_000), (GAP_MS, 0), (400, 9_000), (300, 0))
    assert gaps(pcm) == [Gap(0, 50), Gap(450, 450 + GAP_MS)]


def test_a_stop_consonant_is_no_gap() -> None:
    assert gaps(audio((400, 9_000), (GAP_MS - 10, 0), (400, 9_000))) == [Gap(0, 0)]


def test_sound_far_below_the_loudest_counts_as_silence() -> None:
    assert gaps(audio((400, 20_000), (200, 400), (400, 20_000))) == [Gap(0, 0), Gap(400, 600)]
    assert gaps(audio((400, 4_000), (200, 400), (400, 4_000))) == [Gap(0, 0)]


def test_it_reports_the_end_of_the_sound() -> None:
    silences = Silences()
    assert silences.silent
    assert silences.sounded_until_ms is None
    hear(silences, audio((160, 9_000)))
    assert not silences.silent
    hear(silences, audio((80, 0)))
    assert not silences.silent
    hear(silences, audio((GAP_MS - 80, 0)))
    assert silences.silent
    assert (silences.sounded_until_ms, silences.heard_ms) == (160, 160 + GAP_MS)


@examples(200)
@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0, 9_000])), min_size=1), st.integers(1, 20))
def test_the_split_does_not_change_the_gaps(tens: list[tuple[int, int]], blocks: int) -> None:
    pcm = audio(*((10 * ten, loud) for ten, loud in tens))
    assert gaps(pcm, 480 * blocks) == gaps(pcm, len(pcm))


def test_the_last_piece_may_be_of_any_length() -> None:
    silences = Silences()
    assert hear(silences, audio((80, 9_000))) == [Gap(0, 0)]
    assert hear(silences, b"\0\0" * 7) == []
    assert hear(silences, b"") == []
    assert silences.heard_ms == 80 + 7 / 24
