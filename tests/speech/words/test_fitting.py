"""Marks are fitted to audio that pauses where the text does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.speech.words.fitting import Fit
from agent_tts.speech.words.peaks import peaks
from tests.examples import examples
from tests.speech.words.test_silences import audio

CLAUSES = ((900, 150), (1_500, 300), (700, 150), (1_100, 300), (1_300, 150), (600, 300))  # ms of speech, ms of pause
LOUD = 9_000


def fit_of(clauses: tuple[tuple[int, int], ...] = CLAUSES, marks: int = 4) -> Fit:
    """Each clause has `marks` marks of equal length."""
    fit = Fit()
    for speech, pause in clauses:
        for number in range(marks):
            fit.add(speech / marks, pause if number == marks - 1 else 0)
    return fit


def spoken(pace: float = 1.0, rest: float = 1.0) -> list[tuple[int, int]]:
    return [span for speech, pause in CLAUSES for span in ((round(speech * pace), LOUD), (round(pause * rest), 0))]


def starts(pace: float = 1.0, rest: float = 1.0) -> list[float]:
    """Start times of the clauses, ms."""
    at, found = 0.0, []
    for speech, pause in CLAUSES:
        found.append(at)
        at += round(speech * pace) + round(pause * rest)
    return found


def hear(fit: Fit, pcm: bytes) -> None:
    for start in range(0, len(pcm), 3_840):
        piece = pcm[start : start + 3_840]
        fit.hear(len(piece) // 2, peaks(piece))


@pytest.mark.parametrize("pace", [0.7, 1.0, 1.4])
@pytest.mark.parametrize("rest", [0.8, 2.0])
def test_each_clause_starts_where_its_gap_ends(pace: float, rest: float) -> None:
    fit = fit_of()
    hear(fit, audio(*spoken(pace, rest)))
    for clause, start in enumerate(starts(pace, rest)):
        assert fit.span(4 * clause)[0] == pytest.approx(start, abs=11)


def test_the_pace_is_learned() -> None:
    fit = fit_of()
    hear(fit, audio(*spoken(1.4)[:4]))
    before = starts(1.4)[2]
    assert fit.span(8)[0] == pytest.approx(starts()[2], abs=700)  # the gap has not ended
    hear(fit, audio((100, LOUD)))
    assert fit.span(8)[0] == pytest.approx(before, abs=11)
    assert fit.span(11)[1] - before == pytest.approx(700 * 1.4, rel=0.2)


def test_a_gap_without_a_pause_in_the_text_is_skipped() -> None:
    fit = fit_of()
    spans = spoken()
    spans[2:3] = [(500, LOUD), (120, 0), (880, LOUD)]  # in the middle of the second clause
    hear(fit, audio(*spans))
    assert fit.span(4)[0] == pytest.approx(1_050, abs=11)
    assert fit.span(8)[0] == pytest.approx(starts()[2], abs=11)


def test_a_pause_without_a_gap_is_skipped() -> None:
    fit = fit_of()
    spans = spoken()
    del spans[5]  # the comma after the third clause
    hear(fit, audio(*spans))
    assert fit.span(16)[0] == pytest.approx(starts()[4] - 150, abs=11)


def test_a_gap_prefers_the_end_of_a_sentence() -> None:
    fit = fit_of(((600, 300), (600, 150), (600, 300)))
    hear(fit, audio((900, LOUD), (250, 0), (100, LOUD)))  # length and position alone suggest the comma
    assert fit.span(4)[0] == pytest.approx(1_150, abs=11)


def test_a_mark_does_not_start_in_silence() -> None:
    fit = fit_of(((1_600, 300),))
    hear(fit, audio((480, LOUD)))
    assert fit.may_start(1)
    hear(fit, audio((160, 0)))
    assert not fit.may_start(1)


def test_a_wrong_guess_is_corrected() -> None:
    fit = fit_of(((500, 150), (500, 150), (2_000, 300), (900, 300)))
    # The first comma makes no gap, and the second clause is slow: its end is first taken for that of the first.
    hear(fit, audio((1_150, LOUD), (150, 0), (2_050, LOUD), (300, 0), (950, LOUD)))
    assert fit.span(8)[0] == pytest.approx(1_300, abs=11)
    assert fit.span(12)[0] == pytest.approx(3_650, abs=11)


def test_the_end_is_where_the_sound_ends() -> None:
    fit = fit_of(((800, 300),))
    hear(fit, audio((60, 0), (1_000, LOUD), (260, 0)))
    fit.reach(4, 1_320)
    assert fit.span(0)[0] == 60
    assert fit.span(3)[1] == 1_060


def test_late_text_starts_late() -> None:
    fit = Fit()
    fit.add(500, 0)
    hear(fit, audio((1_200, LOUD)))
    fit.add(500, 0)
    assert fit.span(0)[1] == fit.span(1)[0] == 1_200


def test_a_mark_after_a_pause_waits_for_it() -> None:
    fit = fit_of(((400, 300), (400, 300)))
    hear(fit, audio((480, LOUD)))
    assert fit.may_start(3)
    assert not fit.may_start(4)
    hear(fit, audio((160, 0)))
    assert not fit.may_start(4)
    hear(fit, audio((160, 0), (80, LOUD)))
    assert fit.may_start(4)
    assert fit.span(4)[0] == 800


def test_a_mark_does_not_wait_for_a_missing_pause() -> None:
    fit = fit_of(((400, 300), (400, 300)))
    hear(fit, audio((1_440, LOUD)))
    assert fit.may_start(4)


@examples(60)
@given(
    clauses=st.lists(st.tuples(st.integers(0, 900), st.sampled_from([0, 150, 300])), min_size=1, max_size=12),
    spans=st.lists(st.tuples(st.integers(1, 60), st.sampled_from([0, LOUD])), min_size=1, max_size=12),
    late=st.integers(0, 12),
)
def test_times_never_go_back(clauses: list[tuple[int, int]], spans: list[tuple[int, int]], late: int) -> None:
    """For any audio and any delay of the text."""
    fit = Fit()
    for speech, pause in clauses[:late]:
        fit.add(speech, pause)
    hear(fit, audio(*((20 * ms, loud) for ms, loud in spans)))
    for speech, pause in clauses[late:]:
        fit.add(speech, pause)
    fit.reach(len(fit), 20 * sum(ms for ms, _ in spans))
    times = [at for mark in range(len(fit)) for at in fit.span(mark)]
    assert times == sorted(times)
    assert times[-1] <= 20 * sum(ms for ms, _ in spans) + 1e-6
