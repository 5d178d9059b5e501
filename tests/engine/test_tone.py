from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.config.settings import Settings, Tone
from agent_tts.directives import Pause
from agent_tts.engine.tone import ALIASES, ToneEngine
from agent_tts.engine_info import FRAME_BYTES, SAMPLE_RATE
from agent_tts.messages import Audio, Cancel, Finished, Flushed, OutOfText, StepCommand, StepEvent, Word, Words
from agent_tts.options import EngineOptions, SpeechOptions
from agent_tts.voices import OPENAI_VOICES, QWEN_VOICES
from tests.engine.driver import FLUSH, Script, Spoken, appended, assert_well_formed, opened, speak, speak_all, start_of
from tests.examples import examples
from tests.support import dominant_hz, typed

TEXT = "One two three, four five six seven. And a longer sentence with 日本語 in it!"


@pytest.fixture
def engine() -> Iterator[ToneEngine]:
    with opened(ToneEngine(Settings(), 4)) as engine:
        yield engine


@pytest.fixture
def faulty() -> Iterator[ToneEngine]:
    with opened(ToneEngine(Settings(tone=Tone(scripted_faults=True)), 4)) as engine:
        yield engine


def step(engine: ToneEngine, commands: Sequence[StepCommand], run: Collection[int]) -> list[StepEvent]:
    """A step without the places of its units."""
    return [event for event in engine.step(commands, run) if not isinstance(event, Words)]


def kinds(spoken: Spoken) -> list[str]:
    return [kind for kind in spoken.kinds if kind != "Words"]


def fault(kind: str) -> EngineOptions:
    return EngineOptions(instructions=f"fault:{kind}")


# ---------------------------------------------------------------- sound


@pytest.mark.parametrize(
    ("voice", "pitch", "hz"),
    [(None, 1.0, 440), ("tone-220", 1.0, 220), ("tone-880", 0.5, 440), ("ash", 1.0, 440)],
)
def test_voice_and_pitch_decide_the_frequency(engine: ToneEngine, voice: str | None, pitch: float, hz: int) -> None:
    spoken = speak(engine, TEXT, options=SpeechOptions(voice=voice, pitch=pitch))
    assert dominant_hz(spoken.pcm) == pytest.approx(hz, rel=0.01)


@pytest.mark.parametrize("speed", [0.25, 1.0, 1.7, 4.0])
def test_every_character_but_a_space_has_the_same_duration(engine: ToneEngine, speed: float) -> None:
    spoken = speak(engine, "abc defgh  ij", options=SpeechOptions(speed=speed))
    assert spoken.seconds == pytest.approx(10 * 0.060 / speed, abs=0.001)


def test_each_unit_tells_where_it_sounds(engine: ToneEngine) -> None:
    spoken = speak(engine, "Hm. One ", Pause(500), "今天，", options=SpeechOptions())
    assert spoken.words == [Word("", 0, 180, 0, 4), Word("", 180, 360, 4, 8), Word("", 860, 1_040, 8, 11)]


def test_words_fade_in_and_out_without_clicks(engine: ToneEngine) -> None:
    pcm = speak(engine, TEXT, FLUSH, TEXT).pcm.astype(int)
    steepest = 2 * np.pi * 440 / SAMPLE_RATE * 0.5 * 32_767 + 0.5 * 32_767 / 48
    assert np.abs(np.diff(pcm, prepend=0, append=0)).max() <= steepest
    assert 0.2 * 32_767 < np.abs(pcm).max() <= 0.5 * 32_767


def test_the_sine_is_continuous_through_all_words(engine: ToneEngine) -> None:
    """Its phase follows the sample number, so wrongly joined audio is out of phase."""
    pcm = speak(engine, TEXT).pcm.astype(float)
    sine = np.sin(2 * np.pi * 440 * np.arange(len(pcm)) / SAMPLE_RATE)
    assert (pcm * sine >= -1).all()


