"""Voices with LoRA adapters: requests with different ones at the same time, and as many as there may be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from agent_tts.config.settings import Qwen3
from agent_tts.engine.qwen3.model import Qwen3Model
from agent_tts.errors import InvalidRequest
from agent_tts.messages import Cancel
from agent_tts.options import SpeechOptions
from agent_tts.voices.library import VoiceLibrary
from tests.engine.driver import resolved, start_of
from tests.engine.qwen3.adapter_voices import assert_close, engine, of, speak, write_voices
from tests.model import lora, tiny

pytestmark = pytest.mark.usefixtures("quick_parts")


@pytest.fixture(scope="module")
def base() -> Path:
    return tiny.checkpoint("base")


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [lora.write_adapter(folder / str(seed), base, seed=seed) for seed in range(2)]


@pytest.fixture
def voices(tmp_path: Path, adapters: list[Path]) -> Path:
    return write_voices(tmp_path / "voices", *adapters)


@pytest.mark.slow
def test_requests_with_different_adapters_speak_as_the_merged_checkpoints(
    base: Path, adapters: list[Path], voices: Path, tmp_path: Path
) -> None:
    with engine(base, voices, adapters=2) as made:
        together = speak(made, {0: "plain", 1: "zero", 2: "one"})
        # In slots that had another adapter, one with the cached prompt.
        again, after = speak(made, {2: "zero"})[2], speak(made, {1: "plain"})[1]
    assert_close(again, together[1])
    assert_close(after, together[0])
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
        made.step([start_of(0, resolved(made, of("zero")))], [0])
        while not made._slots.requests()[0].speaker:
            made.step([], [0])
        with pytest.raises(ValueError, match="takes 1 LoRA adapters at once: try again"):
            speak(made, {1: "one"})
        speak(made, {1: "plain"})
        made.step([Cancel(0)], [])
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


def test_kernels_of_adapters_are_compiled_ahead_for_models_that_have_some(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    on_gpu, settings = torch.device("cuda"), Qwen3(adapters=3, adapter_rank=8)
    (steps,) = Qwen3Model(base, "a-model", settings, on_gpu, 1)._steps()
    assert steps.adapters == (3, 8)
    (steps,) = Qwen3Model(tiny.checkpoint("custom_voice"), "named", settings, on_gpu, 1)._steps()
    assert steps.adapters == (0, 8)
