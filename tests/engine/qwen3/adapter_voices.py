"""An engine whose voices have LoRA adapters, and what its requests say."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.engine_info import FRAME_BYTES
from agent_tts.messages import Audio, Cancel, Finished, StepCommand
from agent_tts.options import SpeechOptions
from agent_tts.voices.library import Consent, StoredVoice, VoiceLibrary
from tests.engine.driver import appended, resolved, start_of
from tests.engine.qwen3 import test_engine
from tests.model import tiny

TEXT = "Hello world, how are you?"
FRAMES = 6


def engine(folder: Path, voices: Path, **settings: Any) -> AbstractContextManager[Qwen3Engine]:
    """One of three slots, with a checkpoint and a library."""
    return test_engine.engine(folder, slots=3, voices=voices, max_model_len=128, **settings)


def of(voice: str) -> SpeechOptions:
    """Options that repeat what the voice says."""
    return replace(test_engine.RYAN, voice=voice)


def write_voices(folder: Path, *adapters: Path) -> Path:
    """A library with the same speaker several times: `plain`, and `zero` and `one` with adapters."""
    library = VoiceLibrary(folder, 10)
    for name, adapter in zip(("plain", "zero", "one"), (None, *adapters), strict=True):
        voice = StoredVoice(name=name, kind="cloned", consent=Consent("I agree."))
        library.add(voice, {f"vector_{tiny.HIDDEN}": tiny.speaker_vector().numpy()})
        library.set_adapter(name, adapter)
    return folder


def speak(made: Qwen3Engine, voices: dict[int, str]) -> dict[int, NDArray[np.int16]]:
    """The first frames of requests in these slots at the same time, as samples; ValueError: one failed."""
    inputs: list[StepCommand] = []
    for slot, voice in voices.items():
        inputs += [start_of(slot, resolved(made, of(voice))), *appended(slot, TEXT), *appended(slot, "", last=True)]
    said: dict[int, bytes] = dict.fromkeys(voices, b"")
    try:
        while min(map(len, said.values())) < FRAMES * FRAME_BYTES:
            for output in made.step(inputs, list(voices)):
                if isinstance(output, Finished):
                    raise ValueError(output.message)
                assert isinstance(output, Audio)
                said[output.id] += output.payload
            inputs = []
    finally:
        made.step([Cancel(slot) for slot in voices], [])
    return {slot: np.frombuffer(pcm[: FRAMES * FRAME_BYTES], "<i2") for slot, pcm in said.items()}


def assert_close(one: NDArray[np.int16], other: NDArray[np.int16]) -> None:
    """Up to the order of sums."""
    assert np.abs(one.astype(int) - other).max() < 4
