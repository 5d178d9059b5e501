"""A pipeline while it runs, and a processor that notes what passes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pipecat.frames.frames import Frame
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.workers.runner import WorkerRunner


class Seen(FrameProcessor):
    """Notes each frame, and when it passes."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[float, Frame]] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.frames.append((time.monotonic(), frame))
        await self.push_frame(frame, direction)

    def of(self, kind: type[Frame]) -> list[tuple[float, Any]]:
        return [(at, frame) for at, frame in self.frames if isinstance(frame, kind)]


@asynccontextmanager
async def running(worker: PipelineWorker) -> AsyncIterator[None]:
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    task = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        await runner.cancel()
        await task
