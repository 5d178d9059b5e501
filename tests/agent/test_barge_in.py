"""Barge-in alone: an interruption passes before its words, and turns without words do not interrupt."""

from __future__ import annotations

import asyncio
import time

from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMFullResponseStartFrame,
    TranscriptionFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.tests.utils import run_test

from agent_tts.agent.barge_in import BargeIn, EchoGuard
from agent_tts.agent.playout import Playout
from agent_tts.integrations.pipecat.service import AgentTTSService
from tests.agent.pipelines import Seen, running
from tests.agent.test_playout import Notes
from tests.support import present, until

SLOW_S = 0.3


class Slow(FrameProcessor):
    """Delays every interruption."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, InterruptionFrame):
            await asyncio.sleep(SLOW_S)
        await self.push_frame(frame, direction)


async def test_a_transcription_waits_until_the_interruption_is_committed() -> None:
    """The user's aggregator comes after the assistant's, so the heard words are in the context first.

    Mutation: no wait for `_committed`.
    """
    playout, user, assistant = Playout(Notes(), AgentTTSService()), Seen(), Seen()
    pipeline = Pipeline([BargeIn(playout, assistant), user, Slow(), playout, assistant])
    worker = PipelineWorker(pipeline, enable_rtvi=False)
    async with running(worker):
        await worker.queue_frame(LLMFullResponseStartFrame())
        await until(lambda: playout.busy)
        began = time.monotonic()
        await worker.queue_frame(TranscriptionFrame("  ", "", ""))
        await worker.queue_frame(TranscriptionFrame("Stop.", "", ""))

        def at(ear: Seen, kind: type[Frame], text: str = "") -> float | None:
            found = (a for a, frame in ear.frames if type(frame) is kind and text in getattr(frame, "text", ""))
            return next(found, None)

        await until(lambda: at(user, TranscriptionFrame, "Stop.") is not None)
        heard_at, cut_at = at(user, TranscriptionFrame, "Stop."), at(assistant, InterruptionFrame)
        assert heard_at is not None
        assert began + SLOW_S <= present(cut_at) <= heard_at
        assert len(assistant.of(InterruptionFrame)) == 1


async def test_the_echo_guard_mutes_the_voice_detector_at_the_start_of_an_answer() -> None:
    now = 0.0
    guard = EchoGuard(0.5, clock=lambda: now)
    sound = InputAudioRawFrame(b"\1\1" * 160, 16_000, 1)

    async def heard(*before: Frame) -> bytes:
        frames = [*before, InputAudioRawFrame(sound.audio, 16_000, 1)]
        down, _ = await run_test(guard, frames_to_send=frames)
        return next(frame.audio for frame in down if isinstance(frame, InputAudioRawFrame))

    assert await heard() == sound.audio
    guard = EchoGuard(0.5, clock=lambda: now)
    assert await heard(BotStartedSpeakingFrame()) == bytes(320)
    guard = EchoGuard(0.5, clock=lambda: now)
    assert await heard(BotStartedSpeakingFrame(), BotStoppedSpeakingFrame()) == sound.audio
