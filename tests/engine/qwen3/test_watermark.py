"""The watermark inside the engine: every row's speech carries that of AudioSeal's own generator."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("audioseal", reason="the reference: a dependency of the tests")

from agent_tts.config.settings import Audioseal, Checkpoint, Qwen3, Settings, Voices
from agent_tts.engine.factory import create_engine
from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.errors import SettingsError
from agent_tts.options import Sampling, SpeechOptions
from tests.engine.driver import Script, opened, speak_all
from tests.engine.qwen3.test_engine import floats
from tests.model import audioseal_files, tiny
from tests.support import running_node, until
from tests.wire import wire

MESSAGE = 0xA55A
TEXTS = ("Hello world, how are you?", "Two rows begin at two times.")
OPTIONS = SpeechOptions(voice="ryan", language="en", seed=0, sampling=Sampling(temperature=0))


def engine(model: Path, **settings: Any) -> AbstractContextManager[Qwen3Engine]:
    qwen3 = Qwen3(models=(Checkpoint(source=str(model)),), device="cpu", max_model_len=256)
    return opened(Qwen3Engine(Settings(qwen3=qwen3, voices=Voices(folder=str(model / "missing")), **settings), 2))


@pytest.mark.usefixtures("quick_parts")
def test_speech_carries_the_librarys_watermark(tmp_path: Path) -> None:
    """Two requests in one batch, the second begins after a flush of the first: each has the watermark of its own."""
    weights = audioseal_files.write(tmp_path)
    marked_by = {"watermark": "audioseal", "audioseal": Audioseal(source=str(weights), message=MESSAGE)}
    scripts = {0: Script([TEXTS[0]], OPTIONS), 1: Script(["", "", TEXTS[1]], OPTIONS)}
    with engine(tiny.ending("custom_voice")) as plain, engine(tiny.ending("custom_voice"), **marked_by) as marking:
        assert (plain.info.watermark, marking.info.watermark) == (None, "audioseal")
        before, after = speak_all(plain, scripts), speak_all(marking, scripts)
    for slot in scripts:
        speech, marked = floats(before[slot].pcm), floats(after[slot].pcm)
        mark = audioseal_files.watermark_of(audioseal_files.generator(), torch.from_numpy(speech)[None], MESSAGE)[0]
        assert np.abs(mark.numpy()).max() > 20 / 32_767
        expected = np.clip(speech + mark.numpy(), -1, 1)
        assert np.abs(marked - expected).max() < 4 / 32_767  # the samples that it is computed from were not rounded


@pytest.mark.slow
@pytest.mark.node
async def test_a_node_tells_its_clients_of_the_watermark(tmp_path: Path) -> None:
    """Through a real engine process, which gets only some of the settings."""
    models = [{"source": str(tiny.ending("custom_voice"))}]
    marking = {"watermark": "audioseal", "audioseal": {"source": str(audioseal_files.write(tmp_path))}}
    qwen3 = {"models": models, "device": "cpu", "max_model_len": 256}
    async with running_node(engine="qwen3", slots=1, qwen3=qwen3, **marking) as node:
        await until(lambda: node.node.service.ready, 60)
        async with wire(node.ws_url) as peer:
            assert (await peer.until("session.created"))["provenance"]["watermark"] == "audioseal"


def test_its_weights_have_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"audioseal.source: generator_streaming.pth: missing from"):
        engine(tiny.ending("custom_voice"), watermark="audioseal", audioseal=Audioseal(source=str(tmp_path)))


def test_another_engine_marks_nothing() -> None:
    """A node that is to mark its speech must not speak without a mark."""
    with pytest.raises(SettingsError, match="only the engine qwen3 marks its speech, this node's is tone"):
        create_engine(Settings(engine="tone", watermark="audioseal"))
