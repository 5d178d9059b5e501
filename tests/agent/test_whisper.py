"""Whisper from a model folder to the words of a call, with a model generated here."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from pipecat.services.whisper.stt import WhisperSTTService
from tqdm import tqdm

from agent_tts.agent.stt import SpeechToText
from agent_tts.config.settings import AgentStt
from tests.agent.caller import calling
from tests.agent.llm_server import running_llm
from tests.agent.node import running_agent
from tests.agent.tiny_whisper import SAYS

pytestmark = pytest.mark.real_time  # speech recognition runs in threads of its library

ROOT = Path(__file__).parents[2]
LOAD_S = 60


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a generated model."""
    made = tmp_path_factory.mktemp("whisper")
    command = (sys.executable, "-m", "tests.agent.tiny_whisper", str(made / "source"), str(made / "model"))
    subprocess.run(command, check=True, capture_output=True, timeout=100, cwd=ROOT)
    return made / "model"


async def test_a_model_folder_is_loaded_once_for_all_calls(model: Path) -> None:
    stt = SpeechToText(AgentStt(model=str(model), device="cpu"))
    stt.start()
    async with asyncio.timeout(LOAD_S):
        await stt.wait()
    assert (stt.status.kind, stt.status.name, stt.status.message) == ("whisper", str(model), None)
    one, other = stt.service(), stt.service()
    assert isinstance(one, WhisperSTTService)
    assert isinstance(other, WhisperSTTService)
    assert one._model is other._model is not None
    await stt.close()


async def test_whisper_recognises_speech_in_a_call(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the caller's audio to the LLM request."""
    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # otherwise tqdm, disabled or not, starts a thread
    stt = {"model": str(model), "device": "cpu"}
    async with running_llm("Fine.") as llm, running_agent(llm.url, stt=stt, turn_silence_s=0.6) as agent:
        async with asyncio.timeout(LOAD_S):
            await agent.server.stt.wait()
        question = await agent.speech("The weather is nice today.")
        async with calling(agent.url) as caller:
            await caller.say(question)
            said = await caller.message("user-transcription")
            assert said["data"]["text"].split() == list(SAYS)
            await caller.loud()
            await caller.message("bot-stopped-speaking")
    assert llm.history() == [("user", " ".join(SAYS))]