def test_seed_words_and_their_order_decide_the_loudness(engine: ToneEngine) -> None:
    def of(text: str, seed: int | None) -> bytes:
        return speak(engine, text, options=SpeechOptions(seed=seed)).pcm.tobytes()

    assert of("red fox", None) == of("red fox", 0)
    assert len({of("red fox", 0), of("red fox", 1), of("fox red", 0), of("red cow", 0), of("red red", 0)}) == 5


@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=12))
@examples(40)
def test_audio_does_not_depend_on_how_the_text_is_split(cuts: list[int]) -> None:
    engine = ToneEngine(Settings(), 1)
    edges = [0, *sorted(cuts), len(TEXT)]
    pieces = [TEXT[start:end] for start, end in pairwise(edges)]
    assert np.array_equal(speak(engine, *pieces).pcm, speak(engine, TEXT).pcm)


def test_audio_does_not_depend_on_the_other_slots(engine: ToneEngine) -> None:
    alone = speak(engine, TEXT)
    scripts = {0: Script([TEXT]), 1: Script(list("something else")), 3: Script([TEXT], SpeechOptions(voice="nova"))}
    together = speak_all(engine, scripts)
    assert together[0].frames == alone.frames
    assert together[3].frames != alone.frames


# ---------------------------------------------------------------- contract of engines


def test_all_frames_but_the_last_are_whole(engine: ToneEngine) -> None:
    spoken = speak(engine, TEXT)
    assert_well_formed(spoken)
    assert kinds(spoken) == ["Audio"] * len(spoken.frames) + ["end"]


def test_a_flush_outputs_the_rest_of_a_frame_before_its_answer(engine: ToneEngine) -> None:
    spoken = speak(engine, "ab", FLUSH, "c")
    assert kinds(spoken) == ["Audio", "Audio", "Flushed", "Audio", "end"]
    assert [len(frame) for frame in spoken.frames] == [FRAME_BYTES, FRAME_BYTES, 2 * 60 * 24]


def test_each_flush_is_answered_even_without_text(engine: ToneEngine) -> None:
    assert speak(engine, FLUSH, FLUSH, "").kinds == ["Flushed", "Flushed", "end"]


def test_a_dry_slot_keeps_a_partial_frame_until_more_text_arrives(engine: ToneEngine) -> None:
    options = EngineOptions(clean=False)
    assert step(engine, [start_of(0, options), *appended(0, "a ")], {0}) == [OutOfText(0)]
    frame, done = step(engine, [*appended(0, "", last=True)], {0})
    assert len(typed(Audio, frame).payload) == 2 * 60 * 24
    assert done == Finished(0, "end")


@pytest.mark.parametrize("text", ["", " ", "\n\n", "\u200b", "**", "```\ncode\n```"])
def test_a_text_without_words_ends_without_a_frame(engine: ToneEngine, text: str) -> None:
    assert speak(engine, text).kinds == ["end"]


def test_a_slot_not_in_run_gives_no_output(engine: ToneEngine) -> None:
    assert step(engine, [start_of(0, EngineOptions()), *appended(0, TEXT, last=True)], ()) == []


def test_a_released_slot_is_silent_and_its_next_request_starts_clean(engine: ToneEngine) -> None:
    fresh = speak(engine, "next request", slot=2).frames
    step(engine, [start_of(2, EngineOptions()), *appended(2, TEXT, flush=True)], {2})
    assert step(engine, [Cancel(2), *appended(2, "too late")], {2}) == []
    assert speak(engine, "next request", slot=2).frames == fresh


def test_every_alias_of_other_clients_is_a_voice() -> None:
    assert {*OPENAI_VOICES, *QWEN_VOICES} == ALIASES.keys()
    assert set(ALIASES.values()) <= {voice.name for voice in ToneEngine(Settings(), 1).info.voices}


# ---------------------------------------------------------------- scripted faults


@pytest.mark.parametrize("kind", ["raise@3", "nan@3"])
def test_a_fault_of_a_slot_fails_that_slot_alone(faulty: ToneEngine, kind: str) -> None:
    together = speak_all(faulty, {0: Script([TEXT], fault(kind)), 1: Script([TEXT])})
    assert kinds(together[0]) == ["Audio"] * 3 + ["error"]
    assert together[0].outputs[-1] == Finished(0, "error", code="internal", message="the engine failed on this context")
    assert together[0].frames == together[1].frames[:3]
    assert together[1].frames == speak(faulty, TEXT).frames


