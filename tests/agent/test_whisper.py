"""Whisper from a model folder to the words of a call, with the weights of tiny.en."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import numpy as np
import pytest
from pipecat.frames.frames import TranscriptionFrame
from pipecat.services.whisper.stt import WhisperSTTService

from agent_tts.agent.stt import SpeechToText, _loaded, _SharedWhisper, shares
from agent_tts.agent.wording import UNSURE
from agent_tts.bench.people import RATE
from agent_tts.config.settings import AgentStt
from tests.agent.caller import calling
from tests.agent.llm_server import running_llm
from tests.agent.node import running_agent
from tests.agent.people import noise, says
from tests.recogniser import TINY_EN, to_16k
from tests.support import typed

pytestmark = pytest.mark.real_time  # speech recognition runs in threads of its library

LOAD_S = 60
QUESTION = "Your prescription is ready and you can pick it up until Monday."


async def test_a_model_folder_is_loaded_once_for_all_calls() -> None:
    stt = SpeechToText(AgentStt(model=TINY_EN, device="cpu"))
    stt.start()
    async with asyncio.timeout(LOAD_S):
        await stt.wait()
    assert (stt.status.kind, stt.status.name, stt.status.message) == ("whisper", TINY_EN, None)
    one, other = stt.service(), stt.service()
    assert isinstance(one, WhisperSTTService)
    assert isinstance(other, WhisperSTTService)
    assert one._model is other._model is not None
    await stt.close()


def test_no_more_threads_recognise_than_there_are_cores() -> None:
    found = {(cores, calls): shares(cores, calls) for cores in (1, 2, 4, 16, 64) for calls in (1, 2, 8, 100)}
    assert all(workers * threads <= cores for (cores, _), (workers, threads) in found.items())
    assert found[1, 8] == (1, 1)
    assert found[2, 8] == (2, 1)
    assert found[4, 1] == (1, 4)
    assert found[16, 8] == (8, 2)
    assert found[64, 1] == (1, 4)
    assert shares(2, 8, 4) == (1, 4)
    assert shares(16, 8, 4) == (4, 4)


class Watched:
    """Whisper's network, with what is given to one of its methods."""

    def __init__(self, network: Any, method: str) -> None:
        self._network, self._method = network, method
        self.given: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._network, name)
        return partial(self._noted, found) if name == self._method else found

    def _noted(self, method: Any, *given: Any, **options: Any) -> Any:
        self.given.append(given)
        return method(*given, **options)


@pytest.mark.parametrize(("retry_s", "decodings"), [(5.0, 1), (0.0, 6)])
def test_a_short_doubtful_segment_is_decoded_once(retry_s: float, decodings: int) -> None:
    """Mutation: `ShortWhisper` passes no temperature."""
    decoding = _loaded(AgentStt(model=TINY_EN, device="cpu", retry_s=retry_s))
    assert decoding.model.compute_type == "int8_float32"
    decoding.model = network = Watched(decoding.model, "generate")  # which is unsure of all
    unsure = np.frombuffer(noise(0.6, -12, seed=1), "<i2").astype(np.float32) / 32_768
    segments, _ = decoding.transcribe(
        np.pad(unsure, (0, 8_000)), language="en", log_prob_threshold=1.0, no_speech_threshold=None
    )
    list(segments)
    assert len(network.given) == decodings


@pytest.mark.parametrize(("heard_s", "frames"), [(0.0, 800), (0.4, 800), (8.9, 990), (15.0, 1_600), (30.0, 3_000)])
def test_whisper_hears_a_segment_and_a_second_of_silence(heard_s: float, frames: int) -> None:
    """30 s of it take four times as long. Mutation: `heard_part` returns all."""
    decoding = _loaded(AgentStt(model=TINY_EN, device="cpu"))
    decoding.model = network = Watched(decoding.model, "encode")
    speech = np.resize(np.frombuffer(noise(2.0, -30, seed=1), "<i2"), round(16_000 * heard_s))
    segments, _ = decoding.transcribe(speech.astype(np.float32) / 32_768, language="en")
    list(segments)
    assert [features.shape[-1] for features, *_ in network.given] == [frames]


async def test_one_short_word_is_recognised_once_and_surely() -> None:
    """With less silence behind it Whisper repeats "Stop." up to thirty times."""
    stt = _SharedWhisper(_loaded(AgentStt(model=TINY_EN, device="cpu")), AgentStt(model=TINY_EN))
    for words in ("Stop.", "Wait.", "No.", "Yes."):
        sound = to_16k(np.frombuffer(says(words), "<i2"), RATE).tobytes()
        (frame,) = [frame async for frame in stt.run_stt(bytes(9_600) + sound + bytes(16_000))]
        assert isinstance(frame, TranscriptionFrame)
        assert frame.text == words
        assert UNSURE < typed(float, frame.result) < 0
    noises = np.random.default_rng(1).normal(0, 30, 16_000).astype("<i2").tobytes()
    assert [frame async for frame in stt.run_stt(noises)] == []


@pytest.mark.slow
async def test_whisper_recognises_speech_in_a_call() -> None:
    """From the caller's audio to the LLM request."""
    stt = {"model": TINY_EN, "device": "cpu", "compute_type": "int8"}
    async with running_llm("Fine.") as llm, running_agent(llm.url, stt=stt, turn_silence_s=0.6) as agent:
        async with asyncio.timeout(LOAD_S):
            await agent.server.stt.wait()
        question = await agent.speech(QUESTION)
        async with calling(agent.url) as caller:
            await caller.say(question)
            said = await caller.message("user-transcription")
            assert said["data"]["text"].strip() == QUESTION
            await caller.loud()
            await caller.message("bot-stopped-speaking")
    assert [(role, text.strip()) for role, text in llm.history()] == [("user", QUESTION)]
