"""Every piece is heard to the last sample of the codec; and what is known of the pace of a voice, when one is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from agent_tts.engine.gain import Levels
from agent_tts.engine.qwen3.delivery import TimeStretch
from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.engine.qwen3.graphs import LaunchedStep
from agent_tts.engine.qwen3.runaway import LOOP_HELD, UNKNOWN_S, FramePaces, FrameVerdict, nominal_frames
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.messages import Audio, Finished, OutOfText, StepCommand, StepEvent
from agent_tts.model.config import ModelType
from agent_tts.model.prompt import Prompt
from agent_tts.options import CommonOptions
from tests.engine.driver import FLUSH, Piece, appended, speak, start_of
from tests.engine.qwen3.test_engine import ANYONE, RYAN, bob, engine, overlapped, pcm_of, recorded, with_clone
from tests.model import oracle, tiny

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("quick_parts")]

TEXT = "One of many words, and then some more."
PIECES: list[Piece] = ["One two.", FLUSH, " Three four five six.", FLUSH, " Seven."]


@pytest.fixture(scope="module")
def ryan() -> Iterator[Qwen3Engine]:
    with engine(tiny.ending("custom_voice"), slots=1) as made:
        yield made


@contextmanager
def codes_of(made: Qwen3Engine) -> Iterator[list[list[NDArray[Any]]]]:
    """For each piece of the engine's only row: the codes of its frames, and of the one that ended it."""
    detector, pieces = made._runaway, list[list[NDArray[Any]]]()
    begin, see = detector.begin, detector.see

    def began(row: int) -> None:
        pieces.append([])
        begin(row)

    def seen(rows: Sequence[int], codes: NDArray[Any], pcm: NDArray[np.int16]) -> NDArray[np.int8]:
        if len(rows):
            pieces[-1].append(codes[0].copy())
        return see(rows, codes, pcm)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detector, "begin", began)
        patch.setattr(detector, "see", seen)
        yield pieces


def heard(made: Qwen3Engine, **options: Any) -> list[NDArray[np.float64]]:
    """What is heard of each piece, in the range of int16."""
    spoken = speak(made, *PIECES, options=replace(RYAN, **options))
    assert spoken.end
    parts = groupby(spoken.outputs, lambda one: isinstance(one, Audio))
    found = [pcm_of([*part]) for is_audio, part in parts if is_audio]
    assert len(found) == 3
    return [np.frombuffer(pcm, "<i2").astype(float) for pcm in found]


@pytest.fixture(scope="module")
def plain(ryan: Qwen3Engine) -> list[NDArray[np.float64]]:
    return heard(ryan)


