"""Voices with LoRA adapters: requests with different ones at the same time, and as many as there may be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from agent_tts.config.settings import Checkpoint, Qwen3, Settings, Voices
from agent_tts.engine.base import AddText, FailedOutput, FrameOutput, ReleaseSlot, StartRequest, StepInput
from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.engine.qwen3.model import Qwen3Model
from agent_tts.errors import InvalidRequest, SettingsError
from agent_tts.events import FRAME_BYTES, Sampling, SpeechOptions
from agent_tts.voices.library import Consent, StoredVoice, VoiceLibrary
from tests.engine.driver import resolved, routed
from tests.model import lora, tiny
from tests.model.conftest import one_thread

__all__ = ["one_thread"]  # a fixture

TEXT = "Hello world, how are you?"
FRAMES = 6


@contextmanager
def engine(folder: Path, voices: Path, *, slots: int = 3, **settings: Any) -> Iterator[Qwen3Engine]:
    models = (Checkpoint(source=str(folder)),)
    qwen3 = Qwen3(models=models, device="cpu", max_model_len=128, **settings)
    made = Qwen3Engine(Settings(qwen3=qwen3, voices=Voices(folder=str(voices))), slots)
    try:
        yield routed(made)
    finally:
        made.close()


def of(voice: str) -> SpeechOptions:
    return SpeechOptions(voice, "en", seed=0, clean=False, sampling=Sampling(temperature=0))


@pytest.fixture(scope="module")
def base() -> Path:
    return tiny.checkpoint("base")


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [lora.write_adapter(folder / str(seed), base, seed=seed) for seed in range(2)]


@pytest.fixture
def voices(tmp_path: Path, adapters: list[Path]) -> Path:
    """The same speaker three times: `plain`, and `zero` and `one` with adapters."""
    library = VoiceLibrary(tmp_path / "voices", 10)
    for name, adapter in (("plain", None), ("zero", adapters[0]), ("one", adapters[1])):
        voice = StoredVoice(name=name, kind="cloned", consent=Consent("I agree."))
        library.add(voice, {f"vector_{tiny.HIDDEN}": tiny.speaker_vector().numpy()})
        library.set_adapter(name, adapter)
    return tmp_path / "voices"


def speak(made: Qwen3Engine, voices: dict[int, str]) -> dict[int, NDArray[np.int16]]:
    """The first frames of requests in these slots at the same time, as samples; ValueError: one failed."""
    inputs: list[StepInput] = []
    for slot, voice in voices.items():
        inputs += [StartRequest(slot, 1, resolved(made, of(voice))), AddText(slot, TEXT), AddText(slot, "", last=True)]
    said: dict[int, bytes] = dict.fromkeys(voices, b"")
    try:
        while min(map(len, said.values())) < FRAMES * FRAME_BYTES:
            for output in made.step(inputs, list(voices)):
                if isinstance(output, FailedOutput):
                    raise ValueError(output.message)
                assert isinstance(output, FrameOutput)
                said[output.slot] += output.pcm
            inputs = []
    finally:
        made.step([ReleaseSlot(slot) for slot in voices], [])
    return {slot: np.frombuffer(pcm[: FRAMES * FRAME_BYTES], "<i2") for slot, pcm in said.items()}


def assert_close(one: NDArray[np.int16], other: NDArray[np.int16]) -> None:
    """Up to the order of sums."""
    assert np.abs(one.astype(int) - other).max() < 4


def test_requests_with_different_adapters_speak_as_the_merged_checkpoints(
    base: Path, adapters: list[Path], voices: Path, tmp_path: Path
) -> None:
    with engine(base, voices, adapters=2) as made:
        together = speak(made, {0: "plain", 1: "zero", 2: "one"})
        again = speak(made, {2: "zero"})  # with the cached prompt, in a slot of another adapter
    assert_close(again[2], together[1])
    assert not np.array_equal(together[0], together[1])
    for slot, adapter in enumerate([None, *adapters]):
        folder = lora.merge(base, adapter, tmp_path / f"{slot}" / base.name) if adapter else base
        with engine(folder, voices) as merged:
            alone = speak(merged, {0: "plain"})[0]
        assert_close(alone, together[slot])


def test_an_idle_adapter_gives_its_place_to_another(base: Path, voices: Path) -> None:
    with engine(base, voices, adapters=1) as made:
        first = speak(made, {0: "zero"})[0]
        assert not np.array_equal(speak(made, {0: "one"})[0], first)
        assert np.array_equal(speak(made, {0: "zero"})[0], first)


def test_a_request_is_refused_while_others_use_all_places(base: Path, voices: Path) -> None:
    with engine(base, voices, adapters=1) as made:
        made.step([StartRequest(0, 1, resolved(made, of("zero")))], [0])
        while not made._slots.requests()[0].speaker:
            made.step([], [0])
        with pytest.raises(ValueError, match="takes 1 LoRA adapters at once: try again"):
            speak(made, {1: "one"})
        speak(made, {1: "plain"})
        made.step([ReleaseSlot(0)], [])
        speak(made, {1: "one"})


def test_a_node_without_places_refuses_voices_with_adapters(base: Path, voices: Path) -> None:
    with engine(base, voices) as made:
        with pytest.raises(ValueError, match=r"set qwen3.adapters"):
            speak(made, {0: "zero"})
        with pytest.raises(InvalidRequest, match="only cloned voices can be mixed: 'one' has a LoRA adapter"):
            resolved(made, SpeechOptions("plain(0.5)+one(0.5)"))


def test_an_adapter_that_does_not_fit_is_refused(base: Path, voices: Path, tmp_path: Path) -> None:
    wide = lora.write_adapter(tmp_path / "wide", base, seed=0, rank=8)
    VoiceLibrary(voices, 10).set_adapter("zero", wide)
    with engine(base, voices, adapters=1, adapter_rank=4) as made:
        with pytest.raises(ValueError, match=r"tiny-base: an adapter of rank 8; qwen3.adapter_rank allows 4"):
            speak(made, {0: "zero"})
        speak(made, {0: "one"})


def test_fused_kernels_and_adapters_exclude_each_other(base: Path) -> None:
    on_gpu = torch.device("cuda")
    with pytest.raises(SettingsError, match=r"fused kernels run no adapters: qwen3.cuda_graphs: false"):
        Qwen3Model(base, "a-model", Qwen3(adapters=1), on_gpu, 1)
    assert Qwen3Model(base, "a-model", Qwen3(adapters=1, cuda_graphs=False), on_gpu, 1)._steps() == []
    Qwen3Model(tiny.checkpoint("custom_voice"), "named", Qwen3(adapters=1), on_gpu, 1)  # has no voices of the library
