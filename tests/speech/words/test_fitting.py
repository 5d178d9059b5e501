"""Marks are fitted to audio that pauses where the text does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.speech.words.fitting import Fit
from agent_tts.speech.words.peaks import peaks
from tests.examples import examples
from tests.speech.words.test_silences import audio

CLAUSES = ((900, 150), (1_500, 300), (700, 150), (1_100, 300), (1_300, 150), (600, 300)) * 2  # ms of speech, of pause
LOUD = 9_000


def fit_of(
    clauses: tuple[tuple[int, int], ...] = CLAUSES, marks: int = 4, speed: float = 1.0, pace: float = 1.0
) -> Fit:
    """Each clause has `marks` marks of equal length."""
    fit = Fit(speed, pace)
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
    """And where the best of all guesses has it, when the end of the audio decides."""
    fit, spans = fit_of(), spoken(pace, rest)
    hear(fit, audio(*spans))
    for _ in range(2):
        for clause, start in enumerate(starts(pace, rest)):
            assert fit.span(4 * clause)[0] == pytest.approx(start, abs=11)
            if clause < len(CLAUSES) - 1:  # of the last one the end is not known yet
                assert fit.span(4 * clause + 3)[1] == pytest.approx(start + CLAUSES[clause][0] * pace, abs=11)
        fit.reach(len(fit), sum(ms for ms, _ in spans))
    assert fit.span(len(fit) - 1)[1] == pytest.approx(sum(ms for ms, _ in spans[:-1]), abs=11)


def test_times_before_any_audio_are_those_of_the_speed_and_the_voice() -> None:
    fit = fit_of(((600, 300), (300, 0)), marks=1, speed=2.0, pace=1.3)
    assert [*fit.span(0), *fit.span(1)] == pytest.approx([0, 390, 540, 735])
    assert fit.pace == 1.3


def test_what_is_expected_next_is_a_mean_of_what_was_heard_and_what_was_expected_before() -> None:
    """Of pauses as of speech: the first one takes 200 ms instead of 150."""
    fit = fit_of(((900, 300), (900, 300), (900, 300)), speed=2.0, pace=1.2)
    hear(fit, audio((540, LOUD), (200, 0), (20, LOUD)))
    assert fit.span(4)[0] == 740
    assert fit.span(7)[1] == pytest.approx(740 + 540)
    assert fit.span(8)[0] == pytest.approx(740 + 540 + 300 * (150 + 200) / (300 + 300))


def test_a_revision_tells_that_times_may_have_changed() -> None:
    fit, seen = fit_of(CLAUSES[:3]), [-1]
    for spans in (spoken()[:3], spoken()[1:3]):
        hear(fit, audio(*spans))
        seen.append(fit.revision)
        fit.span(0)
        seen.append(fit.revision)
    hear(fit, audio((5_000, LOUD)))
    for number in range(2):
        fit.add(100, 0)
        seen.append(fit.revision)
        hear(fit, audio((5_000, LOUD)))
        fit.reach(12 + number, 9_000 + 100 * number)
        seen.append(fit.revision)
    assert seen == sorted(set(seen))


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
    spans[2:3] = [(900, LOUD), (120, 0), (480, LOUD)]  # in the middle of the second clause
    hear(fit, audio(*spans))
    assert fit.span(4)[0] == pytest.approx(1_050, abs=11)
    assert fit.span(8)[0] == pytest.approx(starts()[2], abs=11)


def test_a_pause_without_a_gap_is_skipped() -> None:
    fit = fit_of()
    spans = spoken()
    del spans[5]  # the comma after the third clause
    hear(fit, audio(*spans))
    assert fit.span(16)[0] == pytest.approx(starts()[4] - 150, abs=11)


@pytest.mark.parametrize(
    ("clauses", "at_ms", "mark"),
    [
        (((600, 300), (100, 150), (500, 300)), 1_000, 4),  # length and position alone suggest the last pause
        (((600, 150), (600, 300)), 1_000, 8),
        (((100, 150), (100, 150), (2_800, 300)), 3_000, 12),
    ],
)
def test_a_gap_prefers_the_end_of_a_sentence(clauses: tuple[tuple[int, int], ...], at_ms: int, mark: int) -> None:
    fit = fit_of((*clauses, (9_000, 0)))
    hear(fit, audio((at_ms, LOUD), (250, 0), (100, LOUD)))
    assert fit.span(mark)[0] == at_ms + 250


@pytest.mark.parametrize(("at_ms", "length_ms"), [(380, 240), (2_010, 450), (1_000, 120)])
def test_a_gap_far_from_a_pause_or_much_shorter_is_none(at_ms: int, length_ms: int) -> None:
    """A pause of 300 ms is expected after 1 s. Mutations: other costs of a stray gap, or of another length."""
    fit = fit_of(((2_000, 600), (9_000, 0)), speed=2.0)
    hear(fit, audio((at_ms, LOUD), (length_ms, 0), (100, LOUD)))
    assert fit.span(4)[0] == pytest.approx(1_300)


def test_a_mark_does_not_start_in_silence() -> None:
    fit = fit_of(((1_600, 300),))
    hear(fit, audio((480, LOUD)))
    assert fit.may_start(1)
    hear(fit, audio((160, 0)))
    assert not fit.may_start(1)
    fit.reach(1, 640)
    assert fit.may_start(0)  # has started
    assert not fit.may_start(1)


def test_a_wrong_guess_is_corrected() -> None:
    fit = fit_of(((500, 150), (500, 150), (2_000, 300), (900, 300)))
    # The first comma makes no gap, and the second clause is slow: its end is first taken for that of the first.
    hear(fit, audio((1_150, LOUD), (150, 0), (2_050, LOUD), (300, 0), (950, LOUD)))
    assert fit.span(8)[0] == pytest.approx(1_300, abs=11)
    assert fit.span(12)[0] == pytest.approx(3_650, abs=11)


@pytest.mark.parametrize(("audio_ms", "end_ms"), [(1_320, 1_060), (1_321, 1_321), (1_000, 1_000)])
def test_the_end_is_where_the_sound_ends(audio_ms: int, end_ms: int) -> None:
    """Unless the end of the audio is not heard yet, or audio of later text is."""
    fit = fit_of(((800, 300), (100, 0)))
    hear(fit, audio((60, 0), (1_000, LOUD), (260, 0)))
    fit.reach(4, audio_ms)
    assert (fit.span(0)[0], fit.span(3)[1], fit.span(4)[0]) == (60, end_ms, audio_ms)
    for mark, again_ms in ((4, 1_330), (5, audio_ms), (5, 900)):  # no end follows from these
        fit.reach(mark, again_ms)
        assert (fit.span(3)[1], fit.span(4)[0]) == (end_ms, audio_ms)
        assert fit.span(4)[1] > audio_ms


def test_flushes_hold_the_text_before_them() -> None:
    fit, spans = fit_of(), spoken()
    ends = [start + speech for start, (speech, _) in zip(starts(), CLAUSES, strict=True)]
    for clause in range(1, len(CLAUSES), 2):
        hear(fit, audio(*spans[max(0, 2 * clause - 3) : 2 * clause + 1]))
        fit.reach(4 * clause + 4, round(ends[clause]))
    assert [fit.span(4 * clause)[0] for clause in range(len(CLAUSES))] == starts()
    assert [fit.span(4 * clause + 3)[1] for clause in range(len(CLAUSES))] == ends


def test_the_end_may_tell_which_pause_a_gap_was() -> None:
    fit = fit_of(((600, 150), (600, 150), (600, 300)))
    hear(fit, audio((900, LOUD), (200, 0), (550, LOUD)))
    assert fit.span(4)[0] == 1_100
    fit.reach(12, 1_650)
    assert fit.span(8)[0] == 1_100


def test_late_text_starts_late_unless_the_audio_tells_another_time() -> None:
    fit = Fit()
    fit.add(500, 0)
    hear(fit, audio((1_200, LOUD)))
    fit.add(500, 0)
    assert fit.may_start(1)
    assert fit.span(0)[1] == fit.span(1)[0] == 1_200
    fit.reach(1, 1_100)
    assert fit.span(0)[1] == fit.span(1)[0] == 1_100


def test_late_text_starts_after_a_gap_that_is_longer() -> None:
    fit = fit_of(((900, 300), (100, 0)), marks=1)
    hear(fit, audio((1_310, LOUD)))
    fit.add(100, 0)
    assert fit.span(2)[0] == 1_310
    hear(fit, audio((250, 0), (100, LOUD)))
    assert fit.span(1)[0] == 1_560 < fit.span(2)[0]


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


@pytest.mark.parametrize(("pause", "late_ms"), [(300, 400 + 0.6 * 400), (150, 150 + 0.2 * 400)])
def test_a_mark_does_not_wait_long_for_a_missing_pause(pause: int, late_ms: float) -> None:
    fit = fit_of(((400, pause), (400, 300)))
    hear(fit, audio((60, 0), (round(400 + late_ms), LOUD)))
    assert not fit.may_start(4)
    hear(fit, audio((10, LOUD)))
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
