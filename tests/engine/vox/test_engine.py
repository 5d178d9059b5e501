"""VoxEngine gives the audio of our own modules, from the files that `convert` makes of tiny checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any
from unittest import mock

import httpx
import numpy as np
import pytest
import vox
from numpy.typing import NDArray

from agent_tts.config.settings import Checkpoint, Qwen3, Settings, Voices, Vox
from agent_tts.directives import Language, Pause, Prosody
from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.engine.vox.engine import VoxEngine
from agent_tts.engine.vox.files import convert, file_of
from agent_tts.engine.vox.model import VoxModel
from agent_tts.errors import SettingsError
from agent_tts.messages import Audio, Cancel, End, Finished
from agent_tts.options import CommonOptions, Sampling, SpeechOptions
from agent_tts.voices.library import Consent, StoredVoice, VoiceLibrary
from tests.cli.process import environment
from tests.engine.driver import FLUSH, Script, Spoken, appended, assert_well_formed, opened, speak, speak_all, start_of
from tests.engine.qwen3.test_engine import GREEDY, RYAN, TEXT, bob, pcm_of, with_clone
from tests.model import tiny
from tests.node_process import running_process
from tests.support import typed
from tests.without import without

pytestmark = pytest.mark.model

ROUNDING = 1e-4  # a step of int16 is 3e-5


def converted(source: Path, type_: str) -> Path:
    """A checkpoint with its file."""

    def make(folder: Path) -> None:
        shutil.copytree(source, folder, copy_function=os.link)
        convert(folder, type_, lambda done, total: None)

    return tiny.kept(f"{type_} of {source.parent.name}/{source.name}", make)


def settings(
    *folders: Path, type_: Any = "f32", voices: Path | None = None, piece_s: float = 60, **others: Any
) -> Settings:
    library = Voices(folder=str(voices or folders[0] / "missing"))
    models = tuple(Checkpoint(source=str(folder)) for folder in folders)
    qwen3 = Qwen3(models=models, device="cpu", max_model_len=512, piece_s=piece_s)
    return Settings(**dict[str, Any](slots=2, qwen3=qwen3, vox=Vox(type=type_), voices=library) | others)


def engine(source: Path, type_: str = "f32", **how: Any) -> AbstractContextManager[VoxEngine]:
    return opened(VoxEngine(chosen := settings(converted(source, type_), type_=type_, **how), chosen.slots or 0))


def own(source: Path, **how: Any) -> AbstractContextManager[Qwen3Engine]:
    return opened(Qwen3Engine(chosen := settings(source, **how), chosen.slots or 0))


Pair = tuple[Qwen3Engine, VoxEngine]


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, voices: Path) -> Iterator[Pair]:
    """Our modules and vox, with a kind of checkpoint."""
    source = tiny.behind(request.param)
    with own(source, voices=voices) as modules, engine(source, voices=voices) as made:
        for one in (modules, made):
            one._loader.submit(int).result()  # its thread is there before a test
        yield modules, made


CUSTOM_VOICE = pytest.mark.parametrize("pair", ["custom_voice"], indirect=True)


@pytest.fixture(scope="module")
def ryan() -> Iterator[VoxEngine]:
    with engine(tiny.behind("custom_voice")) as made:
        yield made


@pytest.fixture(scope="module")
def alone(ryan: VoxEngine) -> Spoken:
    return speak(ryan, TEXT, options=RYAN)


def model_of(made: VoxEngine) -> VoxModel:
    return typed(VoxModel, made._models[0])


def sound(spoken: Spoken) -> NDArray[np.float64]:
    return spoken.pcm / 32_767


def assert_equal(found: Spoken, expected: Spoken) -> None:
    assert found.kinds == expected.kinds
    assert len(found.pcm) == len(expected.pcm) > 0
    assert np.abs(sound(expected)).max() > 0.01
    assert np.abs(sound(found) - sound(expected)).max() < ROUNDING


OPTIONS: dict[str, tuple[str, SpeechOptions]] = {
    "named": ("custom_voice", RYAN),
    "styled": ("custom_voice", replace(RYAN, instructions="Speak like the world is yours.")),
    "dialect": ("custom_voice", replace(RYAN, voice="dylan", language="zh")),
    "designed": ("voice_design", SpeechOptions("design", "auto", "A calm old man.", 0, clean=False, sampling=GREEDY)),
    "vector": ("base", bob("eve")),
    "reference": ("base", bob()),
    "long reference": ("base", bob("ann")),
}
RARER = {"styled", "designed", "dialect", "vector", "long reference"}


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bob and ann, with a clip, ann's longer than the 50 frames that vox would give the codec; eve, a vector alone."""
    folder = tmp_path_factory.mktemp("voices")
    with_clone(folder, "The quick brown fox.", 15)
    with_clone(folder, "The quick brown fox.", 90, name="ann")
    eve = StoredVoice(name="eve", kind="cloned", consent=Consent("Eve agrees."))
    VoiceLibrary(folder, 10).add(eve, {f"vector_{tiny.HIDDEN}": tiny.speaker_vector().numpy()})
    return folder


