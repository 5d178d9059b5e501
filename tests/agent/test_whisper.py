"""The way of Whisper up to a loaded model, with weights made here: random ones are not fit to hear with."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from pipecat.services.whisper.stt import WhisperSTTService

from agent_tts.agent.ears import Ears
from agent_tts.settings import AgentStt

ROOT = Path(__file__).parents[2]


async def test_a_model_in_a_folder_is_loaded_once_for_all_calls(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    command = (sys.executable, "-m", "tests.agent.tiny_whisper", str(tmp_path / "source"), str(folder))
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=100, cwd=ROOT)
    ears = Ears(AgentStt(model=str(folder), device="cpu"))
    ears.start()
    async with asyncio.timeout(60):
        await ears.wait()
    assert (ears.part.kind, ears.part.name, ears.part.message) == ("whisper", str(folder), None)
    one, other = ears.service(), ears.service()
    assert isinstance(one, WhisperSTTService)
    assert isinstance(other, WhisperSTTService)
    assert one._model is other._model is not None
    await ears.close()