@pytest.mark.parametrize("kind", ["oom", "nonsense", "raise@x"])
def test_a_fault_at_the_start_fails_the_request(faulty: ToneEngine, kind: str) -> None:
    failed = Spoken(step(faulty, [start_of(1, fault(kind)), *appended(1, TEXT)], {1}))
    assert (len(failed.outputs), failed.end.id, failed.end.code) == (1, 1, "internal")


@pytest.mark.parametrize(("kind", "error"), [("crash@2", RuntimeError), ("oom_step@2", MemoryError)])
def test_a_fault_of_the_engine_is_raised_by_the_step(faulty: ToneEngine, kind: str, error: type[Exception]) -> None:
    step(faulty, [start_of(0, fault(kind)), *appended(0, TEXT, last=True)], ())
    assert [type(output) for _ in range(2) for output in step(faulty, [], {0})] == [Audio, Audio]
    with pytest.raises(error):
        step(faulty, [], {0})


@pytest.mark.parametrize("at", [0, 2])
def test_done_at_ends_the_request_before_that_frame(faulty: ToneEngine, at: int) -> None:
    assert kinds(speak(faulty, TEXT, options=fault(f"done_at@{at}"))) == ["Audio"] * at + ["end"]


def test_never_end_answers_flushes_and_continues_without_text(faulty: ToneEngine) -> None:
    step(faulty, [start_of(0, fault("never_end")), *appended(0, "a", flush=True), *appended(0, "b", last=True)], ())
    outputs = [output for _ in range(300) for output in step(faulty, [], {0})]
    assert sum(isinstance(output, Audio) for output in outputs) == 300
    assert [output for output in outputs if not isinstance(output, Audio)] == [Flushed(0, None)]


def test_slow_lengthens_its_steps(faulty: ToneEngine) -> None:
    step(faulty, [start_of(0, fault("slow@60")), *appended(0, TEXT)], ())
    start = time.monotonic()
    (frame,) = step(faulty, [], {0})
    assert isinstance(frame, Audio)
    assert time.monotonic() - start >= 0.060


def test_instructions_are_ignored_unless_faults_are_enabled(engine: ToneEngine) -> None:
    assert speak(engine, TEXT, options=fault("raise@0")).frames == speak(engine, TEXT).frames


def test_a_pause_is_exact_silence(engine: ToneEngine) -> None:
    paused = speak(engine, "abc ", Pause(333), "def").pcm
    assert len(paused) == len(speak(engine, "abc def").pcm) + 333 * 24
    first = 3 * 60 * 24
    assert not paused[first : first + 333 * 24].any()
    assert paused[first - 100 : first].any()
    assert paused[first + 333 * 24 :][:100].any()


def test_numbers_become_words_with_normalize(engine: ToneEngine) -> None:
    spoken = speak(engine, "I have $", "5", ".50.", options=SpeechOptions(normalize=True))
    assert np.array_equal(spoken.pcm, speak(engine, "I have five dollars and fifty cents.").pcm)
    german = speak(engine, "3,5 km", options=SpeechOptions(normalize=True, language="de"))
    assert np.array_equal(german.pcm, speak(engine, "drei Komma fünf Kilometer").pcm)


def test_a_step_reads_texts_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 texts of digits at once would take 0.1 s. Those that are left are the first of the next step."""
    engine = ToneEngine(Settings(), 64)
    now = iter(range(1_000_000))
    monkeypatch.setattr(time, "monotonic", lambda: next(now) * 0.001)
    starts = [start_of(slot, EngineOptions()) for slot in range(64)]
    texts = [text for slot in range(64) for text in appended(slot, "1 2 3 4 5 6 7 8 9 " * 20)]
    spoke = [output.id for output in step(engine, [*starts, *texts], range(64))]
    assert 0 < len(spoke) < 8
    counts = Counter(output.id for _ in range(100) for output in step(engine, [], range(64)))
    assert len(counts) == 64
    engine.close()
