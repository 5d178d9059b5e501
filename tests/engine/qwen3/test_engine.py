"""Qwen3Engine gives upstream's audio, whatever other requests run at the same time."""

from __future__ import annotations

import gc
import itertools
import json
import math
import shutil
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args
from unittest import mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from agent_tts import messages
from agent_tts.config.settings import Checkpoint, Qwen3, Settings, Voices
from agent_tts.directives import Pause
from agent_tts.engine.loop import EngineLoop
from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.engine.qwen3.graphs import ChunkInputs, LaunchedStep
from agent_tts.engine.qwen3.model import Qwen3Model
from agent_tts.engine.qwen3.runaway import LOOP_FRAMES, LOOP_HELD, SILENT_HELD, TEXT_FRAMES, TEXT_HELD, nominal_frames
from agent_tts.engine.qwen3.runner import PromptChunk
from agent_tts.engine.requests import Policy
from agent_tts.engine.scheduler import Scheduler
from agent_tts.engine.slots import READ_CHARS, READ_S
from agent_tts.errors import SettingsError, UnknownVoice
from agent_tts.messages import Audio, Cancel, Finished, Flushed, OutOfText, StepCommand, StepEvent
from agent_tts.model.config import ModelType, SamplingParams
from agent_tts.model.device import Device
from agent_tts.model.layers import BLOCK_SIZE
from agent_tts.model.prompt import Prompt, PromptVoice, Reference, build_prompt
from agent_tts.options import (
    CommonOptions,
    DesignedVoice,
    EmbeddedVoice,
    EngineOptions,
    NamedVoice,
    Sampling,
    SpeechOptions,
    TextMode,
)
from agent_tts.speech.words.peaks import peaks
from agent_tts.speech.words.timeline import WordTimeline
from agent_tts.text.words import words
from agent_tts.voices.library import Consent, StoredVoice, VoiceLibrary
from tests.engine.driver import (
    FLUSH,
    Piece,
    Script,
    Spoken,
    appended,
    assert_well_formed,
    opened,
    resolved,
    speak,
    speak_all,
    start_of,
)
from tests.model import clips, oracle, tiny

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("quick_parts")]

TEXT = "Hi world, you? 你好 👋"
FRAMES = 8
GREEDY = Sampling(temperature=0)
THEIR_GREEDY: dict[str, Any] = {"do_sample": False, "subtalker_dosample": False}
ANYONE = SpeechOptions(seed=0, clean=False, sampling=GREEDY)
RYAN = replace(ANYONE, voice="ryan", language="en")


def engine(
    *folders: Path, slots: int = 2, voices: Path | None = None, late: tuple[Path, ...] = (), **settings: Any
) -> AbstractContextManager[Qwen3Engine]:
    """An engine on the CPU unless the settings say otherwise, with these checkpoints; `late` on first use."""
    models = [Checkpoint(source=str(folder)) for folder in folders]
    models += [Checkpoint(source=str(folder), load="first_use") for folder in late]
    qwen3 = Qwen3(models=tuple(models), **dict[str, Any](device="cpu", max_model_len=256) | settings)
    library = Voices(folder=str(voices or Path(*folders[:1]) / "missing"))
    return opened(Qwen3Engine(Settings(slots=slots, qwen3=qwen3, voices=library), slots))


@pytest.fixture(scope="module")
def ryan() -> Iterator[Qwen3Engine]:
    with engine(tiny.ending("custom_voice")) as made:
        yield made


@pytest.fixture(scope="module")
def alone(ryan: Qwen3Engine) -> Spoken:
    """The output of `TEXT` with `RYAN` when no other request runs."""
    return speak(ryan, TEXT, options=RYAN)


def test_text_without_spaces_is_heard_like_text_with_spaces(ryan: Qwen3Engine) -> None:
    """The same words, with the same audio: what is estimated of them is as near. Whole, and a character a frame."""
    text = "今天天气很好，我们去公园散步。"
    frames = speak(ryan, text, options=RYAN).frames
    assert len(frames) >= 5
    heard: list[list[int]] = []
    characters = [word for _, word in words(text)]
    for given, is_live in itertools.product((characters, [f"{word} " for word in characters]), (False, True)):
        timeline, counts = WordTimeline(aligned=False, language="zh"), list[int]()
        for number, frame in enumerate(frames * 8):
            for token in given[number : number + 1] if is_live else given if not number else []:
                timeline.append(token)
            timeline.hear(len(frame) // 2, peaks(frame))
            counts.append(len(list(words(timeline.split((number + 1) * 80)[0]))))
        heard.append(counts)
    whole, live, spaced, spaced_live = heard
    assert whole[-1] > 10
    assert max(abs(a - b) for a, b in zip(whole, spaced, strict=True)) <= 1
    assert max(abs(a - b) for a, b in zip(live, spaced_live, strict=True)) <= 1


@pytest.fixture
def voices(tmp_path: Path) -> Path:
    """The folder of an engine's library."""
    return tmp_path / "voices"


def upstream(model_type: ModelType) -> Any:
    """The reference implementation's model of a type."""
    return oracle.load(tiny.checkpoint(model_type))


def theirs(
    model: Any, method: str, *, text: str = TEXT, mode: TextMode = "live", **request: Any
) -> NDArray[np.float32]:
    """Audio of a method of upstream; greedy unless the request says how to sample."""
    wavs, rate = getattr(model, method)(
        text=text, non_streaming_mode=mode == "whole", max_new_tokens=FRAMES + 1, **THEIR_GREEDY | request
    )
    assert rate == 24_000
    wav: NDArray[np.float32] = wavs[0]
    assert len(wav) == FRAMES * 1_920
    assert np.abs(wav).max() > 0.01
    return wav


def ours(made: Qwen3Engine, options: CommonOptions, text: str = TEXT, frames: int = FRAMES) -> NDArray[np.float32]:
    """The first frames of a request."""
    start: list[StepCommand] = [start_of(0, options), *appended(0, text), *appended(0, "", last=True)]
    return frames_of(made, made.step(start, [0]), frames)


def floats(pcm: bytes | NDArray[np.int16]) -> NDArray[np.float32]:
    """Samples of the range of int16, in that of upstream's."""
    return np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32_767)


def frames_of(made: Qwen3Engine, outputs: list[StepEvent], frames: int = FRAMES) -> NDArray[np.float32]:
    """The first frames of a request, continuing `outputs`."""
    while len(outputs) < frames:
        outputs += made.step([], [0])
    made.step([Cancel(0)], [])
    return floats(pcm_of(outputs))


def pcm_of(outputs: list[StepEvent]) -> bytes:
    return b"".join(one.payload for one in outputs if isinstance(one, Audio))


def assert_same(ours: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert len(ours) == len(expected)
    assert np.abs(ours - expected).max() < 1e-4  # a step of int16 is 3e-5


@pytest.mark.usefixtures("whole_model")
class TestEqualsUpstream:
    """tests/model/test_frame.py has the codes of every kind of prompt in both modes."""

    @pytest.mark.parametrize(
        ("instructions", "mode"),
        [(None, "live"), pytest.param("Speak like the world is yours.", "whole", marks=pytest.mark.slow)],
    )
    def test_with_a_named_speaker(self, instructions: str | None, mode: TextMode) -> None:
        asked = {"speaker": "ryan", "language": "English", "instruct": instructions or ""}
        expected = theirs(upstream("custom_voice"), "generate_custom_voice", mode=mode, **asked)
        options = replace(RYAN, instructions=instructions, text_mode=mode)
        with engine(tiny.checkpoint("custom_voice"), slots=1) as named:
            assert_same(ours(named, options), expected)

    @pytest.mark.slow
    def test_with_a_described_voice(self) -> None:
        description = "A calm old man."
        expected = theirs(upstream("voice_design"), "generate_voice_design", instruct=description, language="Auto")
        with engine(tiny.checkpoint("voice_design"), slots=1, max_model_len=512) as design:  # with less, two pieces
            options = replace(ANYONE, voice="design", instructions=description, text_mode="live")
            assert_same(ours(design, options), expected)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("transcript", "mode"), [(None, "whole"), ("The quick brown fox.", "live")], ids=["vector", "reference"]
    )
    def test_with_a_cloned_voice(self, voices: Path, transcript: str | None, mode: TextMode) -> None:
        model = upstream("base")
        clip = clips.clip(24_000).numpy()
        (item,) = model.create_voice_clone_prompt((clip, 24_000), transcript, x_vector_only_mode=transcript is None)
        expected = theirs(model, "generate_voice_clone", mode=mode, voice_clone_prompt=[item], language="German")
        vector = item.ref_spk_embedding.float().numpy()
        voice = StoredVoice(name="bob", kind="cloned", transcript=transcript, consent=Consent("Bob agrees."))
        arrays = {f"vector_{len(vector)}": vector}
        if transcript is not None:
            arrays["codes"] = item.ref_code.numpy().astype(np.int16)
        library = VoiceLibrary(voices, 10)
        library.add(voice, arrays)
        with engine(tiny.checkpoint("base"), slots=1, voices=voices) as base:
            plain = replace(ANYONE, language="de", text_mode=mode)
            options = resolved(base, replace(plain, voice="clone:bob"))
            first = ours(base, options)
            assert_same(first, expected)
            assert np.array_equal(ours(base, options), first)  # with the cached prompt
            given = replace(plain, speaker_embedding=tuple(vector.tolist()))
            assert np.array_equal(ours(base, given), first) == (transcript is None)
            library.delete("bob")
            with pytest.raises(UnknownVoice):
                resolved(base, SpeechOptions("clone:bob"))


