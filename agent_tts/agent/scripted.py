"""Speech recognition that gives the same words for all speech, so that a call can be measured without weights."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from pipecat.frames.frames import Frame, TranscriptionFrame
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import SegmentedSTTService
from pipecat.utils.time import time_now_iso8601

LATENCY_S = 0.1  # more than it takes; Pipecat waits so long for a transcript that it has reason to expect


class ScriptedSTT(SegmentedSTTService):
    """Understands `words` whenever voice activity says that somebody spoke."""

    def __init__(self, words: str) -> None:
        super().__init__(settings=STTSettings(model="scripted", language=None), ttfs_p99_latency=LATENCY_S)
        self._words = words

    @property
    def wants_wav_segments(self) -> bool:
        """The sound is not looked at."""
        return False

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame, None]:
        """Give the words for a piece of speech."""
        yield TranscriptionFrame(self._words, "", time_now_iso8601(), None)
