"""Whisper from a model folder to the words of a call, with the weights of tiny.en."""

from __future__ import annotations

import asyncio

import pytest
from pipecat.services.whisper.stt import WhisperSTTService

from agent_tts.agent.stt import SpeechToText
from agent_tts.config.settings import AgentStt
from tests.agent.caller import calling
from tests.agent.llm_server import running_llm
from tests.agent.node import running_agent
from tests.recogniser import TINY_EN

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