@pytest.mark.slow
@pytest.mark.usefixtures("whole_model")
@pytest.mark.parametrize("mode", ["live", "whole"])
def test_every_piece_of_a_long_text_equals_upstream(mode: TextMode) -> None:
    """Where `qwen3.piece_s` ends a piece, a sentence has the audio of upstream's call for it.

    This checkpoint draws the end of speech within the text, too, which upstream takes; a trained one does so behind it.
    """
    sentences = ["Is that so?", "好的。", "So"]
    model = oracle.load(tiny.ending("custom_voice"))
    request = {"speaker": "ryan", "language": "English", "max_new_tokens": 200, "non_streaming_mode": mode == "whole"}
    generate = model.model.talker.generate

    def to_the_end_of_the_text(*given: Any, **named: Any) -> Any:
        return generate(*given, **named | {"min_new_tokens": max(2, named["trailing_text_hidden"].shape[1])})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.model.talker, "generate", to_the_end_of_the_text)
        expected = [model.generate_custom_voice(text=text, **request, **THEIR_GREEDY)[0][0] for text in sentences]
    options = replace(RYAN, text_mode=mode)
    with engine(tiny.ending("custom_voice"), slots=1, piece_s=1) as made:
        found = speak(made, " ".join(sentences), options=options).pcm
        assert np.array_equal(speak(made, *" ".join(sentences), options=options).pcm, found)
    assert_same(floats(found), np.concatenate(expected))


@pytest.mark.parametrize("mode", ["live", "whole"])
def test_a_minute_of_speech_is_one_piece_unless_the_setting_says_less(ryan: Qwen3Engine, mode: TextMode) -> None:
    options, text = replace(RYAN, text_mode=mode), "Hi. So I am here. Fine."
    with recorded(ryan) as whole:
        speak(ryan, text, options=options)
    assert len(whole) == 1
    with engine(tiny.ending("custom_voice"), slots=1, piece_s=2) as made, recorded(made) as cut:
        speak(made, text, options=options)
    assert len(cut) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("whole_model")
@pytest.mark.parametrize(
    "generation",
    [
        {"do_sample": False, "subtalker_top_k": 1, "repetition_penalty": 2.5},
        {"top_k": 1, "temperature": 0.1, "subtalker_dosample": False},
    ],
)
def test_the_sampling_of_a_checkpoint_is_its_default(tmp_path: Path, generation: dict[str, Any]) -> None:
    """As in the reference: greedy talkers and predictors, and draws from one code."""
    folder = shutil.copytree(tiny.checkpoint("custom_voice"), tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps(generation))
    model = upstream("custom_voice")
    by_file: dict[str, Any] = {"do_sample": None, "subtalker_dosample": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "generate_defaults", generation)
        expected = theirs(model, "generate_custom_voice", speaker="ryan", language="English", **by_file)
    options = SpeechOptions("ryan", "en", clean=False, text_mode="live")
    with engine(folder, slots=1) as named:
        assert_same(ours(named, options), expected)
        asked = replace(options, sampling=Sampling(temperature=0.9, top_k=50), seed=3)
        assert np.abs(ours(named, asked) - expected).max() > 0.01


@pytest.mark.usefixtures("whole_model")
def test_a_fine_tune_of_the_official_recipe_speaks_by_its_name(tmp_path: Path) -> None:
    """Saved as `sft_12hz.py` saves it: without the speaker encoder and metadata, the speaker in row 3000.

    The reference does not find a speaker whose name has a capital letter.
    """
    folder = shutil.copytree(tiny.checkpoint("base"), tmp_path / "checkpoint-epoch-0")
    trained = load_file(folder / "model.safetensors")
    tensors = {name: tensor for name, tensor in trained.items() if not name.startswith("speaker_encoder")}
    table = "talker.model.codec_embedding.weight"
    tensors[table] = tensors[table].index_copy(0, torch.tensor([3000]), tiny.speaker_vector()[None].bfloat16())
    save_file(tensors, folder / "model.safetensors")
    entries = json.loads((folder / "config.json").read_text())

    def name_it(name: str) -> None:
        entries["talker_config"] |= {"spk_id": {name: 3000}, "spk_is_dialect": {name: False}}
        (folder / "config.json").write_text(json.dumps(entries | {"tts_model_type": "custom_voice"}, indent=2))

    name_it("nina")
    expected = theirs(oracle.load(folder), "generate_custom_voice", speaker="nina", language="English")
    name_it("Nina")
    with engine(folder, slots=1) as tuned:
        assert [voice.name for voice in tuned.info.voices] == [tuned.info.default_voice] == ["nina"]
        options = replace(RYAN, voice="Nina", text_mode="live")
        assert_same(ours(tuned, resolved(tuned, options)), expected)


def test_any_split_of_a_text_gives_the_same_audio(ryan: Qwen3Engine, alone: Spoken) -> None:
    assert_well_formed(alone)
    whole = replace(RYAN, text_mode="whole")
    before = speak(ryan, TEXT, options=whole)
    assert not np.array_equal(before.pcm, alone.pcm)
    for pieces in (list(TEXT), [TEXT[:7], TEXT[7:8], TEXT[8:]], [*TEXT, ""]):
        assert np.array_equal(speak(ryan, *pieces, options=RYAN).pcm, alone.pcm)
        assert np.array_equal(speak(ryan, *pieces, options=whole).pcm, before.pcm)


