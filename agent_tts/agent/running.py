"""Runs the pipeline of one call until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from loguru import logger
from pipecat.frames.frames import TTSUpdateSettingsFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frameworks.rtvi.models import ClientMessage
from pipecat.processors.frameworks.rtvi.processor import RTVIProcessor
from pipecat.workers.runner import WorkerRunner

from agent_tts.agent.call import Call
from agent_tts.integrations.pipecat import AgentTTSService

IN_RATE = 16_000  # Hz, of VAD, smart turn and Whisper
CHECK_S = 0.5  # between two checks whether the caller is gone
END_S = 5.0  # for a pipeline to end
VOICE_FIELDS = ("voice", "language", "instructions")


def make_worker(call: Call, pipeline: Pipeline, out_rate: int, *, rtvi: bool) -> PipelineWorker:
    """A worker for the pipeline.

    Args:
        out_rate: sample rate of the output, Hz.
        rtvi: whether the caller speaks RTVI on a data channel.
    """
    return PipelineWorker(
        pipeline,
        params=PipelineParams(
            audio_in_sample_rate=IN_RATE, audio_out_sample_rate=out_rate, enable_metrics=True, enable_usage_metrics=True
        ),
        observers=[call.turns],
        enable_rtvi=rtvi,
        enable_turn_tracking=False,
        idle_timeout_secs=call.settings.idle_s,
    )


async def run(call: Call, worker: PipelineWorker, gone: Callable[[], str | None]) -> None:
    """Run until the caller is gone or the pipeline ends. Cancelling it ends the pipeline within `END_S`.

    Args:
        gone: the reason why the call must end now, or None; called every `CHECK_S`.
    """
    runner = WorkerRunner(handle_sigint=False, check_dangling_tasks=False)
    await runner.add_workers(worker)
    task = asyncio.create_task(runner.run(), name=f"pipeline of call {call.id}")
    try:
        while not task.done() and (why := gone()) is None:
            await asyncio.wait([task], timeout=CHECK_S)
        if not task.done():
            logger.info("agent: call {}: {}", call.id, why)
    finally:
        await runner.cancel()
        _, late = await asyncio.wait([task], timeout=END_S)
        if late:
            logger.error("agent: call {}: its pipeline did not end in {:g} s", call.id, END_S)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def listen_to_page(call: Call, worker: PipelineWorker) -> None:
    """Handle the page's own RTVI messages: a change of the voice, and what the page measured."""
    rtvi = worker.rtvi

    async def on_client_message(_: RTVIProcessor, message: ClientMessage) -> None:
        data = message.data if isinstance(message.data, dict) else {}
        if message.type == "voice":
            wanted = {name: data[name] for name in VOICE_FIELDS if name in data and isinstance(data[name], str | None)}
            given = AgentTTSService.Settings(**wanted)
            await worker.queue_frame(TTSUpdateSettingsFrame(delta=given))
        elif message.type in ("heard", "silent"):
            call.turns.page(message.type, data.get("ms"))
        else:
            await rtvi.send_error_response(message, "the types are voice, heard and silent")

    rtvi.add_event_handler("on_client_message", on_client_message)
