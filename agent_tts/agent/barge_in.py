"""Barge-in: recognised words interrupt an answer, other sounds only hold it, and echo does neither."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    TranscriptionFrame,
    UserBackchannelFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from agent_tts.agent.playout import Playout
from agent_tts.agent.wording import asks, is_backchannel

COMMIT_S = 1.0  # for the heard text to enter the LLM's context; the user's words follow it


class BargeIn(FrameProcessor):
    """Interrupts the answer that `playout` holds when words are recognised. Its place: before the user's aggregator.

    Words of a listener, such as "yeah", do not interrupt: they become a `UserBackchannelFrame`.

    Args:
        assistant: the assistant's aggregator, at the end of the pipeline: stores the heard text of an answer.
        language: of the user; None: any.
    """

    def __init__(
        self,
        playout: Playout,
        assistant: FrameProcessor,
        language: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._playout = playout
        self._language = language
        self._clock = clock
        # When the user's voice began, on `clock`, or up to 0.06 s before that; and how long it lasted from then on, s.
        self._voice_at = self._voice_s = 0.0
        # Set when `assistant` has processed an interruption.
        self._committed = asyncio.Event()
        assistant.add_event_handler("on_after_process_frame", self._on_processed)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Send an interruption before the words that cause it."""
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._voice_at = self._clock() - frame.start_secs
        elif isinstance(frame, VADUserStoppedSpeakingFrame):
            self._voice_s = self._clock() - frame.stop_secs - self._voice_at
        elif isinstance(frame, TranscriptionFrame) and frame.text.strip() and self._playout.busy:
            said = self._playout.said
            if said and self._listens(frame, asked=asks(said)):
                await self.push_frame(UserBackchannelFrame(frame.text, frame.user_id, frame.timestamp), direction)
                return
            self._committed.clear()
            await self.broadcast_interruption()
            await self._wait_for_commit()
        await self.push_frame(frame, direction)

    def _listens(self, frame: TranscriptionFrame, *, asked: bool) -> bool:
        """Whether words during an answer are those of a listener."""
        sure = frame.result if isinstance(frame.result, float) else 0.0
        return is_backchannel(frame.text, self._voice_s, sure, asked=asked, language=self._language)

    async def _wait_for_commit(self) -> None:
        try:
            async with asyncio.timeout(COMMIT_S):
                await self._committed.wait()
        except TimeoutError:
            await self.push_error(f"an interruption took more than {COMMIT_S:g} s to pass the pipeline")

    async def _on_processed(self, _: FrameProcessor, frame: Frame) -> None:
        if isinstance(frame, InterruptionFrame):
            self._committed.set()


class EchoGuard(FrameProcessor):
    """Keeps a voice from being noticed in the first `seconds` of an answer, until echo cancellation has adapted to it.

    Its place: between the recogniser and the user's aggregator, which has the voice detector. The recogniser hears all:
    it keeps the last second before a voice is noticed, so words that begin with the answer are whole. Typed text still
    interrupts.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._seconds = seconds
        self._clock = clock
        # The voice detector hears nothing until then, on `clock`.
        self._until = 0.0

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, BotStartedSpeakingFrame):
            self._until = self._clock() + self._seconds
        elif isinstance(frame, BotStoppedSpeakingFrame):
            self._until = 0.0
        elif isinstance(frame, InputAudioRawFrame) and self._clock() < self._until:
            frame.audio = bytes(len(frame.audio))
        await self.push_frame(frame, direction)