class TestEveryPieceIsHeardToItsLastSample:
    @pytest.fixture(params=[pytest.param(False, id=""), pytest.param(True, id="overlapped", marks=pytest.mark.slow)])
    def made(self, ryan: Qwen3Engine, request: pytest.FixtureRequest) -> Iterator[Qwen3Engine]:
        with overlapped(ryan, request.param):
            yield ryan

    @pytest.mark.usefixtures("whole_model")
    def test_as_it_is(self, made: Qwen3Engine) -> None:
        """It is what the reference's codec makes of all of its codes at once."""
        with codes_of(made) as pieces:
            pieces_heard = heard(made)
        codec = oracle.load(tiny.ending("custom_voice")).model.speech_tokenizer
        for found, codes in zip(pieces_heard, pieces, strict=True):
            (wav,), _ = codec.decode([{"audio_codes": torch.from_numpy(np.stack(codes[:-1]).astype(np.int64))}])
            assert len(found) == len(wav) == 1_920 * (len(codes) - 1)
            assert np.abs(wav[-240:]).max() > 0.01
            assert np.abs(found - wav.astype(float) * 32_767).max() < 4

    @pytest.mark.parametrize("speed", [0.8, 1.5])
    def test_at_another_speed(self, plain: list[NDArray[np.float64]], made: Qwen3Engine, speed: float) -> None:
        """A flush fills the last frame up."""
        for found, expected in zip(heard(made, speed=speed), plain, strict=True):
            whole, stretch = expected.astype("<i2").tobytes(), TimeStretch(speed)
            once = np.frombuffer(stretch.push(whole) + stretch.finish(), "<i2").astype(float)
            assert len(once) >= round(len(expected) / speed)
            assert len(once) <= len(found) < len(once) + 1_920
            assert np.abs(found[: len(once)] - once).max() < 40
            assert not found[len(once) :].any()

    def test_with_its_leading_silence_left_out(
        self, plain: list[NDArray[np.float64]], made: Qwen3Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each piece begins with 120 ms of silence here."""
        result = LaunchedStep.result

        def silenced(step: LaunchedStep) -> Any:
            outcome = result(step)
            outcome.pcm[0, : max(0, 2_880 - 1_920 * int(made._runaway.frames[0]))] = 0
            return outcome

        monkeypatch.setattr(LaunchedStep, "result", silenced)
        for found, expected in zip(heard(made), plain, strict=True):
            assert len(found) == len(expected) - 24 * (120 - 20)
            assert not found[: 24 * 20].any()
            assert np.array_equal(found[24 * 20 :], expected[2_880:])

    def test_at_a_loudness(self, plain: list[NDArray[np.float64]], made: Qwen3Engine) -> None:
        made._levels = Levels()
        options = {"loudness": -30.0}
        leveler = Levels().leveler(replace(RYAN, **options), SAMPLE_RATE)  # pyrefly: ignore[bad-argument-type]
        assert leveler
        for found, expected in zip(heard(made, **options), plain, strict=True):
            frames = [leveler.apply(frame) for frame in expected.astype(np.int16).reshape(-1, 1_920)]
            assert len(found) == len(expected)
            assert np.abs(found - np.concatenate(frames)).max() < 8
            assert np.abs(found[-240:]).max() < 0.99 * np.abs(expected[-240:]).max()


# ---------------------------------------------------------------- the pace of a voice


@contextmanager
def expectations(made: Qwen3Engine) -> Iterator[list[float]]:
    """How many frames each piece of the engine is expected to take, of voices that have not spoken before."""
    detector, told = made._runaway, list[float]()
    expect = detector.expect

    def expected(row: int, frames: float) -> None:
        told.append(frames)
        expect(row, frames)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detector, "expect", expected)
        patch.setattr(made, "_paces", FramePaces())
        yield told


def test_the_pace_of_a_voice_is_learned_from_what_it_has_said(ryan: Qwen3Engine) -> None:
    """This one is fast."""
    with expectations(ryan) as told:
        first = len(speak(ryan, TEXT, options=RYAN).frames)
        speak(ryan, TEXT, options=RYAN)
        speak(ryan, TEXT, options=replace(RYAN, voice="serena"))
    nominal, unknown = nominal_frames(TEXT, "en"), UNKNOWN_S / 0.08
    heard = max(first, 0.7 * nominal)
    assert told == pytest.approx([nominal, nominal * (unknown + heard) / (unknown + nominal), nominal])
    assert heard < nominal


def test_nothing_is_learned_from_a_piece_that_ended_early(ryan: Qwen3Engine) -> None:
    whole = replace(RYAN, text_mode="whole")
    with expectations(ryan) as told:
        for _ in range(2):
            assert speak(ryan, "Hi. " * 5, options=whole).outputs[-1] == Finished(0, "end", ("early",))
    assert told[0] == told[1]


def test_what_is_early_depends_on_the_pace(ryan: Qwen3Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert speak(ryan, TEXT, options=RYAN).outputs[-1] == Finished(0, "end")
    monkeypatch.setattr(FramePaces, "of", lambda *_: 3.0)
    assert speak(ryan, TEXT, options=RYAN).outputs[-1] == Finished(0, "end", ("early",))


def test_whether_a_cut_left_text_out_depends_on_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(tiny.looping("custom_voice"), slots=1) as looping:
        assert speak(looping, TEXT, options=RYAN).outputs[-1] == Finished(0, "length", ("loop",))
        monkeypatch.setattr(FramePaces, "of", lambda *_: 0.1)
        assert speak(looping, TEXT, options=RYAN).outputs[-1] == Finished(0, "end", ("loop",))


# ---------------------------------------------------------------- a cut before the text is complete


def test_a_piece_that_is_cut_within_its_text_is_not_begun_again() -> None:
    """The model has all words that came: it waits for more, which are spoken, and the end says what was left out."""
    outputs: list[StepEvent] = []

    def step(*texts: StepCommand) -> None:
        outputs.extend(looping.step(texts, [0]))

    with engine(tiny.looping("custom_voice"), slots=1, max_model_len=1_024) as looping, expectations(looping) as told:
        looping.step([start_of(0, RYAN)], [])
        step(*appended(0, "a " * 60))
        for _ in range(100):
            step()
        assert isinstance(outputs[-1], OutOfText)
        assert sum(isinstance(one, Audio) for one in outputs) == LOOP_HELD + 1
        step(*appended(0, "Fine.", last=True))
        while not isinstance(outputs[-1], Finished):
            step()
    assert told == pytest.approx([nominal_frames("Fine.", "en")])
    assert outputs[-1] == Finished(0, "length", ("loop",))
    assert sum(isinstance(one, Audio) for one in outputs) == 2 * (LOOP_HELD + 1)


# ---------------------------------------------------------------- what is carried to the next piece

DESIGNED = replace(ANYONE, voice="design", instructions="A calm old man.")
VECTOR = replace(ANYONE, speaker_embedding=(0.1,) * tiny.HIDDEN)


def test_a_carried_reference_leaves_room_for_speech() -> None:
    """In a small cache it stops growing before it has 3 s."""
    script: list[Piece] = [piece for number in range(6) for piece in (f"Number {number}.", FLUSH)]
    with engine(tiny.ending("base"), slots=1, max_model_len=64) as made, recorded(made) as prompts:
        spoken = speak(made, *script, options=ANYONE)
    assert spoken.outputs[-1] == Finished(0, "end")
    assert 10 < max(len(carried(prompt)) for prompt in prompts) <= 32


def test_pieces_are_shorter_where_a_reference_is_carried() -> None:
    """It takes half of the cache."""
    text = "One two three four five six seven. " * 2
    with engine(tiny.ending("base"), slots=1, max_model_len=128) as made:
        with recorded(made) as drawn:
            assert speak(made, text, options=ANYONE).outputs[-1] == Finished(0, "end")
        with recorded(made) as given:
            assert speak(made, text, options=VECTOR).outputs[-1] == Finished(0, "end")
    assert len(drawn) > len(given) > 1


def test_speech_that_was_cut_is_not_carried() -> None:
    """It would be a bad example, and belong to none of the reference's text."""
    with engine(tiny.ending("base"), slots=1) as made, recorded(made) as prompts, codes_of(made) as pieces:
        see = made._runaway.see

        def cut_the_second(*given: Any) -> NDArray[np.int8]:
            seen = see(*given)
            return np.full_like(seen, FrameVerdict.LOOP) if len(pieces) == 2 and len(pieces[1]) == 2 else seen

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(made._runaway, "see", cut_the_second)
            spoken = speak(made, "One.", FLUSH, " Two.", FLUSH, " Three.", FLUSH, " Four.", options=ANYONE)
    assert spoken.end.cut == ("loop",)
    first, third = (tuple(tuple(codes.tolist()) for codes in pieces[number][:-1]) for number in (0, 2))
    assert [carried(prompt) for prompt in prompts] == [(), first, first, first + third]


@pytest.mark.parametrize(
    ("kind", "options"),
    [("custom_voice", RYAN), ("base", VECTOR), ("base", bob()), ("base", ANYONE), ("voice_design", DESIGNED)],
    ids=["named", "vector", "reference", "sampled", "designed"],
)
def test_a_voice_has_the_same_place_in_the_prompts_of_all_pieces(
    tmp_path: Path, kind: ModelType, options: CommonOptions
) -> None:
    """What is given of it; what was drawn is behind that from the second piece on, growing at its end."""
    texts = ["One two.", "Three.", "Four five."]
    script: list[Piece] = [piece for text in texts for piece in (text, FLUSH)]
    folder = tiny.ending(kind)
    with engine(folder, slots=1, voices=tmp_path) as made, recorded(made) as prompts, codes_of(made) as pieces:
        with_clone(tmp_path, "The quick brown fox.", 5)
        assert speak(made, *script, options=options).outputs[-1] == Finished(0, "end")
        encode = made._models[0].tokenizer.encode
    first, *others = prompts
    assert len(others) == 2
    given = first.shared - 1  # behind it is what begins the speech
    for number, prompt in enumerate(others, 1):
        assert prompt.prefix[:given] == first.prefix[:given]
        if options not in (ANYONE, DESIGNED):
            assert (prompt.shared, carried(prompt)) == (first.shared, carried(first))
            continue
        start = next(place for place, one in enumerate(prompt.prefix) if isinstance(one.codec, tuple)) - 1
        assert start == len(first.prefix)
        said = [tuple(codes.tolist()) for piece in pieces[:number] for codes in piece[:-1]]
        assert list(carried(prompt)) == said
        words = encode(" ".join(texts[:number]))
        assert [one.text for one in prompt.prefix[start:]][: len(words)] == words[: len(prompt.prefix) - start]


def carried(prompt: Prompt) -> tuple[tuple[int, ...], ...]:
    """The codes in a prompt, one after the other."""
    sides = [*(one.codec for one in prompt.prefix), prompt.start]
    codes = tuple(side for side in sides if isinstance(side, tuple))
    assert codes == (tuple(sides[-len(codes) :]) if codes else ())
    return codes