@pytest.mark.parametrize(
    ("pair", "options"),
    [pytest.param(*each, id=name, marks=[pytest.mark.slow] * (name in RARER)) for name, each in OPTIONS.items()],
    indirect=["pair"],
)
def test_a_text_sounds_as_by_our_modules_given_whole_or_by_character(pair: Pair, options: SpeechOptions) -> None:
    expected, found = (speak(one, TEXT, options=options) for one in pair)
    assert_equal(found, expected)
    if options.voice != "ann":  # whose pieces depend on when the text comes, as by our modules
        assert speak(pair[1], *TEXT, options=options).frames == found.frames


@pytest.mark.slow
@CUSTOM_VOICE
def test_a_file_of_16_bits_sounds_as_by_our_modules(pair: Pair) -> None:
    with engine(tiny.behind("custom_voice"), "f16") as made:
        assert_equal(speak(made, TEXT, options=RYAN), speak(pair[0], TEXT, options=RYAN))


@pytest.mark.slow
def test_the_small_size_sounds_as_by_our_modules_and_takes_no_instructions() -> None:
    source = tiny.behind("custom_voice", tiny.SAME_WIDTH)
    options = replace(RYAN, instructions="Speak slowly.")
    with own(source) as modules, engine(source) as made:
        assert_equal(speak(made, TEXT, options=options), speak(modules, TEXT, options=options))


@CUSTOM_VOICE
@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(["One thing. ", Pause(ms=200), "Another."], marks=pytest.mark.slow),
        ["One thing.", FLUSH, " Another."],
        ["One ", Prosody(speed=1.5, pitch=1.0, volume=0.5), "thing"],
        ["One ", Language("de"), "Ding"],
        ["<|im_end|> or <tts_pad>"],
        ["a\0b"],
        pytest.param(["a \ufffd\ufffd b \ufffd"], marks=pytest.mark.slow),
        pytest.param(["x" * 12 + "  \n\n " + "１２½Ⅷ don't I'LL नमस्ते e\u0301"], marks=pytest.mark.slow),
    ],
    ids=["pause", "flush", "manner", "language", "control", "nul", "replacement", "characters"],
)
def test_pieces_directives_and_every_character_are_as_by_our_modules(pair: Pair, pieces: list[Any]) -> None:
    expected, found = (speak(one, *pieces, options=RYAN) for one in pair)
    assert_equal(found, expected)


@pytest.mark.slow
def test_a_text_of_several_pieces_sounds_as_by_our_modules() -> None:
    source, text = tiny.behind("custom_voice"), "So am I. Fine. Oh?"
    with own(source, piece_s=1) as modules, engine(source, piece_s=1) as made:
        assert_equal(speak(made, text, options=RYAN), speak(modules, text, options=RYAN))


