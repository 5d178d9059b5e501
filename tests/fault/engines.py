"""Engine processes of one service, and listeners to its requests."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from agent_tts.ipc.engine_process import EngineProcess, engine_processes
from agent_tts.messages import Audio, Finished, Started
from agent_tts.options import SpeechOptions
from agent_tts.speech.service import SpeechService
from agent_tts.speech.utterance import Utterance
from tests.ipc.listener import tone_settings
from tests.support import events_of, until

TEXT = "a sentence that is long enough to be killed in the middle of it"
BACK_S = 30.0  # for an engine to start on a busy machine


@asynccontextmanager
async def several(engines: int = 2, **values: Any) -> AsyncIterator[tuple[SpeechService, list[EngineProcess]]]:
    """A service with so many engine processes, each of which has spoken."""
    service = SpeechService(engine_processes(tone_settings(engines=engines, **values)))
    await service.start()
    try:
        await until(lambda: all(engine.ready for engine in service.engines), BACK_S)
        yield service, [cast(EngineProcess, engine.client) for engine in service.engines]
    finally:
        await service.close()


def kill(link: EngineProcess, sig: signal.Signals = signal.SIGKILL) -> None:
    assert link.pid is not None
    os.kill(link.pid, sig)


def begin(service: SpeechService, **options: Any) -> Utterance:
    """A request with all of its text."""
    speech = service.open(SpeechOptions(**dict[str, Any](seed=1, lead_ms=800) | options))
    speech.write(TEXT)
    speech.end()
    return speech


class Hearing:
    """Listens to a request, which starts once at most."""

    def __init__(self, speech: Utterance) -> None:
        self.speech = speech
        self.pcm = b""
        # Every `Finished` received.
        self.ends: list[Finished[str]] = []
        # Silence between frames for a listener who plays from the first one on.
        self.gaps_s = 0.0
        self.task = asyncio.create_task(self._hear(), name="listener")

    async def _hear(self) -> None:
        clock, heard_until, starts = asyncio.get_running_loop().time, None, 0
        async with asyncio.timeout(BACK_S):
            async for event in events_of(self.speech):
                starts += isinstance(event, Started)
                if isinstance(event, Finished):
                    self.ends.append(event)
                elif isinstance(event, Audio):
                    now = clock()
                    heard_until = now if heard_until is None else heard_until
                    self.gaps_s += max(0.0, now - heard_until)
                    heard_until = max(now, heard_until) + len(event.payload) / 48_000
                    self.pcm += event.payload
        assert starts <= 1
        assert len(self.ends) == 1


async def hear(speech: Utterance) -> tuple[bytes, Finished[str]]:
    """All audio of a request, and its end."""
    hearing = Hearing(speech)
    await hearing.task
    return hearing.pcm, hearing.ends[0]


async def whole(service: SpeechService) -> bytes:
    """All audio of one undisturbed request."""
    pcm, end = await hear(begin(service, lead_ms=None))
    assert end.reason == "end"
    return pcm


def check(hearings: list[Hearing], expected: bytes, lost: set[int]) -> None:
    """Requests on the engines `lost` end with an error and a prefix of the audio. Others are whole."""
    for hearing in hearings:
        [end] = hearing.ends
        if hearing.speech.engine in lost:
            assert (end.reason, end.code) == ("error", "engine_lost")
            assert expected.startswith(hearing.pcm)
            assert len(hearing.pcm) < len(expected)
        else:
            assert (end.reason, end.code, hearing.pcm) == ("end", None, expected)
