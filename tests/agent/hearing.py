"""Speech recognition without downloaded weights: a closed grammar of a few sentences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import numpy as np
from pipecat.frames.frames import Frame, TranscriptionFrame
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import STTService
from pipecat.utils.time import time_now_iso8601

from agent_tts.agent.stt import ComponentStatus, SegmentedRecogniser, SpeechToText
from agent_tts.config.settings import AgentStt
from agent_tts.sound.silence import AUDIBLE_PEAK
from tests.recogniser import recognise


class GrammarSTT(SegmentedRecogniser):
    """Recognises the sentences of `tests.recogniser` only."""

    def __init__(self, takes_s: float = 0.0) -> None:
        super().__init__(settings=STTSettings(model="grammar", language=None), ttfs_p99_latency=0.5)
        self._takes_s = takes_s

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame, None]:
        await asyncio.sleep(self._takes_s)
        samples = np.frombuffer(audio, "<i2")
        (loud,) = np.nonzero(np.abs(samples.astype(np.int32)) > AUDIBLE_PEAK)
        # Seconds of silence at the end make the grammar fail at some places of its windows.
        heard = samples[: loud[-1] + self.sample_rate // 2] if len(loud) else samples
        if text := recognise(heard.tobytes(), self.sample_rate):
            yield TranscriptionFrame(text, "", time_now_iso8601(), None)


class GrammarSpeechToText(SpeechToText):
    """Replaces Whisper; a segment takes `takes_s` seconds."""

    def __init__(self, takes_s: float = 0.0) -> None:
        super().__init__(AgentStt(kind="none"))
        self._takes_s = takes_s

    @property
    def status(self) -> ComponentStatus:
        return ComponentStatus("whisper", "grammar")

    def service(self) -> STTService:
        return GrammarSTT(self._takes_s)
