"""A running Pipecat pipeline that a test writes to and listens to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    OutputAudioRawFrame,
    StartFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner

from tests.support import until

F = TypeVar("F", bound=Frame)

LIMIT_S = 20.0


class Ear(FrameProcessor):
    """Records every frame that passes."""

    def __init__(self, direction: FrameDirection) -> None:
        super().__init__()
        self.frames: list[Frame] = []
        self._direction = direction

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction is self._direction:
            self.frames.append(frame)
        await self.push_frame(frame, direction)


class Loudspeaker(BaseOutputTransport):
    """Plays in real time without a device. Words leave it when they are heard, as with any transport."""

    def __init__(self, pieces: int = 4) -> None:
        """`pieces` of 10 ms are played at once."""
        super().__init__(TransportParams(audio_out_enabled=True, audio_out_10ms_chunks=pieces))
        self.played = b""
        # The longest silence between two pieces of a turn, and when the last was heard.
        self.paused_s = 0.0
        self._heard_at: float | None = None

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    def rest(self) -> None:
        """A turn is over: the silence before the next one does not count."""
        self.paused_s, self._heard_at = 0.0, None

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        loop = asyncio.get_running_loop()
        if self._heard_at is not None:
            self.paused_s = max(self.paused_s, loop.time() - self._heard_at)
        await asyncio.sleep(len(frame.audio) / 2 / frame.sample_rate)
        self.played += frame.audio
        self._heard_at = loop.time()
        return True


class Running:
    """A running pipeline."""

    def __init__(self, worker: PipelineWorker, up: Ear, down: Ear) -> None:
        self._worker = worker
        self._up = up
        self._down = down

    def down(self, kind: type[F]) -> list[F]:
        """Frames of a type that have left the pipeline so far."""
        return [frame for frame in self._down.frames if isinstance(frame, kind)]

    @property
    def errors(self) -> list[str]:
        return [frame.error for frame in self._up.frames if isinstance(frame, ErrorFrame)]

    @property
    def words(self) -> list[str]:
        return [frame.text for frame in self.down(TTSTextFrame)]

    def pcm(self, context_id: str | None = None) -> bytes:
        frames = self.down(TTSAudioRawFrame)
        return b"".join(frame.audio for frame in frames if context_id in (None, frame.context_id))

    @property
    def contexts(self) -> list[str | None]:
        """Ids of the audio contexts heard, in order."""
        return list(dict.fromkeys(frame.context_id for frame in self.down(TTSAudioRawFrame)))

    async def send(self, *frames: Frame) -> None:
        await self._worker.queue_frames(list(frames))

    async def begin(self, *tokens: str) -> None:
        """Start an answer of the LLM."""
        await self.send(LLMFullResponseStartFrame(), *map(LLMTextFrame, tokens))

    async def end(self) -> None:
        """End the answer of the LLM."""
        await self.send(LLMFullResponseEndFrame())

    async def finish(self) -> None:
        """End the answer of the LLM, and wait until it is spoken."""
        ended = len(self.down(LLMFullResponseEndFrame))
        await self.end()
        await until(lambda: len(self.down(LLMFullResponseEndFrame)) > ended, LIMIT_S)

    async def turn(self, *tokens: str) -> None:
        """A whole answer of the LLM, until it is spoken."""
        await self.begin(*tokens)
        await self.finish()

    async def interrupt(self) -> None:
        """Send an interruption by the user."""
        seen = len(self.down(InterruptionFrame))
        await self.send(InterruptionFrame())
        await until(lambda: len(self.down(InterruptionFrame)) > seen, LIMIT_S)


def said(context: LLMContext) -> list[str]:
    """The assistant's messages in the LLM's context."""
    return [str(message["content"]) for message in context.get_messages() if isinstance(message, dict)]


@asynccontextmanager
async def running(
    processors: Iterable[FrameProcessor], *, after: Iterable[FrameProcessor] = (), sample_rate: int = 24_000
) -> AsyncIterator[Running]:
    """A pipeline of these processors and, after the recorded output, of others. All its speech ends before it does."""
    up, down = Ear(FrameDirection.UPSTREAM), Ear(FrameDirection.DOWNSTREAM)
    params = PipelineParams(
        audio_in_sample_rate=24_000, audio_out_sample_rate=sample_rate, enable_metrics=True, enable_usage_metrics=True
    )
    worker = PipelineWorker(Pipeline([up, *processors, down, *after]), params=params, enable_rtvi=False)
    started = asyncio.Event()

    @worker.event_handler("on_pipeline_started")  # pyrefly: ignore[untyped-function-decorator]
    async def on_pipeline_started(*_: object) -> None:
        started.set()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    task = asyncio.create_task(runner.run(), name="pipeline")
    try:
        async with asyncio.timeout(LIMIT_S):
            await started.wait()
        yield Running(worker, up, down)
        await worker.queue_frame(EndFrame())
        async with asyncio.timeout(LIMIT_S):
            await task
    finally:
        if not task.done():
            await worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
