"""Two GPUs with an engine process each: one is killed, and the other continues without a gap."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from loguru import logger

from agent_tts.bench.checkpoint import write
from agent_tts.config.settings import Settings
from agent_tts.ipc.engine_process import engine_processes
from agent_tts.speech.service import SpeechService
from tests.fault.engines import Hearing, begin, kill
from tests.support import until

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")]

START_S = 120.0  # a start captures its graphs
STREAMS = 32


async def test_an_engine_killed_on_one_gpu_ends_only_its_own_requests(tmp_path: Path) -> None:
    """Both engines start at the same time and share the requests, and the killed one restarts on its own GPU."""
    write(tmp_path / "model", size="0.6B")
    qwen3 = {"models": [str(tmp_path / "model")], "device": "cuda:0,cuda:1", "max_model_len": 1024}
    values = {
        "engine": "qwen3",
        "slots": STREAMS,
        "limits": {"max_frames": 100},  # random weights may never end speech
        "qwen3": qwen3,
        "voices": {"folder": str(tmp_path / "voices")},
    }
    lines: list[str] = []
    sink = logger.add(lines.append, level="INFO", format="{message}")
    service = SpeechService(engine_processes(Settings.model_validate(values)))
    try:
        await service.start()
        await until(lambda: all(engine.ready for engine in service.engines), START_S)
        for number in (0, 1):
            placed = f"loaded on cuda:{number}"
            assert any(line.startswith(f"engine {number}: ") and placed in line for line in lines)
        hearings = [Hearing(begin(service)) for _ in range(STREAMS)]
        assert [engine.speaking for engine in service.engines] == [STREAMS // 2, STREAMS // 2]
        await asyncio.sleep(2.0)
        kill(service.engines[1].client)  # pyrefly: ignore[bad-argument-type]
        await until(lambda: service.engines[1].speaking == 0)
        hearings += [Hearing(begin(service)) for _ in range(4)]
        assert service.engines[0].speaking == STREAMS // 2 + 4
        await asyncio.gather(*(hearing.task for hearing in hearings))
        for hearing in hearings:
            [end] = hearing.ends
            if hearing.speech.engine == 1:
                assert (end.reason, end.code) == ("error", "engine_lost")
            else:
                assert end.reason in ("end", "length")
                assert hearing.gaps_s == 0.0
        await until(lambda: service.engines[1].ready, START_S)
        again = [Hearing(begin(service)) for _ in range(4)]
        assert [engine.speaking for engine in service.engines] == [2, 2]
        await asyncio.gather(*(hearing.task for hearing in again))
        assert all(hearing.ends[0].reason in ("end", "length") for hearing in again)
    finally:
        logger.remove(sink)
        await service.close()
