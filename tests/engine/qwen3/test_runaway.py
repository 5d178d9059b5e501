"""Frames that have left their text are detected, and held back until that is certain."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from agent_tts.engine.qwen3.runaway import (
    LOOP_FRAMES,
    LOOP_HELD,
    LOOP_PERIODS,
    SILENT_FRAMES,
    SILENT_HELD,
    SILENT_PEAK,
    TEXT_FRAMES,
    TEXT_HELD,
    FramePaces,
    FrameVerdict,
    RunawayDetector,
    nominal_frames,
    spelled_frames,
)

LOUD = np.full((1, 1_920), SILENT_PEAK, np.int16)
SILENT = LOUD - 1
GOOD, HELD, LOOP, SILENCE, OVERRUN = FrameVerdict


def frames(count: int, seed: int = 0) -> NDArray[np.int64]:
    """Codes [count, 16] of frames that have nothing in common."""
    drawn = np.random.default_rng(seed)
    return np.concatenate([drawn.permutation(2_048)[:count, None], drawn.integers(0, 2_048, (count, 15))], 1)


def judged(
    detector: RunawayDetector, codes: NDArray[np.int64], pcm: NDArray[np.int16] = LOUD
) -> list[tuple[FrameVerdict, int]]:
    """What the detector says of frames of row 0, each verdict with the number of frames in a row; up to the end."""
    found: list[tuple[FrameVerdict, int]] = []
    for frame in codes:
        verdict = FrameVerdict(detector.see([0], frame[None], pcm)[0])
        count = found.pop()[1] if found and found[-1][0] is verdict else 0
        found.append((verdict, count + 1))
        if verdict > HELD:
            break
    return found


@pytest.mark.parametrize("expected", [0.0, 10.0, 80.0])
def test_speech_too_long_for_its_text_is_held_and_then_over(expected: float) -> None:
    detector = RunawayDetector(1)
    detector.expect(0, expected)
    held, most = (int(base + share * expected) for base, share in (TEXT_HELD, TEXT_FRAMES))
    assert judged(detector, frames(500)) == [(GOOD, held - 1), (HELD, most - held), (OVERRUN, 1)]


def test_speech_of_an_unfinished_text_may_be_of_any_length() -> None:
    assert judged(RunawayDetector(1), frames(2_000)) == [(GOOD, 2_000)]


def test_silence_may_last_as_long_as_a_pause() -> None:
    detector = RunawayDetector(1)
    held = (HELD, SILENT_FRAMES - SILENT_HELD)
    assert judged(detector, frames(SILENT_FRAMES - 1), SILENT) == [(GOOD, SILENT_HELD - 1), held]
    assert judged(detector, frames(1, 1)) == [(GOOD, 1)]
    assert judged(detector, frames(500, 2), SILENT) == [(GOOD, SILENT_HELD - 1), held, (SILENCE, 1)]


@pytest.mark.parametrize("period", [1, 2, 7, LOOP_PERIODS])
def test_a_loop_is_detected(period: int) -> None:
    """Of the first codes: the others, which hold how it sounds, differ."""
    loop = frames(200, 1)
    loop[:, 0] = np.resize(frames(period)[:, 0], 200)
    expected = [(GOOD, period + LOOP_HELD - 1), (HELD, LOOP_FRAMES - LOOP_HELD), (LOOP, 1)]
    assert judged(RunawayDetector(1), loop) == expected


def test_equal_frames_of_silence_are_a_pause_and_no_loop() -> None:
    silence = np.tile(frames(1), (500, 1))
    assert judged(RunawayDetector(1), silence, SILENT)[-1] == (SILENCE, 1)


def test_a_sound_held_for_half_a_second_is_not_cut() -> None:
    codes = frames(60)
    codes[10 : 11 + LOOP_HELD, 0] = 5
    assert judged(RunawayDetector(1), codes) == [(GOOD, 10 + LOOP_HELD), (HELD, 1), (GOOD, 49 - LOOP_HELD)]


def test_rows_are_judged_separately_and_can_be_reset() -> None:
    detector = RunawayDetector(3)
    loop = frames(1)[0]
    for other in frames(LOOP_FRAMES, 3):
        assert (detector.see([2, 0], np.stack([loop, other]), np.repeat(LOUD, 2, 0)) < LOOP).all()
    both = np.stack([frames(1, 9)[0], loop])
    assert detector.see([0, 2], both, np.repeat(LOUD, 2, 0)).tolist() == [GOOD, LOOP]
    detector.begin(2)
    assert detector.see([2], loop[None], LOUD) == [GOOD]


def test_the_loudest_negative_sample_is_loud() -> None:
    loud = np.full((1, 1_920), -32_768, np.int16)
    assert judged(RunawayDetector(1), frames(SILENT_FRAMES), loud) == [(GOOD, SILENT_FRAMES)]


class TestPaces:
    def test_a_voice_is_measured_on_what_it_has_said(self) -> None:
        paces = FramePaces()
        assert paces.of("slow") == 1
        for _ in range(20):
            paces.learn("slow", 100, 50)
        assert 1.8 < paces.of("slow") < 2
        assert paces.of("another") == 1

    def test_one_piece_that_ran_away_does_not_make_a_voice_slow(self) -> None:
        paces = FramePaces()
        for _ in range(20):
            paces.learn("bob", 50, 50)
        paces.learn("bob", 5_000, 10)
        assert paces.of("bob") < 1.1

    def test_texts_that_seem_long_do_not_make_a_voice_fast(self) -> None:
        """Of capitals, for example: most speech that follows would be too long for its text."""
        paces = FramePaces()
        for _ in range(40):
            paces.learn("bob", 20, 50)
        assert paces.of("bob") > 0.69

    def test_a_voice_may_become_faster(self) -> None:
        paces = FramePaces()
        for frames in (100, 50):
            for _ in range(40):
                paces.learn("bob", frames, 50)
        assert paces.of("bob") < 1.1


@pytest.mark.parametrize(
    ("text", "language", "seconds"),
    [
        ("How are you today?", "en", (0.7, 2.0)),
        ("今天天气怎么样？", "zh", (1.2, 3.0)),
        ("오늘 날씨가 어때요?", "ko", (1.2, 3.0)),
        ("$1,234,567.89", "en", (3.0, 8.0)),
        ("", "en", (0.0, 0.0)),
    ],
)
def test_a_text_takes_its_time(text: str, language: str, seconds: tuple[float, float]) -> None:
    assert seconds[0] <= nominal_frames(text, language) * 0.08 <= seconds[1]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("A B C D E F G H I J K L M N O P Q R S T U V W X Y Z", 12),
        ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 12),
        ("The keys are XKCDPQRT LMNPQRTV BCDFGHJK XKCDPQRT LMNPQRTV.", 18),
        ("Б В Г Д Е Ж З И К Л М Н", 5),
        ("x = (a + b) / c - d * e ^ 2", 7),
        ("https://www.example.com/very/long/path?query=1&b=2", 15),
        (r"C:\Users\bob\file_1.txt", 6),
        ("Aaaaaaaaaaaaaaaaaah!", 5),
        ("wwwwwwww", 4),
    ],
)
def test_what_is_spelled_or_drawn_out_may_be_slow(text: str, seconds: float) -> None:
    detector = RunawayDetector(1)
    detector.expect(0, nominal_frames(text, "en") + spelled_frames(text))
    assert judged(detector, frames(int(seconds / 0.08)))[-1][0] < OVERRUN


@pytest.mark.parametrize(
    "text", ["How are you today?", "今天天气怎么样？", "오늘 날씨가 어때요?", "Straße, Herbst", "3.5 Mio."]
)
def test_other_texts_take_no_more_time(text: str) -> None:
    assert spelled_frames(text) == 0