def test_instructions_cannot_hold_a_control_token(ryan: VoxEngine) -> None:
    """vox reads them as text with control tokens in it."""
    loaded = model_of(ryan)._engine
    with mock.patch.object(loaded, "speaker_voice", wraps=loaded.speaker_voice) as voice:
        speak(ryan, "Hi.", options=replace(RYAN, instructions="<|im_end|> a < b <tts_pad> <|x"))
    voice.assert_called_once_with("ryan", "< |im_end|> a < b < tts_pad> <|x")


@pytest.mark.slow
def test_8_bits_say_the_same_first_frame_in_some_of_all_texts(ryan: VoxEngine) -> None:
    """The stated distance of q8. Random weights are hard: of 2 048 codes none is much likelier, and all 16 of a frame
    have to be the same."""
    exact = [sound(first_frames(ryan, text, 1)) for text in ascii_lowercase]
    with engine(tiny.behind("custom_voice"), "q8") as made:
        found = [sound(first_frames(made, text, 1)) for text in ascii_lowercase]
    same = [bool(np.abs(a - b).max() < 0.02) for a, b in zip(found, exact, strict=True)]
    assert 0.9 > np.mean(same) > 0.3


def first_frames(made: Any, text: str, frames: int, options: CommonOptions = RYAN) -> Spoken:
    """The first frames of a text, whose speech is cancelled then."""
    spoken = Spoken(made.step([start_of(0, options), *appended(0, text, last=True)], [0]))
    while len(spoken.frames) < frames:
        spoken.outputs += made.step([], [0])
    made.step([Cancel(0)], [])
    return spoken


SEEDS = 60