def test_auto_reads_a_text_first_that_is_complete_when_it_begins(
    ryan: Qwen3Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that takes several steps to read."""
    monkeypatch.setattr("agent_tts.engine.slots.READ_CHARS", 30)
    long = "One of many words, " * 2
    live, whole, auto = (replace(RYAN, text_mode=mode) for mode in get_args(TextMode))
    assert np.array_equal(speak(ryan, long, options=auto).pcm, speak(ryan, long, options=whole).pcm)
    parts = [long[:15], "", "", "", long[15:]]
    assert np.array_equal(speak(ryan, *parts, options=auto).pcm, speak(ryan, long, options=live).pcm)


class Clock:
    """Time for rows and their feeds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        clock = SimpleNamespace(monotonic=lambda: self.now, perf_counter=time.perf_counter, sleep=time.sleep)
        monkeypatch.setattr("agent_tts.engine.qwen3.engine.time", clock)


class TestALiveTextForAReference:
    """A reference of 3.2 s with a short transcript wants 39 tokens of text beside it."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        return Clock(monkeypatch)

    @pytest.fixture
    def cloned(self, voices: Path) -> Iterator[Qwen3Engine]:
        with engine(tiny.ending("base"), slots=1, voices=voices) as made:
            with_clone(voices, "a", 40)
            speak(made, "Hi.", options=bob())  # loads the voice
            yield made

    def heard(self, made: Qwen3Engine, *inputs: StepCommand, steps: int = 200) -> list[StepEvent]:
        """The outputs until the text is out, or some steps have none."""
        outputs, empty = made.step(inputs, [0]), 0
        for _ in range(steps):
            new = made.step([], [0])
            outputs += new
            empty = 0 if new else empty + 1
            if empty == 4 or (new and isinstance(new[-1], OutOfText | Finished)):
                break
        return outputs

    def test_begins_within_350_ms_at_20_words_a_second(self, cloned: Qwen3Engine, clock: Clock) -> None:
        """A clause of twelve words, too."""
        words = ["I", "will", "have", "a", "look", "at", "the", "weather", "in", "Berlin", "for", "you,", "and"]
        made_at = None
        outputs = self.heard(cloned, start_of(0, bob()))
        for number, word in enumerate(words):
            outputs += self.heard(cloned, *appended(0, f"{' ' if number else ''}{word}"), steps=3)
            if any(isinstance(one, Audio) for one in outputs):
                made_at = clock.now
                break
            clock.now += 0.05
        assert made_at is not None
        assert made_at - 100 <= 0.3

    def test_is_spoken_up_to_its_mark_after_a_pause_of_200_ms(self, cloned: Qwen3Engine, clock: Clock) -> None:
        text = "Wait\N{HORIZONTAL ELLIPSIS}"
        outputs = self.heard(cloned, start_of(0, bob()), *appended(0, text))
        clock.now += 0.19
        outputs += self.heard(cloned)
        assert not any(isinstance(one, Audio | OutOfText) for one in outputs)
        clock.now += 0.02
        outputs = self.heard(cloned)
        assert isinstance(outputs[-1], OutOfText)
        assert pcm_of(outputs) == speak(cloned, text, options=bob()).pcm.tobytes()

    def test_half_a_word_waits(self, cloned: Qwen3Engine, clock: Clock) -> None:
        outputs = self.heard(cloned, start_of(0, bob()), *appended(0, "unbeliev"))
        clock.now += 1
        assert {type(one) for one in outputs + self.heard(cloned)} == {OutOfText}

    @pytest.mark.usefixtures("whole_model")
    def test_every_piece_is_the_references(self, cloned: Qwen3Engine, clock: Clock, voices: Path) -> None:
        model = oracle.load(tiny.ending("base"))
        arrays = VoiceLibrary(voices, 10).arrays("bob")
        vector = next(value for name, value in arrays.items() if name.startswith("vector"))
        (item,) = model.create_voice_clone_prompt((clips.clip(24_000).numpy(), 24_000), "a")
        item.ref_code = torch.from_numpy(arrays["codes"].astype(np.int64))
        item.ref_spk_embedding = torch.from_numpy(vector)
        outputs = self.heard(cloned, start_of(0, bob()), *appended(0, "Well, fine. Now, let me look"))
        clock.now += 10
        outputs += self.heard(cloned, *appended(0, " at it", last=True))
        assert isinstance(outputs[-1], Finished)
        asked = {"language": "German", "voice_clone_prompt": [item], "max_new_tokens": 200, "non_streaming_mode": False}
        texts = "Well, fine.", "Now,", "let me look at it"
        expected = [model.generate_voice_clone(text, **asked, **THEIR_GREEDY)[0][0] for text in texts]
        assert_same(floats(pcm_of(outputs)), np.concatenate(expected))

    @pytest.mark.usefixtures("whole_model")
    def test_goes_on_as_late_as_the_speech_before_allows(
        self, cloned: Qwen3Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So that what comes meanwhile is one piece. The first frame is silence here, which is left out."""
        monkeypatch.setattr("agent_tts.engine.qwen3.row.SPLIT_S", 0.1)
        scale(cloned, iter([0.0]), monkeypatch)
        outputs = self.heard(cloned, start_of(0, bob()), *appended(0, "Well, fine. Now, he"))
        (row,) = cloned._slots.requests()
        assert row._plays_until - clock.now == pytest.approx(0.08 * len(pcm_of(outputs)) / 3_840)
        assert self.heard(cloned, *appended(0, "re it comes. And th")) == []
        clock.now = row._plays_until - 0.09
        self.heard(cloned, steps=1)
        assert [segment.text for segment in row.feed.segments] == ["Now, here it comes.", "And"]

    @pytest.mark.parametrize("speed", [0.5, 2.0])
    def test_goes_on_by_the_time_that_the_speech_takes_at_its_speed(
        self, cloned: Qwen3Engine, clock: Clock, speed: float
    ) -> None:
        self.heard(cloned, start_of(0, replace(bob(), speed=speed)), *appended(0, "Well, fine. Now, he"))
        (row,) = cloned._slots.requests()
        assert row.outlet
        assert (row._plays_until - clock.now) * 24_000 == pytest.approx(row.outlet.samples, abs=1_200)

    def test_goes_on_after_a_cut_by_the_time_of_what_is_heard(self, clock: Clock, voices: Path) -> None:
        """Not of the frames that were held back in vain."""
        with engine(tiny.looping("base"), slots=1, voices=voices) as looping:
            with_clone(voices, "a", 40)
            speak(looping, "Hi.", options=bob())  # loads the voice
            outputs = looping.step([start_of(0, bob()), *appended(0, "Well, fine. Now, he")], [0])
            for _ in range(2 * LOOP_FRAMES):
                outputs += looping.step([], [0])
            (row,) = looping._slots.requests()
            assert [*row._cuts] == ["loop"]
            assert len(pcm_of(outputs)) == 3_840 * (LOOP_HELD + 1)
            assert row._plays_until - clock.now == pytest.approx(0.08 * (LOOP_HELD + 1))

    def test_is_read_to_its_end_in_whole_mode(self, cloned: Qwen3Engine, clock: Clock) -> None:
        options = replace(bob(), text_mode="whole")
        outputs = self.heard(cloned, start_of(0, options), *appended(0, "Well, fine. Now, let me look at it"))
        clock.now += 1
        assert {type(one) for one in outputs + self.heard(cloned)} == {OutOfText}


class TestAVoiceThatIsDrawn:
    """From a description, or from nothing: pieces after the first continue what was said, as a clone its clip."""

    @pytest.mark.parametrize(
        ("kind", "options"),
        [
            ("voice_design", replace(ANYONE, voice="design", instructions="A calm old man.")),
            ("base", ANYONE),
        ],
    )
    def test_is_the_same_in_every_piece(self, kind: ModelType, options: CommonOptions) -> None:
        pieces = ["Hello there.", "And you?"]
        with engine(tiny.ending(kind), slots=1) as made:
            first = speak(made, pieces[0], options=options)
            with recorded(made) as prompts:
                both = speak(made, pieces[0], FLUSH, f" {pieces[1]}", options=options)
            model = made._models[0]
            said = prompts[1].prefix[-len(first.frames) :]
            frames = (*(one.codec for one in said[1:]), prompts[1].start)
            voice = PromptVoice(None, Reference(tuple(model.tokenizer.encode(pieces[0])), frames))  # pyrefly: ignore[bad-argument-type]
            speech, state = model.runner.model, model.runner.model.init_state(1, 256)
            run = torch.ones(1, dtype=torch.bool)
            for codes in frames:
                before = speech.decode(state.codec, torch.tensor([codes]), run, None)
            assert np.abs(before.numpy() * 32_767 - first.pcm[-1_920:]).max() < 4  # pyrefly: ignore[unbound-name]
            ids = model.config.im_start_token_id, model.config.im_end_token_id
            prompt = build_prompt(
                model.config,
                voice,
                role=model.tokenizer.role(ids[0]),
                text=model.tokenizer.encode(pieces[1]),
                instruct=model.tokenizer.instruction(options.instructions, *ids) if options.instructions else (),
            )
            assert prompt.prefix == prompts[1].prefix
            tiny.admit(speech.frame, state.frame, 0, prompt, SamplingParams(temperature=0, predictor_temperature=0))
            expected = []
            while not (packed := speech.step(state, run))[0, -2]:  # ended
                expected.append(packed[0, -1_922:-2].numpy())
        found = both.pcm[len(first.pcm) :]
        assert np.abs(found.astype(np.int32) - np.concatenate(expected)).max() <= 4

    def test_goes_on_in_the_pieces_that_the_setting_makes(self) -> None:
        """Each has the prompt and the audio that it has behind a flush: with what was said before it."""
        sentences = ["Hello there.", "And you?", "Fine."]
        script: list[Piece] = [piece for text in sentences for piece in (f" {text}", FLUSH)]
        with engine(tiny.ending("base"), slots=1) as made, recorded(made) as flushed:
            expected = speak(made, *script, options=ANYONE).pcm
        with engine(tiny.ending("base"), slots=1, piece_s=1) as made, recorded(made) as prompts:
            found = speak(made, " ".join(sentences), options=ANYONE).pcm
        assert prompts == flushed
        assert len(prompts[2].prefix) > len(prompts[1].prefix) > len(prompts[0].prefix)
        assert np.array_equal(found, expected)

    def test_has_a_reference_of_three_seconds_at_most_so_far(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("agent_tts.engine.qwen3.row.CARRIED_FRAMES", 12)
        script: list[Piece] = ["One.", FLUSH, "Two.", FLUSH, "Three.", FLUSH, "Four.", FLUSH, "Five.", FLUSH, "Six."]
        with engine(tiny.ending("base"), slots=1) as made, recorded(made) as prompts:
            spoken = speak(made, *script, options=ANYONE)
        codecs = [[*(one.codec for one in each.prefix), each.start] for each in prompts]
        frames = [sum(isinstance(codec, tuple) for codec in each) for each in codecs]
        assert frames[0] == 0
        assert frames == sorted(frames)
        assert frames[-1] >= 12
        assert frames[-1] - 12 < len(spoken.frames)
        assert len({count for count in frames if count >= 12}) == 1


@contextmanager
def recorded(made: Qwen3Engine) -> Iterator[list[Prompt]]:
    """The prompts of the engine's first model, in their order."""
    runner, prompts = made._models[0].runner, list[Prompt]()
    prefill = runner.prefill

    def record(row: int, prompt: Prompt, *rest: Any, **how: Any) -> bool:
        if not prompts or prompts[-1] is not prompt:
            prompts.append(prompt)
        return bool(prefill(row, prompt, *rest, **how))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "prefill", record)
        yield prompts


def with_clone(folder: Path, transcript: str, frames: int, *, name: str = "bob", value: float = 1.0) -> None:
    """Add a voice with a reference of noise, and a speaker vector with one value throughout."""
    codes = np.random.default_rng(0).integers(0, 2_048, (frames, 16)).astype(np.int16)
    voice = StoredVoice(name=name, kind="cloned", transcript=transcript, consent=Consent("Bob agrees."))
    vector = np.full(tiny.HIDDEN, value, np.float32)
    VoiceLibrary(folder, 10).add(voice, {f"vector_{tiny.HIDDEN}": vector, "codes": codes})


def counted(made: Qwen3Engine) -> list[int]:
    """Entries of each prompt chunk that the engine's only model computes from now on."""
    runner, sizes = made._models[0].runner, list[int]()
    inputs, padding_position = runner._inputs, runner.state.frame.cache.padding_position

    def taken(chunk: PromptChunk) -> ChunkInputs:
        part: ChunkInputs = inputs(chunk)
        sizes.append(len(part.positions))
        known = part.positions[part.positions < padding_position]
        assert part.span in (None, known[-1] + 1)  # entries behind the span may be NaN
        return part

    runner._inputs = taken
    return sizes


def bob(name: str = "bob") -> SpeechOptions:
    return SpeechOptions(name, "de", seed=0, clean=False, sampling=GREEDY)


def test_the_shared_prefix_of_a_voices_prompts_is_computed_once(voices: Path) -> None:
    """Another text gives the same audio as alone, and only its own part of the prompt is computed."""
    other = "Something else is said here, and at some length."
    folder = tiny.checkpoint("base")
    with engine(folder, slots=1, voices=voices) as alone, engine(folder, slots=1, voices=voices) as made:
        with_clone(voices, "The quick brown fox.", 40)
        sizes = counted(made)
        ours(made, bob())
        assert np.array_equal(ours(made, bob(), other), ours(alone, bob(), other))
    shared, rest, *others = sizes
    assert min(shared, rest) > 10
    assert others == [rest]


def test_a_voice_used_again_is_restored_from_the_cache(voices: Path) -> None:
    """Also after eviction by another voice. A voice with another vector and the same reference has its own prefix."""
    with engine(tiny.checkpoint("base"), slots=1, voices=voices, cached_voices=1) as made:
        for name, value in (("bob", 1.0), ("eve", -1.0)):
            with_clone(voices, "The quick brown fox.", 40, name=name, value=value)
        sizes = counted(made)
        first = ours(made, bob())
        assert not np.array_equal(ours(made, bob("eve")), first)
        assert np.array_equal(ours(made, bob()), first)
    shared, rest = sizes[:2]
    assert sizes == [shared, rest, shared, rest, rest]


def test_prompts_are_computed_before_text_arrives_when_the_engine_is_idle() -> None:
    with engine(tiny.checkpoint("custom_voice"), slots=2) as made:
        loop = EngineLoop(made, Scheduler(Policy(slots=2, queue=2)))
        loop.submit(messages.Open(1, cast(EngineOptions, STYLED)))
        turns = 0
        while loop.wait_s() == 0:
            loop.step()
            turns += 1
            assert turns < 10
        assert turns >= 3
        assert not made._models[0].runner.has_prompts


def test_the_stages_of_a_request_come_before_its_first_audio_in_order() -> None:
    """The computation is the frame's, apart from what the host does around it; the prompt is computed before."""
    with engine(tiny.checkpoint("custom_voice"), slots=2) as made:
        loop = EngineLoop(made, Scheduler(Policy(slots=2, queue=2)), tells_stages=True)
        loop.submit(messages.Open(1, cast(EngineOptions, STYLED)))
        loop.submit(messages.Append(1, TEXT))
        happened: list[messages.EngineEvent] = []
        while not any(isinstance(event, messages.Audio) for event in happened):
            happened += loop.step()
        (stages,) = [event for event in happened if isinstance(event, messages.Stages)]
    _, *times = astuple(stages)
    assert times == sorted(times)
    assert stages.scheduled < stages.stepped
    assert stages.computed - stages.launching > (stages.handed_out - stages.stepped) / 2


@pytest.fixture
def base(voices: Path) -> Iterator[Qwen3Engine]:
    """An engine with cloned voices."""
    with engine(tiny.checkpoint("base"), slots=1, voices=voices, dtype="bfloat16") as made:
        yield made


@pytest.mark.parametrize("value", [1e300, 3.402e38], ids=["float32", "bfloat16"])
def test_a_speaker_vector_out_of_range_does_not_affect_later_requests(base: Qwen3Engine, value: float) -> None:
    """An infinity would leave NaN in the row's cache and garbage in the audio of all later requests."""
    good = SpeechOptions(seed=0, sampling=GREEDY, speaker_embedding=(0.1,) * tiny.HIDDEN)
    alone = ours(base, good)
    failing = SpeechOptions(seed=0, speaker_embedding=(value,) * tiny.HIDDEN)
    assert speak(base, "Hello.", options=failing).end.code == "bad_message"
    assert np.array_equal(ours(base, good), alone)


@pytest.mark.usefixtures("whole_model")
def test_a_row_with_nan_in_its_state_is_clean_for_the_next_request() -> None:
    with engine(tiny.ending("custom_voice"), slots=1) as made:
        alone = speak(made, "Hello.", options=RYAN)
        state = made._models[0].runner.state
        state.codec.values[:, 0, 5] = math.nan
        state.frame.cache.values[:, 0, 200] = math.nan
        assert speak(made, "Hello.", options=RYAN).end
        assert np.array_equal(speak(made, "Hello.", options=RYAN).pcm, alone.pcm)


def test_a_transcript_without_room_for_speech_is_refused(base: Qwen3Engine, voices: Path) -> None:
    with_clone(voices, "\N{NAZAR AMULET}" * 1_000, 20)
    assert speak(base, "Hello.", options=SpeechOptions("bob", seed=0)).end.code == "unsupported"


def test_a_transcript_longer_than_its_reference_gives_no_audio_before_text(base: Qwen3Engine, voices: Path) -> None:
    with_clone(voices, "A transcript that is longer than that.", 3)
    ours(base, SpeechOptions("bob", seed=0))  # loads and caches the voice
    assert base.step([start_of(0, SpeechOptions("bob", seed=0))], []) == []
    assert base.step([*appended(0, " ")], [0]) == [OutOfText(0)]
    assert base.step([*appended(0, "", last=True)], [0]) == [Finished(0, "end")]


def test_a_language_that_another_model_speaks_is_refused(base: Qwen3Engine) -> None:
    options = replace(resolved(base, SpeechOptions(seed=0)), language="sichuan_dialect")
    failed = Spoken(Qwen3Engine.step(base, [start_of(0, options)], []))  # bypasses routing, which refuses it too
    assert failed.end.code == "unsupported_language"


def test_clones_of_cancelled_requests_are_not_loaded(base: Qwen3Engine, voices: Path) -> None:
    """Otherwise requests that are opened and cancelled would delay all other voices."""
    with_clone(voices, "a", 40)
    load, begun = base._voices.load, []
    base._voices.load = lambda wanted: begun.append(wanted) or load(wanted)
    for _ in range(100):
        base.step([start_of(0, SpeechOptions("bob", seed=0))], [])
        base.step([Cancel(0)], [])
    assert len(ours(base, SpeechOptions("bob", seed=0))) > 0
    assert len(begun) < 50


def test_a_voice_with_a_reused_name_is_not_confused_with_the_old_one(base: Qwen3Engine, voices: Path) -> None:
    with_clone(voices, "a", 40)
    bob = base._voices.choose(resolved(base, SpeechOptions("bob")))
    VoiceLibrary(voices, 10).delete("bob")
    with_clone(voices, "b", 40)
    with pytest.raises(UnknownVoice):
        base._voices.load(bob)


def test_a_deleted_voice_leaves_the_engine(base: Qwen3Engine, voices: Path) -> None:
    """At the next heartbeats: its vector, the codec's state behind its clip, and its prompts, also those of a mix."""
    runner = base._models[0].runner
    runner.prefixes.clear()
    for name, transcript in (("anna", "a"), ("bert", "b")):
        with_clone(voices, transcript, 40, name=name)
    for options in ("anna", "bert", "anna+bert"):
        assert len(ours(base, SpeechOptions(options, seed=0))) > 0
    held = {wanted.voice: speaker for wanted, speaker in base._voices._ready.items()}
    anna = [weakref.ref(speaker.vector) for voice, speaker in held.items() if "anna" in str(voice)]
    anna += [weakref.ref(prefix.keys) for key, prefix in runner.prefixes.items() if "anna" in str(key.stored)]
    assert len(anna) >= 4
    del held
    VoiceLibrary(voices, 10).delete("anna")
    for _ in range(2):
        base.tidy()
        base._loader.submit(int).result()
    base.tidy()
    gc.collect()
    assert [one() for one in anna] == [None] * len(anna)
    assert any("bert" in str(key.stored) for key in runner.prefixes)
    assert "anna" not in str([key.stored for key in runner.prefixes])
    assert [str(wanted.voice).count("bert") for wanted in base._voices._ready if "bert" in str(wanted.voice)] == [1]


def test_nothing_of_a_request_is_kept_with_the_pace_of_its_voice(base: Qwen3Engine) -> None:
    """Neither a speaker's vector nor instructions, which are as private as the text."""
    vector = (0.1,) * tiny.HIDDEN
    options = resolved(base, SpeechOptions(seed=0, speaker_embedding=vector))
    base.step([start_of(0, options), *appended(0, "Hello.", last=True)], [0])
    (row,) = base._slots.requests()
    assert isinstance(row._voice, int)


def test_cached_prompts_take_a_bounded_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_tts.engine.qwen3.runner.PREFIX_POSITIONS", 200)
    with engine(tiny.checkpoint("voice_design"), slots=1) as design:
        for number in range(8):
            options = SpeechOptions("design", instructions=f"{number} old man. " * 5, seed=0)
            outputs = design.step([start_of(0, options), *appended(0, TEXT)], [0])
            while not outputs:
                outputs = design.step([], [0])
            design.step([Cancel(0)], [])
        kept = design._models[0].runner.prefixes.values()
        assert 100 < sum(prefix.keys.shape[1] for prefix in kept) <= 200


@pytest.mark.slow
@pytest.mark.usefixtures("whole_model")
def test_other_requests_do_not_change_the_audio() -> None:
    sampled = SpeechOptions("serena", seed=7, clean=False)
    with engine(tiny.ending("custom_voice"), slots=4) as made:
        alone = speak(made, TEXT, options=RYAN)
        drawn = speak(made, TEXT, options=sampled, slot=2)
        together = speak_all(
            made,
            {
                0: Script(list(TEXT), RYAN),
                1: Script(["Wh", "at", FLUSH, " is it?"], SpeechOptions("aiden", "de", seed=3)),
                2: Script([TEXT[:9], TEXT[9:]], sampled),
                3: Script(["a"], SpeechOptions("eric", "zh", seed=4)),
            },
        )
    assert np.array_equal(together[0].pcm, alone.pcm)
    assert np.array_equal(together[2].pcm, drawn.pcm)


def test_a_reused_slot_starts_clean(ryan: Qwen3Engine, alone: Spoken) -> None:
    ryan.step([start_of(0, SpeechOptions("sohee", seed=1)), *appended(0, "Something else entirely.")], [0])
    for _ in range(5):
        ryan.step([], [0])
    ryan.step([Cancel(0)], [])
    assert np.array_equal(speak(ryan, TEXT, options=RYAN).pcm, alone.pcm)


def test_equal_seeds_give_equal_audio(ryan: Qwen3Engine) -> None:
    options = [SpeechOptions("ryan", seed=seed) for seed in (5, 5, 6, None, None)]
    spoken = [speak(ryan, "Hello.", options=one).pcm for one in options]
    assert np.array_equal(spoken[0], spoken[1])
    assert not any(np.array_equal(spoken[0], other) for other in spoken[2:])
    assert not np.array_equal(spoken[3], spoken[4])


def test_a_row_without_text_waits_and_reports_starvation(ryan: Qwen3Engine) -> None:
    outputs = ryan.step([start_of(0, RYAN)], [])
    outputs += ryan.step([], [0])
    assert outputs == [OutOfText(0)]
    said: list[StepEvent] = []
    for word in ("Hello", " world", " and"):
        new = ryan.step([*appended(0, word)], [0])
        while new != [OutOfText(0)]:
            said += new
            new = ryan.step([], [0])
    assert said  # it spoke, although the text has not ended
    assert all(isinstance(one, Audio) for one in said)
    ryan.step([Cancel(0)], [])


def test_a_flush_is_answered_after_all_text_before_it(ryan: Qwen3Engine) -> None:
    alone = speak(ryan, "Hello world.", options=RYAN)
    spoken = speak(ryan, "Hello world.", FLUSH, FLUSH, " And you?", FLUSH, options=RYAN)
    flushed = [index for index, one in enumerate(spoken.outputs) if isinstance(one, Flushed)]
    assert len(flushed) == 3
    assert pcm_of(spoken.outputs[: flushed[0]]) == alone.pcm.tobytes()
    assert spoken.end


def test_a_pause_is_exact_silence_between_two_prompts(ryan: Qwen3Engine) -> None:
    alone = speak(ryan, "Hello ", options=RYAN)
    both = speak(ryan, "Hello ", FLUSH, " world.", options=RYAN)
    paused = speak(ryan, "Hello ", Pause(500), " world.", options=RYAN)
    expected = [both.pcm[: len(alone.pcm)], np.zeros(12_000, np.int16), both.pcm[len(alone.pcm) :]]
    assert np.array_equal(paused.pcm, np.concatenate(expected))
    assert {len(frame) for frame in paused.frames[:-1]} == {3_840}
    assert paused.end.reason == "end"


@pytest.mark.parametrize(
    ("script", "kinds"),
    [
        ([Pause(80)], ["Audio", "end"]),
        ([Pause(10), FLUSH, Pause(80), FLUSH], ["Audio", "Flushed"] * 2 + ["end"]),
        ([FLUSH, Pause(80)], ["Flushed", "Audio", "end"]),
        ([Pause(0), FLUSH], ["Flushed", "end"]),
    ],
)
def test_pauses_and_flushes_keep_their_order(ryan: Qwen3Engine, script: list[Piece], kinds: list[str]) -> None:
    assert speak(ryan, *script, options=RYAN).kinds == kinds


@pytest.mark.parametrize("between", ["", "Hi."])
def test_pauses_are_generated_as_they_are_played(ryan: Qwen3Engine, between: str) -> None:
    texts = [*appended(0, "", directive=Pause(9_000)), *appended(0, between)] * 200
    outputs = ryan.step([start_of(0, RYAN), *texts, *appended(0, "", last=True)], [0])
    (row,) = ryan._slots.requests()
    most = 0
    for _ in range(400):
        outputs += ryan.step([], [0])
        most = max(most, row.outlet.ready if row.outlet else 0)
    ryan.step([Cancel(0)], [])
    assert {type(output) for output in outputs} == {Audio}
    assert most < 40 * 9_000 / 80  # pauses of one chunk of text


@pytest.mark.parametrize("speed", [0.4, 2.5])
def test_another_speed_gives_the_same_speech_with_scaled_duration(
    ryan: Qwen3Engine, alone: Spoken, speed: float
) -> None:
    spoken = speak(ryan, TEXT, options=replace(RYAN, speed=speed))
    assert 0 <= len(spoken.pcm) - round(len(alone.pcm) / speed) < 1_200  # it ends loud
    assert {len(frame) for frame in spoken.frames[:-1]} == {3_840}
    assert spoken.kinds == ["Audio"] * len(spoken.frames) + ["end"]
    assert np.array_equal(speak(ryan, *TEXT, options=replace(RYAN, speed=speed)).pcm, spoken.pcm)


def test_a_row_at_another_speed_outputs_all_audio_when_its_text_runs_out(ryan: Qwen3Engine) -> None:
    options = replace(RYAN, speed=0.5)
    plain = ryan.step([start_of(0, RYAN), *appended(0, "Hello world and ")], [0])
    while not isinstance(plain[-1], OutOfText):
        plain += ryan.step([], [0])
    slow = ryan.step([Cancel(0), start_of(0, options), *appended(0, "Hello world and ")], [0])
    while not any(isinstance(one, OutOfText) for one in slow):
        slow += ryan.step([], [0])
    assert isinstance(slow[-1], OutOfText)
    assert ryan.step([], [0]) == [OutOfText(0)]
    frames = [sum(isinstance(one, Audio) for one in outputs) for outputs in (plain, slow)]
    assert frames[1] >= 2 * frames[0] - 2
    ryan.step([Cancel(0)], [])


@pytest.mark.parametrize("text", ["", " ", "\n \n", "\x07", "...", "?! “—” …", "。」"])
def test_a_text_without_words_ends_without_audio(ryan: Qwen3Engine, text: str) -> None:
    spoken = speak(ryan, text, FLUSH, text, options=RYAN)
    assert spoken.kinds == ["Flushed", "end"]


def scale(made: Qwen3Engine, scales: Iterator[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the samples of each step of the engine's first model multiplied by the next of `scales`."""
    runner = made._models[0].runner
    launch = runner.launch

    def quiet(rows: Sequence[int], **how: Any) -> LaunchedStep | None:
        launched: LaunchedStep | None = launch(rows, **how)
        if launched is not None:
            samples = slice(16, 16 + 1_920)
            launched._packed[:, samples] = (launched._packed[:, samples] * next(scales, 1.0)).astype(np.int16)
        return launched

    monkeypatch.setattr(runner, "launch", quiet)


def test_a_silent_first_frame_is_dropped_and_the_rest_unchanged(
    ryan: Qwen3Engine, alone: Spoken, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale(ryan, iter([0.0]), monkeypatch)
    assert np.array_equal(speak(ryan, TEXT, options=RYAN).pcm, alone.pcm[1_920:])


def test_leading_silence_is_left_out_in_front_of_each_piece(ryan: Qwen3Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece begins with 50 ms of silence here. The model goes on as it would have."""
    runner, text = ryan._models[0].runner, "One two."
    launch, first = runner.launch, speak(ryan, text, options=replace(RYAN, leading_silence_ms=None)).pcm.copy()

    def quiet(slots: Any, **how: Any) -> Any:
        launched = launch(slots, **how)
        (row,) = ryan._slots.requests()
        if launched is not None and not row.in_speech:
            launched._packed[:, 16 : 16 + 1_200] = 50
        return launched

    monkeypatch.setattr(runner, "launch", quiet)
    first[:1_200] = 50
    for kept_ms, left_out_ms in ((20, 30), (0, 50), (100, 0), (None, 0)):
        options, expected = replace(RYAN, leading_silence_ms=kept_ms), first[24 * left_out_ms :]
        assert np.array_equal(speak(ryan, text, options=options).pcm, expected), kept_ms
    pieces = speak(ryan, text, Pause(100), text, options=replace(RYAN, leading_silence_ms=20)).pcm
    kept = first[24 * 30 :]
    assert np.array_equal(pieces, np.concatenate((kept, np.zeros(2_400, np.int16), kept)))


def test_a_long_text_is_read_while_it_is_spoken(ryan: Qwen3Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_tts.engine.slots.READ_CHARS", 30)
    sentence = "One of many words. "
    whole = speak(ryan, sentence * 3, options=RYAN)
    outputs = ryan.step([start_of(0, RYAN), *appended(0, sentence), *appended(0, sentence)], [0])
    for _ in range(3):
        outputs += ryan.step([], [0])
    (row,) = ryan._slots.requests()
    assert not row.feed.dry
    outputs += ryan.step([*appended(0, sentence, last=True)], [0])
    while not isinstance(outputs[-1], Finished):
        outputs += ryan.step([], [0])
    assert pcm_of(outputs) == whole.pcm.tobytes()


def test_a_step_reads_texts_for_a_limited_time_and_all_rows_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk takes 3 ms here. Rows whose text says nothing do not keep the others from theirs."""
    now = itertools.count(step=0.0015)  # read before and after each chunk
    clock = SimpleNamespace(perf_counter=lambda: next(now), monotonic=time.monotonic, sleep=time.sleep)
    with engine(tiny.checkpoint("custom_voice"), slots=8) as made:
        monkeypatch.setattr("agent_tts.engine.qwen3.engine.time", clock)
        monkeypatch.setattr("agent_tts.engine.qwen3.engine.READ_S", READ_S)
        starts = [start_of(slot, RYAN) for slot in range(8)]
        texts = [text for slot in range(7) for text in appended(slot, "\0" * 10 * READ_CHARS)]
        made.step([*starts, *texts, *appended(7, "Hello there. " * 20)], range(8))
        unread = [sum(len(text) for text, _ in row.feed._unread) for row in made._slots.requests()]
        assert 0 < sum(left < 10 * READ_CHARS for left in unread[:7]) <= 4
        outputs = [output for _ in range(8) for output in made.step([], range(8))]
        assert any(isinstance(output, Audio) and output.id == 7 for output in outputs)
        left = [sum(len(text) for text, _ in row.feed._unread) for row in made._slots.requests()][:7]
        assert max(left) - min(left) <= READ_CHARS


def overlapped(made: Qwen3Engine, overlaps: bool = True) -> AbstractContextManager[object]:
    """As on a GPU: a step returns the outputs of the step before it."""
    return mock.patch.object(made, "_overlaps", overlaps)


class TestOverlappedSteps:
    def test_every_request_gives_the_same_outputs(self) -> None:
        scripts = {
            0: Script([TEXT], RYAN),
            1: Script(["Hello ", "world.", FLUSH, " How are", FLUSH, FLUSH, " you?"], RYAN),
            2: Script(["\n", FLUSH, "Hi."], SpeechOptions("serena", seed=3)),
            3: Script(["", ""], RYAN),
            4: Script(["Hello ", Pause(130), "world.", FLUSH, "And ", Pause(1_000)], RYAN),
            5: Script(["Hello ", "world.", FLUSH, " How are you?"], replace(RYAN, speed=0.4)),
            6: Script([TEXT], replace(RYAN, speed=2.5)),
        }
        with engine(tiny.ending("custom_voice"), slots=7) as made:
            plain = speak_all(made, scripts)
            with overlapped(made):
                assert made.step([], []) == []
                for slot, spoken in speak_all(made, scripts).items():
                    assert spoken.kinds == plain[slot].kinds
                    assert np.array_equal(spoken.pcm, plain[slot].pcm)
                assert made.next_step_in_s() is None

    def test_a_step_in_flight_does_not_affect_the_slots_next_request(self, ryan: Qwen3Engine, alone: Spoken) -> None:
        with overlapped(ryan):
            for _ in range(2):
                ryan.step([start_of(0, SpeechOptions("sohee", seed=1)), *appended(0, "Something else entirely.")], [0])
                ryan.step([], [0])
                assert ryan.next_step_in_s() is not None
                ryan.step([Cancel(0)], [])
                assert ryan.next_step_in_s() is None
            ryan.step([start_of(0, SpeechOptions("sohee", seed=1)), *appended(0, "Something else entirely.")], [0])
            ryan.step([], [0])
            outputs = ryan.step([Cancel(0), start_of(1, RYAN), *appended(1, TEXT, last=True)], [1])
            while not outputs or not isinstance(outputs[-1], Finished):
                outputs += ryan.step([], [1])
        assert {output.id for output in outputs} == {1}
        assert pcm_of(outputs) == alone.pcm.tobytes()

    def test_a_finished_step_is_collected_at_once(self, ryan: Qwen3Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever its expected duration."""
        monkeypatch.setattr(ryan._timer, "wait_s", lambda now: 60.0)
        with overlapped(ryan):
            ryan.step([start_of(0, RYAN), *appended(0, TEXT)], [0])
            assert ryan.next_step_in_s() == 0
            monkeypatch.setattr(LaunchedStep, "ready", lambda launched: False)
            assert 0 < (ryan.next_step_in_s() or 0) < 0.01
            ryan.step([Cancel(0)], [])

    def test_a_piece_is_cut_after_its_last_frame(self) -> None:
        with engine(tiny.checkpoint("custom_voice"), slots=1, max_model_len=64) as small:
            plain = speak(small, "$9,999,999.", FLUSH, " Fine.", options=RYAN)
            with overlapped(small):
                spoken = speak(small, "$9,999,999.", FLUSH, " Fine.", options=RYAN)
        assert spoken.kinds == plain.kinds
        assert spoken.outputs[-1] == plain.outputs[-1]
        assert np.array_equal(spoken.pcm, plain.pcm)


FAULTY = ["Hello there, how are you?", FLUSH, " Fine."]


def seconds_at_flushes(spoken: Spoken) -> list[float]:
    """How much audio was given before each flush, and before the end."""
    ends = [at for at, one in enumerate(spoken.outputs) if isinstance(one, Flushed | Finished)]
    return [0.08 * sum(isinstance(one, Audio) for one in spoken.outputs[:end]) for end in ends]


class TestAPieceThatFails:
    """It ends alone, the rest is spoken, and the end says so. Random weights never end their speech."""

    @pytest.fixture
    def endless(self) -> Iterator[Qwen3Engine]:
        with engine(tiny.checkpoint("custom_voice"), slots=1, max_model_len=1_024) as made:
            yield made

    @pytest.fixture
    def small(self) -> Iterator[Qwen3Engine]:
        with engine(tiny.checkpoint("custom_voice"), slots=1, max_model_len=64) as made:
            yield made

    def test_because_it_goes_on_after_its_text(self, endless: Qwen3Engine) -> None:
        spoken = speak(endless, *FAULTY, options=RYAN)
        assert spoken.end == Finished(0, "end", ("overrun",))
        assert [kind for kind in spoken.kinds if kind != "Audio"] == ["Flushed", "end"]
        first, both = seconds_at_flushes(spoken)
        text = nominal_frames(FAULTY[0] or "", "en") * 0.08
        assert text < first < 1.5 * text + 1.5
        assert 0 < both - first < 3

    def test_speech_after_its_text_ends_with_a_word(
        self, endless: Qwen3Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held = int(TEXT_HELD[0] + TEXT_HELD[1] * nominal_frames(FAULTY[0] or "", "en"))
        scale(endless, itertools.chain(itertools.repeat(1.0, held + 4), [0.0]), monkeypatch)
        spoken = speak(endless, FAULTY[0], options=RYAN)
        assert spoken.outputs[-1] == Finished(0, "end", ("overrun",))
        assert len(spoken.frames) == held + 5

    def test_so_much_is_held_that_nobody_has_to_wait(
        self, endless: Qwen3Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Frames that were held for longer are heard, in order; the last ones are not."""
        most = math.ceil(TEXT_FRAMES[0] + TEXT_FRAMES[1] * nominal_frames(FAULTY[0] or "", "en"))
        least = speak(endless, FAULTY[0], options=RYAN)
        monkeypatch.setattr("agent_tts.engine.qwen3.row.MOST_HELD", 4)
        spoken = speak(endless, FAULTY[0], options=RYAN)
        assert spoken.outputs[-1] == least.outputs[-1] == Finished(0, "end", ("overrun",))
        assert spoken.frames[: len(least.frames) - 1] == least.frames[:-1]  # but the one that fades out
        assert len(spoken.frames) == most - 1 - 4 + 1

    def test_no_text_takes_less_than_a_frame_a_token(self, endless: Qwen3Engine) -> None:
        """Also of signs of which nobody knows how long they take."""
        text = "\N{SNOWMAN}" * 8
        tokens = len(endless._models[0].tokenizer.encode(text))
        spoken = speak(endless, text, options=RYAN)
        assert spoken.outputs[-1] == Finished(0, "end", ("overrun",))
        assert len(spoken.frames) >= TEXT_HELD[0] + TEXT_HELD[1] * tokens - 1

    def test_because_it_is_a_loop(self) -> None:
        with engine(tiny.looping("custom_voice"), slots=1, max_model_len=1_024) as looping:
            spoken = speak(looping, *FAULTY, options=RYAN)
        assert spoken.outputs[-1] == Finished(0, "length", ("loop",))
        assert seconds_at_flushes(spoken) == pytest.approx([0.08 * (LOOP_HELD + 1), 2 * 0.08 * (LOOP_HELD + 1)])

    def test_because_it_is_silent(self, endless: Qwen3Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        """From the tenth frame on."""
        scale(endless, itertools.chain(itertools.repeat(1.0, 10), itertools.repeat(0.0)), monkeypatch)
        spoken = speak(endless, FAULTY[0], options=RYAN)
        assert spoken.end.cut == ("silence",)
        assert len(spoken.frames) == 10 + SILENT_HELD

    def test_because_it_outgrows_its_positions(self, small: Qwen3Engine) -> None:
        spoken = speak(small, "$9,999,999.", FLUSH, " Fine.", options=RYAN)
        assert spoken.outputs[-1] == Finished(0, "length", ("positions", "overrun"))
        first, both = seconds_at_flushes(spoken)
        assert first == pytest.approx(0.08 * (64 - 9))
        assert both > first

    def test_because_its_text_has_more_tokens_than_positions(self, small: Qwen3Engine) -> None:
        """A character may have four."""
        spoken = speak(small, "\N{EGYPTIAN HIEROGLYPH A001}" * 17, FLUSH, " Fine.", options=RYAN)
        assert spoken.outputs[-1] == Finished(0, "length", ("positions", "overrun"))

    def test_because_the_model_ends_it_early(self) -> None:
        with engine(tiny.ending("custom_voice"), slots=1) as early:
            spoken = speak(early, "Hi. " * 8, options=replace(RYAN, text_mode="whole"))
        assert spoken.outputs[-1] == Finished(0, "end", ("early",))

    def test_no_frame_after_the_last_good_one_is_heard_nor_a_click(
        self, endless: Qwen3Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The frames that were held back fade out in 5 ms."""
        spoken = speak(endless, FAULTY[0], options=RYAN)
        monkeypatch.setattr(endless._runaway, "see", lambda rows, *_: np.zeros(len(rows), np.int8))
        unguarded = ours(endless, RYAN, FAULTY[0] or "", len(spoken.frames))
        last, before = floats(spoken.frames[-1]), unguarded[-1_920:]
        assert not last[120:].any()
        assert np.abs(last[:120]).max() <= np.abs(before[:120]).max()
        assert np.abs(last[:12] - before[:12]).max() < 0.1 * np.abs(before[:12]).max()
        assert np.abs(last[108:120]).max() < 0.2 * np.abs(before[108:120]).max()

    def test_frames_held_back_in_vain_are_all_heard(self, monkeypatch: pytest.MonkeyPatch) -> None:
        text = "One of many words, and then some more. " * 2
        with engine(tiny.ending("custom_voice"), slots=1, max_model_len=1_024) as made:
            plain = speak(made, text, options=RYAN)
            detector = made._runaway
            see = detector.see
            monkeypatch.setattr(
                detector, "see", lambda *given: np.maximum(see(*given), int(detector.frames[0]) % 9 > 3)
            )
            held = speak(made, text, options=RYAN)
        assert len(plain.frames) > 20
        assert np.array_equal(held.pcm, plain.pcm)


class TestSharedCache:
    """With little memory, slots share blocks of the cache."""

    @contextmanager
    def sharing(self, blocks: int, **settings: Any) -> Iterator[Qwen3Engine]:
        """An engine whose memory is limited to a number of blocks."""
        folder = tiny.ending("custom_voice")
        needs = Qwen3Model(folder, "needs", Qwen3(device="cpu", max_model_len=256), torch.device("cpu"), 4).needs
        left = (blocks + 0.5) * BLOCK_SIZE * needs.position
        free = math.ceil((needs.fixed(4) + left) / Qwen3().memory)
        with mock.patch.object(Device, "memory", return_value=(free, free)):
            with engine(folder, slots=4, **settings) as shared:
                yield shared

    def test_audio_does_not_change(self) -> None:
        scripts = {slot: Script(["Hi."], replace(RYAN, voice=voice)) for slot, voice in enumerate(("ryan", "sohee"))}
        with engine(tiny.ending("custom_voice"), slots=4) as plenty:
            expected = {slot: speak(plenty, "Hi.", options=one.options, slot=slot) for slot, one in scripts.items()}
        with self.sharing(20) as shared:
            assert cast(Qwen3Model, shared._models[0]).blocks == 20
            for _ in range(3):  # blocks move between rows
                for slot, spoken in speak_all(shared, scripts).items():
                    assert np.array_equal(spoken.pcm, expected[slot].pcm)

    def test_a_row_waiting_for_blocks_does_not_stop_others(self) -> None:
        """Four slots share a cache for two, and a step takes two of them (on a GPU: 256 of 512)."""
        with self.sharing(5, max_model_len=64) as shared:
            loop = EngineLoop(shared, Scheduler(Policy(slots=4, queue=4, batch_sizes=(2,), window_frames=1_000)))
            for stream in range(1, 5):
                for command in (start_of(stream, RYAN), *appended(stream, "Hi.", last=True)):
                    loop.submit(command)
            over = [one.id for _ in range(400) for one in loop.step() if isinstance(one, messages.Finished)]
        assert sorted(over) == [1, 2, 3, 4]

    def test_a_request_waits_for_blocks_and_gets_released_ones(self) -> None:
        with self.sharing(16) as shared:
            shared.step([start_of(0, RYAN), *appended(0, TEXT)], [0])
            assert any(isinstance(one, Audio) for one in shared.step([], [0]))
            for _ in range(3):
                assert not shared.step([start_of(1, RYAN), *appended(1, TEXT, last=True)], [1])
            later = shared.step([Cancel(0)], [1])
            assert any(isinstance(one, Audio) for one in later)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (SpeechOptions("ryan", pitch=2.0), "unsupported"),
        (EngineOptions(DesignedVoice()), "unsupported"),
        (EngineOptions(EmbeddedVoice((0.0,) * 64)), "unsupported"),
        (EngineOptions(NamedVoice("nobody")), "unsupported"),
        (SpeechOptions("ryan", sampling=Sampling(temperature=-1)), "bad_message"),
    ],
)
def test_an_invalid_request_fails_alone(ryan: Qwen3Engine, alone: Spoken, options: CommonOptions, code: str) -> None:
    spoken = speak_all(ryan, {0: Script([TEXT], RYAN), 1: Script([TEXT], options)})
    assert spoken[1].end.code == code
    assert np.array_equal(spoken[0].pcm, alone.pcm)


def test_a_long_prompt_is_computed_in_chunks_while_others_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    styled = SpeechOptions("ryan", "en", "Slowly. " * 8, 0, clean=False, sampling=GREEDY)
    with engine(tiny.checkpoint("custom_voice"), slots=2) as whole:
        expected = ours(whole, styled)
    monkeypatch.setattr("agent_tts.engine.qwen3.graphs.CPU_ENTRIES", 16)
    with engine(tiny.checkpoint("custom_voice"), slots=2) as sliced:
        sliced.step([start_of(1, RYAN), *appended(1, TEXT)], [1])
        outputs = sliced.step([start_of(0, styled), *appended(0, TEXT, last=True)], [0, 1])
        while not any(one.id == 0 for one in outputs):
            assert [type(one) for one in outputs if one.id == 1] == [Audio]
            outputs = sliced.step([], [0, 1])
        sliced.step([Cancel(1)], [])
        assert_same(frames_of(sliced, [one for one in outputs if one.id == 0]), expected)


def speaking(made: Qwen3Engine, count: int) -> list[int]:
    """How many of `count` slots opened together give a frame in each of the first steps, until all do."""
    inputs = [one for slot in range(count) for one in (start_of(slot, RYAN), *appended(slot, TEXT, last=True))]
    spoke: list[int] = []
    while not spoke or spoke[-1] < count:
        spoke.append(sum(isinstance(one, Audio) for one in made.step(inputs, range(count))))
        inputs = []
    made.step([Cancel(slot) for slot in range(count)], [])
    return spoke


def test_a_step_computes_or_begins_a_limited_number_of_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(tiny.checkpoint("custom_voice"), slots=8) as many:
        assert speaking(many, 8) == [0, 8]  # all computed in one step, with a shared prefix
        assert speaking(many, 8) == [8]  # cached now
        monkeypatch.setattr("agent_tts.engine.qwen3.engine.PREFILLS_PER_STEP", 2)
        assert speaking(many, 8) == [2, 4, 6, 8]


STYLED = replace(RYAN, instructions="Slowly. " * 18)  # a prompt of three chunks


def test_a_request_cancelled_during_its_prompt_leaves_nothing_behind() -> None:
    """Whether some chunks wait or all are computed; the row's next request gives the same audio as alone."""
    with engine(tiny.checkpoint("custom_voice"), slots=2) as made:
        alone = ours(made, RYAN)
        queue = made._models[0].runner._waiting
        for steps in range(3):
            made.step([start_of(0, STYLED), *appended(0, TEXT, last=True)], [0])
            for _ in range(steps):
                assert made.step([], [0]) == []
            assert bool(queue) == (steps < 2)
            made.step([Cancel(0)], [])
            assert not queue
            assert np.array_equal(ours(made, RYAN), alone)


def test_a_prompt_that_has_begun_does_not_count_in_later_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_tts.engine.qwen3.engine.PREFILLS_PER_STEP", 1)

    def come(slot: int, options: CommonOptions, run: list[int]) -> list[int]:
        outputs = made.step([start_of(slot, options), *appended(slot, TEXT, last=True)], run)
        return sorted(one.id for one in outputs if isinstance(one, Audio))

    with engine(tiny.checkpoint("custom_voice"), slots=3) as made:
        ours(made, RYAN)
        assert come(0, STYLED, [0]) == []
        assert come(1, RYAN, [0, 1]) == [1]
        assert come(2, RYAN, [2, 0, 1]) == [1, 2]
        assert sorted(one.id for one in made.step([], [0, 1, 2]) if isinstance(one, Audio)) == [0, 1, 2]


class TestSeveralModels:
    def test_each_request_goes_to_the_model_of_its_voice(self) -> None:
        folders = [tiny.ending(kind) for kind in ("voice_design", "custom_voice", "base")]
        with engine(*folders, slots=4) as one:
            kinds = [model.kind for model in one.info.models]
            assert kinds == ["designed", "named", "cloned"]
            described = replace(ANYONE, voice="design", instructions="Old.")
            vector = replace(ANYONE, speaker_embedding=(0.1,) * tiny.HIDDEN)
            anyone = replace(ANYONE, model=one.info.models[2].name, language="en")
            asked = {0: RYAN, 1: described, 2: vector, 3: resolved(one, anyone)}
            together = speak_all(one, {slot: Script(["Hello."], options) for slot, options in asked.items()})
        for slot, folder in ((0, folders[1]), (1, folders[0]), (2, folders[2]), (3, folders[2])):
            with engine(folder, slots=4) as alone:
                assert np.array_equal(speak(alone, "Hello.", options=asked[slot]).pcm, together[slot].pcm)

    def test_a_model_can_be_loaded_on_first_use_while_others_speak(self) -> None:
        described = SpeechOptions("design", instructions="Old.", seed=0)
        with engine(tiny.ending("custom_voice"), late=(tiny.ending("voice_design"),)) as made:
            spoken = speak_all(made, {0: Script(["Hello."], RYAN), 1: Script(["Hello."], described)})
        assert spoken[0].frames
        assert spoken[1].frames


def test_the_codec_can_have_its_own_precision() -> None:
    with (
        engine(tiny.checkpoint("custom_voice"), slots=1) as exact,
        engine(tiny.checkpoint("custom_voice"), slots=1, codec_dtype="bfloat16") as rounded,
    ):
        expected, found = ours(exact, RYAN), ours(rounded, RYAN)
    noise = np.square(found - expected).sum() / np.square(expected).sum()
    assert 1e-6 < noise < 0.05  # the same codes, with bfloat16 rounding in the audio


class TestRefuses:
    @pytest.fixture
    def copy(self, tmp_path: Path) -> Path:
        return Path(shutil.copytree(tiny.checkpoint("custom_voice"), tmp_path / "copy"))

    def refuses(self, message: str, *folders: Path, **settings: Any) -> None:
        with pytest.raises(SettingsError, match=message):
            engine(*folders, **settings)

    def test_no_model(self) -> None:
        self.refuses("needs a model")

    def test_a_folder_without_a_checkpoint(self, tmp_path: Path) -> None:
        self.refuses(r"config\.json", tmp_path)

    def test_a_tokenizer_that_belongs_to_another_model(self, copy: Path) -> None:
        vocabulary = json.loads((copy / "vocab.json").read_text("utf-8"))
        vocabulary["one more"] = 999_999
        (copy / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
        self.refuses("more tokens than the model has embeddings", copy)

    def test_sampling_defaults_out_of_range(self, copy: Path) -> None:
        (copy / "generation_config.json").write_text('{"top_k": -1}')
        self.refuses(r"qwen3.models: copy: generation_config.json: top_k must not be negative", copy)

    def test_weights_that_are_not_finite(self, copy: Path) -> None:
        tensors = load_file(copy / "speech_tokenizer/model.safetensors")
        tensors["decoder.pre_conv.conv.bias"][0] = math.nan
        save_file(tensors, copy / "speech_tokenizer/model.safetensors")
        message = r"copy: speech_tokenizer/model.safetensors: not finite in float32: decoder.pre_conv.conv.bias"
        self.refuses(message, copy)

    @pytest.mark.parametrize(
        ("device", "settings", "why"),
        [
            ("cpu", Qwen3(weights="fp8"), "fused kernels run on a GPU of NVIDIA, not on cpu"),
            ("cuda:0", Qwen3(weights="fp8", dtype="float32"), "fused kernels compute in bfloat16, not float32"),
        ],
    )
    def test_weights_in_fp8_without_kernels_for_them(self, device: str, settings: Qwen3, why: str) -> None:
        said = f"^qwen3.weights: fp8 is for fused kernels alone: {why}; use bfloat16$"
        with pytest.raises(SettingsError, match=said):
            Qwen3Model(tiny.checkpoint("base"), "base", settings, torch.device(device), 1)

    @pytest.mark.parametrize("device", ["cuda:99", "mps"])
    def test_a_missing_device(self, device: str) -> None:
        self.refuses(f"{device} is not there", tiny.checkpoint("base"), device=device)

    def test_too_little_memory(self) -> None:
        self.refuses(r"slots: \d+ would fit", tiny.checkpoint("custom_voice"), slots=65_535, max_model_len=32_768)
