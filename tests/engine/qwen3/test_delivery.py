"""Directives as Qwen3-TTS performs them, a piece of the text for each manner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from agent_tts.directives import Directive, Language, Pause, Prosody, Say, Style
from agent_tts.engine.gain import amplify, lufs
from agent_tts.engine.qwen3.delivery import SEAM_MS, Manner, RowOutlet, Seam
from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.engine.qwen3.graphs import LaunchedStep
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.messages import Audio, Flushed, StepCommand
from agent_tts.model.config import ModelType
from agent_tts.sound.silence import AUDIBLE_PEAK
from agent_tts.text.directives import ABILITIES
from tests.engine.driver import (
    FLUSH,
    Piece,
    Script,
    Spoken,
    appended,
    assert_well_formed,
    resolved,
    speak,
    speak_all,
    start_of,
)
from tests.engine.qwen3.test_engine import ANYONE, RYAN, TEXT, assert_same, engine, frames_of, ours, overlapped, theirs
from tests.examples import examples
from tests.model import oracle, tiny
from tests.serve.test_markup_page import DONE

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("quick_parts")]

EXCITED = "Speak in an excited tone."
GAP_MS = 120  # that a seam may have


@pytest.fixture(scope="module")
def ryan() -> Iterator[Qwen3Engine]:
    with engine(tiny.ending("custom_voice")) as made:
        yield made


def said(made: Qwen3Engine, *pieces: Piece, **options: Any) -> Spoken:
    spoken = speak(made, *pieces, options=replace(RYAN, **options))
    assert_well_formed(spoken)
    return spoken


@cache
def alone(made: Qwen3Engine, text: str, **options: Any) -> Spoken:
    """A text without directives."""
    return said(made, text, **options)


# ---------------------------------------------------------------- style and language: another prompt


@pytest.mark.usefixtures("whole_model")
@pytest.mark.parametrize(
    ("own", "mode"), [(None, "live"), pytest.param("Speak calmly.", "whole", marks=pytest.mark.slow)]
)
def test_a_piece_with_a_style_equals_upstream_with_its_instructions(own: str | None, mode: Any) -> None:
    instruct = f"{own} {EXCITED}" if own else EXCITED
    model = oracle.load(tiny.checkpoint("custom_voice"))
    expected = theirs(model, "generate_custom_voice", mode=mode, speaker="ryan", language="English", instruct=instruct)
    options = replace(RYAN, instructions=own, text_mode=mode)
    with engine(tiny.checkpoint("custom_voice"), slots=1) as named:
        start: list[StepCommand] = [start_of(0, options), *appended(0, directive=Style(EXCITED))]
        assert_same(frames_of(named, named.step([*start, *appended(0, TEXT, last=True)], [0])), expected)


def test_a_style_that_comes_after_the_prompt_was_computed_ahead_is_obeyed() -> None:
    with engine(tiny.checkpoint("custom_voice"), slots=1) as named:
        expected = ours(named, replace(RYAN, instructions=EXCITED))
        outputs = named.step([start_of(0, RYAN)], [0])
        for _ in range(3):
            outputs += named.step([], [])
        inputs = [*appended(0, "", directive=Style(EXCITED)), *appended(0, TEXT, last=True)]
        audio = frames_of(named, [one for one in outputs + named.step(inputs, [0]) if isinstance(one, Audio)])
    assert np.array_equal(audio, expected)


@pytest.mark.parametrize(
    ("directive", "options"),
    [(Style(EXCITED), {"instructions": EXCITED}), (Language("German"), {"language": "de"})],
)
def test_a_change_holds_for_the_pieces_after_it(ryan: Qwen3Engine, directive: Directive, options: Any) -> None:
    """Each piece is what the same text is alone in that manner."""
    back = Style(None) if isinstance(directive, Style) else Language(None)
    first, second, third = alone(ryan, "One two."), alone(ryan, "Three four.", **options), alone(ryan, "Five six.")
    told = said(ryan, "One two.", directive, "Three four.", back, "Five six.")
    assert np.array_equal(told.pcm, np.concatenate((first.pcm, second.pcm, third.pcm)))
    assert not np.array_equal(second.pcm, alone(ryan, "Three four.").pcm)


def test_numbers_are_said_in_the_language_of_their_piece(ryan: Qwen3Engine) -> None:
    told = said(ryan, "12.", Language("de"), "12.", normalize=True)
    english, german = alone(ryan, "twelve."), alone(ryan, "zwölf.", language="de")
    assert np.array_equal(told.pcm, np.concatenate((english.pcm, german.pcm)))


# ---------------------------------------------------------------- what has no effect


def test_the_docs_say_what_is_performed(ryan: Qwen3Engine) -> None:
    assert {name for name in ABILITIES if DONE[name]["qwen3"] == "performed"} == set(ryan._models[0].abilities)


@pytest.mark.parametrize(
    "nothing", [Prosody(), Prosody(pitch=1.5), Style(None), Language("en"), Language("tlh"), Pause(0)]
)
def test_what_changes_nothing_leaves_no_trace(ryan: Qwen3Engine, nothing: Directive) -> None:
    plain = said(ryan, "One two", " three four.")
    told = said(ryan, nothing, "One two", nothing, " three four.", nothing)
    assert np.array_equal(told.pcm, plain.pcm)


@pytest.mark.parametrize(
    "kind", [("base", tiny.PROJECTED), ("voice_design", tiny.PROJECTED), ("custom_voice", tiny.SAME_WIDTH)]
)
def test_a_voice_without_instructions_has_no_styles(kind: tuple[ModelType, str]) -> None:
    with engine(tiny.checkpoint(*kind), slots=1) as made:
        options = resolved(made, ANYONE)
        plain = ours(made, options, "Hello there.")
        start: list[StepCommand] = [start_of(0, options), *appended(0, "Hello", directive=Style(EXCITED))]
        outputs = made.step([*start, *appended(0, " there.", last=True)], [0])
        assert np.array_equal(frames_of(made, outputs), plain)
        assert "style" not in made._models[0].abilities


def test_words_with_another_pronunciation_are_said_by_their_alias(ryan: Qwen3Engine) -> None:
    plain = alone(ryan, "The doctor is in.")
    assert np.array_equal(said(ryan, "The ", Say("Dr.", alias="doctor", ipa="ˈdɒktə"), " is in.").pcm, plain.pcm)
    assert np.array_equal(said(ryan, "The ", Say("doctor", ipa="ˈdɒktə"), " is in.").pcm, plain.pcm)


# ---------------------------------------------------------------- speed and volume: another filter


@pytest.mark.parametrize("speed", [0.5, 3.0])
def test_speed_holds_from_there_on(ryan: Qwen3Engine, speed: float) -> None:
    first, second, third = (alone(ryan, text) for text in ("One two.", "Three four.", "Five six."))
    told = said(ryan, "One two.", Prosody(speed=speed), "Three four.", Prosody(), "Five six.")
    assert len(told.pcm) == pytest.approx(len(first.pcm) + len(second.pcm) / speed + len(third.pcm), abs=1_200)
    assert np.array_equal(told.pcm[: len(first.pcm)], first.pcm)
    assert np.array_equal(told.pcm[-len(third.pcm) :], third.pcm)


def test_speeds_multiply_within_the_limits_of_the_option(ryan: Qwen3Engine) -> None:
    plain = alone(ryan, TEXT)
    assert len(said(ryan, Prosody(speed=2), TEXT, speed=0.5).pcm) == pytest.approx(len(plain.pcm), abs=1_200)
    assert len(said(ryan, Prosody(speed=4), TEXT, speed=4.0).pcm) == pytest.approx(len(plain.pcm) / 4, abs=1_200)


def test_volume_holds_from_there_on(ryan: Qwen3Engine) -> None:
    first, second = alone(ryan, "One two."), alone(ryan, "Three four.")
    told = said(ryan, "One two.", Prosody(volume=0.5), "Three four.")
    expected = np.concatenate((first.pcm.astype(float), second.pcm / 2))
    assert np.abs(told.pcm - expected).max() <= 1


def level(pcm: NDArray[Any]) -> float:
    return float(np.sqrt(np.mean(pcm.astype(float) ** 2)))


def test_loudness_is_the_voices_before_volume(ryan: Qwen3Engine) -> None:
    """From the second request of a voice on the gain is known; without `loudness` nothing has changed."""
    plain = alone(ryan, TEXT).pcm
    target = lufs(float(np.mean((plain / 32_768) ** 2))) - 6
    before, after, half = (said(ryan, *manner, TEXT, loudness=target).pcm for manner in ([], [], [Prosody(volume=0.5)]))
    first = plain.astype(float)
    assert level(after) < level(first) / 1.5
    assert level(half) == pytest.approx(level(after) / 2, rel=0.1)
    assert len(before) == len(after) == len(plain)
    assert np.array_equal(alone(ryan, TEXT).pcm, plain)


@given(st.lists(st.integers(-32_768, 32_767), min_size=2, max_size=50), st.floats(0, 4))
def test_what_is_louder_never_clips_and_keeps_its_order(values: list[int], volume: float) -> None:
    samples = np.array(sorted(values), np.int16)
    louder = amplify(samples, volume)
    assert np.abs(louder).max() <= 32_768 * max(1, min(volume, 1))
    assert (np.diff(louder) >= 0).all()
    if volume <= 1:
        assert np.allclose(louder, samples * volume)


def test_flushes_and_pauses_between_manners_keep_their_order(ryan: Qwen3Engine) -> None:
    told = said(ryan, "One.", FLUSH, Prosody(speed=2), "Two.", Pause(500), Style(EXCITED), "Three.", FLUSH, "Four.")
    assert sum(isinstance(one, Flushed) for one in told.outputs) == 2
    pieces = [alone(ryan, "One."), alone(ryan, "Two.", speed=2.0)]
    rests = [alone(ryan, text, speed=2.0, instructions=EXCITED) for text in ("Three.", "Four.")]
    pause = np.zeros(SAMPLE_RATE // 2, np.int16)
    expected = np.concatenate((*(one.pcm for one in pieces), pause, *(one.pcm for one in rests)))
    filled = -(-len(told.pcm) // 1_920) - len(expected) // 1_920  # a flush fills its frame up with silence
    assert 0 <= filled <= 2
    start = len(pieces[0].pcm) + len(pieces[1].pcm)
    assert np.array_equal(told.pcm[:start], expected[:start])
    assert not told.pcm[start : start + len(pause)].any()


def test_overlapped_steps_and_other_requests_change_nothing() -> None:
    scripts: dict[int, list[Piece]] = {
        0: ["One two", Style(EXCITED), " three", Style(None), " four."],
        1: ["One ", Prosody(speed=2), "two", FLUSH, Prosody(volume=0.5), "three", Pause(130), Prosody(), " four."],
        2: [Prosody(volume=0.3), "One two three.", Language("de"), " Vier.", FLUSH],
        3: ["One two three four."],
    }
    with engine(tiny.ending("custom_voice"), slots=4) as made:
        separate = {slot: said(made, *pieces) for slot, pieces in scripts.items()}
        with overlapped(made):
            together = speak_all(made, {slot: Script(pieces, RYAN) for slot, pieces in scripts.items()})
    for slot, spoken in together.items():
        assert spoken.kinds == separate[slot].kinds
        assert np.array_equal(spoken.pcm, separate[slot].pcm)


# ---------------------------------------------------------------- seams


def longest_silence_ms(pcm: NDArray[np.int16]) -> float:
    loud = np.flatnonzero(np.abs(pcm.astype(int)) > AUDIBLE_PEAK)
    return float(np.diff(loud).max(initial=0)) * 1_000 / SAMPLE_RATE


@pytest.mark.parametrize("directive", [Style(EXCITED), Prosody(speed=1.5)])
def test_a_change_within_a_sentence_makes_no_gap(
    ryan: Qwen3Engine, monkeypatch: pytest.MonkeyPatch, directive: Directive
) -> None:
    """Of a model that says the end of speech after 320 ms of silence, and begins with 160 ms of it."""
    before, after = "One two three.", "Four five six."
    ends = len(alone(ryan, before).frames)
    result, number = LaunchedStep.result, 0

    def silenced(step: LaunchedStep) -> Any:
        nonlocal number
        outcome = result(step)
        if not outcome.ended[0]:
            if ends - 4 <= number < ends + 2:
                outcome.pcm[0] = 0
            number += 1
        return outcome

    monkeypatch.setattr(LaunchedStep, "result", silenced)
    told = said(ryan, before, directive, after)
    assert 0 < longest_silence_ms(told.pcm) <= GAP_MS
    number = 0
    apart = said(ryan, before, directive, Pause(40), after)  # a pause adds to what there is
    assert longest_silence_ms(apart.pcm) > 4 * 80


def test_the_next_piece_is_spoken_in_the_next_steps(ryan: Qwen3Engine) -> None:
    """A change costs a prompt, and no wait."""
    options = resolved(ryan, RYAN)
    text = [*appended(0, "One two three", directive=Style(EXCITED)), *appended(0, " four five six.", last=True)]
    outputs = ryan.step([start_of(0, options), *text], [0])
    longest = empty = 0
    while not any(type(one).__name__ == "Finished" for one in outputs):
        new = ryan.step([], [0])
        empty = 0 if new else empty + 1
        longest = max(longest, empty)
        outputs += new
    assert longest <= 4


def pcm(*parts: tuple[int, int]) -> bytes:
    """Parts of so many ms at such a level."""
    return b"".join(np.full(ms * SAMPLE_RATE // 1_000, level, "<i2").tobytes() for ms, level in parts)


def test_silence_within_a_piece_stays() -> None:
    seam = Seam()
    whole = pcm((100, 1_000), (400, 0), (100, 1_000))
    out = b"".join(seam.push(whole[i : i + 3_840], holds=True) for i in range(0, len(whole), 3_840))
    assert out + seam.finish() == whole


@given(st.integers(0, 400), st.integers(0, 400), st.integers(1, 5_000))
@example(0, 200, 1_920)
@examples(30)
def test_a_seam_keeps_little_of_the_silence_around_it(before: int, after: int, chunk: int) -> None:
    seam = Seam()
    chunk *= 2

    def push(part: bytes, *, holds: bool) -> bytes:
        return b"".join(seam.push(part[i : i + chunk], holds=holds) for i in range(0, len(part), chunk))

    out = push(pcm((50, 1_000), (before, 0)), holds=True) + seam.cross()
    out += push(pcm((after, 0), (50, -1_000), (300, 0)), holds=False)
    kept = min(before, SEAM_MS) + min(after, SEAM_MS)
    assert out + seam.finish() == pcm((50, 1_000), (kept, 0), (50, -1_000), (300, 0))


def test_silence_at_the_end_of_all_text_stays() -> None:
    outlet = RowOutlet(0)
    outlet.speak([pcm((80, 1_000)), pcm((80, 0))], Manner(), seam=True)
    outlet.end_piece(seam=True)
    outlet.end_piece(seam=False)
    outlet.end()
    frames = [one.payload for _ in range(2) for one in outlet.hand_out() if isinstance(one, Audio)]
    assert b"".join(frames) == pcm((80, 1_000), (80, 0))
