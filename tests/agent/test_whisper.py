"""The whole way of Whisper, with weights made here: loaded from a folder, shared, and heard with in a call."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from tqdm import tqdm

from agent_tts.agent.ears import Ears
from agent_tts.settings import AgentStt
from tests.agent.caller import calling
from tests.agent.llm_server import running_llm
from tests.agent.node import running_agent

ROOT = Path(__file__).parents[2]
tqdm.monitor_interval = 0  # it would leave a thread


async def test_a_model_in_a_folder_hears_in_calls(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    command = (sys.executable, "-m", "tests.agent.tiny_whisper", str(tmp_path / "source"), str(folder))
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=100, cwd=ROOT)
    stt = {"model": str(folder), "device": "cpu"}
    ears = Ears(AgentStt.model_validate(stt))
    async with running_llm("I see.") as llm, running_agent(llm.url, stt=stt, ears=ears, turn_silence_s=0.6) as agent:
        async with asyncio.timeout(60):
            await ears.wait()
        assert (ears.part.kind, ears.part.name, ears.part.message) == ("whisper", str(folder), None)
        question = await agent.speech("My train leaves at seven.")
        async with calling(agent.url) as caller:
            began = time.monotonic()
            await caller.say(question)
            assert (await caller.message("user-transcription", began))["data"]["text"].strip()
            await caller.own("turn", began)
    assert [role for role, _ in llm.history()] == ["user"]
