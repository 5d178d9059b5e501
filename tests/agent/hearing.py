"""Speech recognition without downloaded weights: a closed grammar of a few sentences."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from pipecat.frames.frames import Frame, TranscriptionFrame
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import SegmentedSTTService, STTService
from pipecat.utils.time import time_now_iso8601

from agent_tts.agent.stt import ComponentStatus, SpeechToText
from agent_tts.config.settings import AgentStt
from tests.recogniser import recognise


class GrammarSTT(SegmentedSTTService):
    """Recognises the sentences of `tests.recogniser` only."""

    def __init__(self) -> None:
        super().__init__(settings=STTSettings(model="grammar", language=None), ttfs_p99_latency=0.5)

    @property
    def wants_wav_segments(self) -> bool:
        return False

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame, None]:
        if text := recognise(audio, self.sample_rate):
            yield TranscriptionFrame(text, "", time_now_iso8601(), None)


class GrammarSpeechToText(SpeechToText):
    """Replaces Whisper."""

    def __init__(self) -> None:
        super().__init__(AgentStt(kind="none"))

    @property
    def status(self) -> ComponentStatus:
        return ComponentStatus("whisper", "grammar")

    def service(self) -> STTService:
        return GrammarSTT()