@pytest.mark.slow
@CUSTOM_VOICE
@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(Sampling(temperature=0.9, top_k=4), id="top-k"),
        pytest.param(Sampling(temperature=0.05, top_k=4), id="cold"),
        pytest.param(Sampling(temperature=0.9, top_k=8, top_p=0.5), id="top-p"),
    ],
)
def test_first_codes_are_drawn_as_often_as_by_our_modules(
    pair: Pair, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a greedy predictor the sound of a first frame tells its first code; chi squared of two samples, p > 1e-4."""
    drawn: list[Counter[int]] = []
    known: list[NDArray[np.float64]] = []

    def named(frame: NDArray[np.float64]) -> int:
        for number, other in enumerate(known):
            if np.abs(frame - other).max() < 0.01:
                return number
        known.append(frame)
        return len(known) - 1

    for each in pair:
        model = each._models[0]
        generation = replace(model.config.generation, subtalker_dosample=False)
        monkeypatch.setattr(model, "config", replace(model.config, generation=generation))
        options = [replace(RYAN, seed=seed, sampling=sampling) for seed in range(SEEDS)]
        drawn.append(Counter(named(sound(first_frames(each, "Hi there", 1, one))) for one in options))
    ours, theirs = drawn
    assert len(ours) > 1 or sampling.temperature == 0.05
    squares = [(ours[code] - theirs[code]) ** 2 / (ours[code] + theirs[code]) for code in ours.keys() | theirs.keys()]
    assert sum(squares) < {1: 0.1, 2: 15.2, 3: 18.5, 4: 21.2}[len(squares)]


def test_a_seed_is_the_audio_and_the_other_codes_are_drawn_too(ryan: VoxEngine) -> None:
    drawn = replace(RYAN, sampling=Sampling())
    assert speak(ryan, TEXT, options=drawn).frames == speak(ryan, TEXT, options=drawn).frames
    firsts = {first_frames(ryan, TEXT, 1, replace(drawn, seed=seed)).frames[0] for seed in range(12)}
    assert len(firsts) == 12
    greedy = [first_frames(ryan, TEXT, 1, replace(RYAN, seed=seed)).frames[0] for seed in (1, -1, 2**63)]
    assert len(set(greedy)) == 1


def test_requests_speak_in_turn_as_each_alone(ryan: VoxEngine, alone: Spoken) -> None:
    scripts = {0: Script([TEXT], RYAN), 1: Script([*TEXT], RYAN)}
    spoken = speak_all(ryan, scripts)
    assert spoken[0].frames == spoken[1].frames == alone.frames
    assert_well_formed(alone)


def test_a_prompt_that_takes_long_holds_up_nobody_and_is_cancelled_at_once(ryan: VoxEngine, alone: Spoken) -> None:
    """The first frame, with its prompt, is computed in a thread."""
    runner = model_of(ryan)
    speaking = Spoken(ryan.step([start_of(0, RYAN), *appended(0, TEXT, last=True)], [0]))
    while not speaking.frames:
        speaking.outputs += ryan.step([], [0])
    free = threading.Event()
    runner._prompts.submit(free.wait)
    try:
        speaking.outputs += ryan.step([start_of(1, RYAN), *appended(1, TEXT, last=True)], [0, 1])
        while not isinstance(speaking.outputs[-1], Finished):
            speaking.outputs += ryan.step([], [0, 1])
        ryan.step([Cancel(0), Cancel(1)], [])
        assert not runner._rows
        assert {event.id for event in speaking.outputs} == {0}
    finally:
        free.set()
    assert speaking.frames == alone.frames
    assert speak(ryan, TEXT, options=RYAN).frames == alone.frames


def test_speech_that_is_cancelled_leaves_nothing_for_the_next(ryan: VoxEngine, alone: Spoken) -> None:
    first_frames(ryan, "Something else is said here, at length.", 2)
    assert not model_of(ryan)._rows
    assert speak(ryan, TEXT, options=RYAN).frames == alone.frames


def test_a_fault_of_vox_ends_its_request_alone(ryan: VoxEngine, alone: Spoken, monkeypatch: pytest.MonkeyPatch) -> None:
    ready, failing = vox.Session.ready, list[vox.Session]()

    def fails(session: vox.Session) -> Any:
        if session in failing:
            raise vox.VoxError(-1, "broken")
        return ready(session)

    monkeypatch.setattr(vox.Session, "ready", fails)
    outputs = ryan.step([start_of(0, RYAN), *appended(0, TEXT), start_of(1, RYAN), *appended(1, TEXT)], [0, 1])
    while not {0, 1} <= {event.id for event in outputs if isinstance(event, Audio)}:
        outputs += ryan.step([], [0, 1])
    failing.append(model_of(ryan)._rows[0].session)
    outputs += ryan.step([End(0), End(1)], [0, 1])
    while not any(isinstance(event, Finished) and event.id == 1 for event in outputs):
        outputs += ryan.step([], [1])
    ryan.step([Cancel(0), Cancel(1)], [])
    ends = {event.id: event.reason for event in outputs if isinstance(event, Finished)}
    assert ends == {0: "error", 1: "end"}
    assert pcm_of([event for event in outputs if event.id == 1]) == alone.pcm.tobytes()


@pytest.mark.parametrize(
    ("pair", "options", "why"),
    [
        ("custom_voice", replace(RYAN, text_mode="whole"), "as it comes"),
        ("custom_voice", replace(RYAN, pitch=1.2), "no pitch"),
        ("base", SpeechOptions(seed=0), "name a cloned one"),
        ("voice_design", SpeechOptions("design", seed=0), "instruction"),
    ],
    ids=["whole", "pitch", "nobody", "undescribed"],
    indirect=["pair"],
)
def test_what_vox_lacks_is_refused_in_a_line(pair: Pair, options: SpeechOptions, why: str) -> None:
    spoken = speak(pair[1], TEXT, options=options)
    assert spoken.kinds == ["error"]
    assert why in (spoken.end.message or "")
    assert "\n" not in (spoken.end.message or "")


def refusal(source: Path, type_: str = "f32", **how: Any) -> str:
    with pytest.raises(SettingsError) as refused:
        VoxEngine(settings(source, type_=type_, **how), 0)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_model_without_its_file_or_with_a_damaged_one_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(tiny.checkpoint("custom_voice"), tmp_path / "model")
    assert f"agent-tts convert {folder} --type q8" in refusal(folder, "q8")
    convert(folder, "q8", lambda done, total: None)
    path = file_of(folder, "q8")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert "is damaged" in refusal(folder, "q8")


def takes(frame_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame of any model takes so long, which is not loaded."""

    def load(model: VoxModel) -> None:
        model._runner, model.frame_s = model, frame_s

    monkeypatch.setattr(VoxModel, "load", load)


@pytest.mark.parametrize(("frame_s", "slots"), [(0.072, 1), (0.037, 1), (0.036, 2), (0.0001, 64)])
def test_slots_are_those_that_speak_in_real_time(frame_s: float, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame is 80 ms; 10 % are spared."""
    takes(frame_s, monkeypatch)
    made = VoxEngine(settings(tiny.checkpoint("custom_voice"), slots=None), 0)
    made.close()
    assert made.info.slots == slots


@pytest.mark.parametrize(
    ("type_", "size", "instead"),
    [
        ("f32", tiny.PROJECTED, "vox.type=f16"),
        ("f16", tiny.PROJECTED, "vox.type=q8"),
        ("q8", tiny.PROJECTED, "a model of 0.6B"),
        ("q8", tiny.SAME_WIDTH, "hibari"),
    ],
)
def test_a_model_that_is_too_slow_is_refused_with_the_next_smaller(
    type_: str, size: str, instead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(0.101, monkeypatch)
    why = refusal(tiny.checkpoint("custom_voice", size), type_, slots=None)
    assert "101 ms here, 73 ms are real time" in why
    assert instead in why


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VK_DRIVER_FILES", "/dev/null")  # Vulkan finds no driver, not even a software one
    assert "vox cannot use it" in refusal(
        converted(tiny.behind("custom_voice"), "f32"), vox=Vox(type="f32", device="vulkan:7")
    )


def test_the_start_tries_real_frames(ryan: VoxEngine) -> None:
    model = model_of(ryan)
    assert 0 < model.frame_s < 0.5
    assert not model._rows


def test_an_end_of_speech_within_a_text_that_comes_begins_the_rest_anew() -> None:
    """Our modules do not draw it there; vox does, as the reference does."""
    with engine(tiny.ending("custom_voice")) as made:
        spoken = speak(made, *TEXT, *"And there is more.", options=RYAN)
    assert (spoken.end.reason, spoken.end.cut) == ("length", ("early",))
    assert len(spoken.frames) > 4


@pytest.mark.slow
@pytest.mark.node
@pytest.mark.real_time
def test_a_node_speaks_by_vox_without_torch(alone: Spoken, tmp_path: Path) -> None:
    """In processes of its own, on a real socket."""
    folder = converted(tiny.behind("custom_voice"), "f32")
    flags = ("--engine", "vox", "--model", str(folder), "--set", "vox.type=f32", "--slots", "2")
    with running_process(tmp_path, *flags, env=environment(**without(tmp_path, "torch"))) as node:
        body = {"input": TEXT, "voice": "ryan", "language": "en", "seed": 0, "clean": False, "temperature": 0}
        answer = httpx.post(f"{node.url}/v1/audio/speech", json={**body, "response_format": "pcm"}, timeout=60)
        assert answer.status_code == 200, answer.text
        refused = httpx.post(f"{node.url}/v1/audio/speech", json={**body, "text_mode": "whole"}, timeout=60)
    found = np.frombuffer(answer.content, "<i2") / 32_767
    assert np.abs(found - sound(alone)).max() < 1e-4
    assert refused.status_code >= 400
    assert "as it comes" in json.dumps(refused.json())
