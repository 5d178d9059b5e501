"""One call: what a pipeline's file is given for it, how that file is loaded, and how its pipeline is run."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loguru import logger
from pipecat.frames.frames import Frame, InputTransportMessageFrame, TTSUpdateSettingsFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.processors.frameworks.rtvi.models import MESSAGE_LABEL, ClientMessage
from pipecat.processors.frameworks.rtvi.processor import RTVIProcessor
from pipecat.services.stt_service import STTService
from pipecat.transports.base_transport import BaseTransport
from pipecat.workers.runner import WorkerRunner

from agent_tts.agent.fillers import Fillers
from agent_tts.agent.turns import Turns
from agent_tts.config.loading import data_folder
from agent_tts.config.settings import Agent
from agent_tts.errors import SettingsError
from agent_tts.integrations.pipecat.service import AgentTTSService

IN_RATE = 16_000  # Hz, of VAD, smart turn and Whisper
CHECK_S = 0.5  # between two checks whether the caller is gone
END_S = 5.0  # for a pipeline to end
LEFT_S = 3.0  # after its end nothing of a pipeline and its connection is used
VOICE_FIELDS = ("voice", "language", "instructions")
# RTVI messages that are taken. Pipecat takes files by URL, too, which it fetches, and keys and audio past all limits.
MESSAGE_TYPES = ("client-ready", "client-message", "send-text", "disconnect-bot")


@dataclass(frozen=True, slots=True)
class Call:
    """The argument of `build(call)`, which a pipeline's file defines and which returns a `Pipeline`."""

    id: str
    settings: Agent
    transport: BaseTransport
    stt: STTService | None  # None: the user types
    llm: FrameProcessor  # a language model, or the built-in responder
    fillers: Fillers | None  # between the two; None: they are off
    tts: AgentTTSService  # in this process
    turns: Turns  # observes the call; the argument of its `Playout`


Build = Callable[[Call], Pipeline]
Gone = Callable[[], str | None]  # gives the reason why a call must end now; None: there is none


def load_build(path: str | None) -> Build:
    """The `build` of a Python file; None is `pipelines/voice_agent.py`. Raises SettingsError: there is none."""
    file = data_folder("pipelines") / "voice_agent.py" if path is None else Path(path).expanduser()
    spec = importlib.util.spec_from_file_location(f"agent_tts_pipeline_{file.stem}", file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise SettingsError(f"agent.pipeline: {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise SettingsError(f"agent.pipeline: {file.name} cannot be run: {type(error).__name__}: {error}") from error
    build: Build | None = getattr(module, "build", None)
    if not callable(build):
        raise SettingsError(f"agent.pipeline: {file.name} has no function build(call)")
    return build


async def run(
    call: Call, pipeline: Pipeline, out_rate: int, gone: Gone, *, page: bool = False, idle_s: float | None = None
) -> None:
    """Run until the pipeline ends, or `gone`, called every `CHECK_S`, gives a reason why the call must end.

    Cancelling it ends the pipeline within `END_S`.

    Args:
        out_rate: sample rate of the output, Hz.
        page: whether the caller is the node's page or another client that speaks RTVI on a data channel.
        idle_s: the pipeline ends after so long without speech; None: `gone` tells.
    """
    worker = PipelineWorker(
        pipeline,
        params=PipelineParams(
            audio_in_sample_rate=IN_RATE, audio_out_sample_rate=out_rate, enable_metrics=True, enable_usage_metrics=True
        ),
        observers=[call.turns],
        enable_rtvi=page,
        rtvi_processor=PageMessages(call.turns) if page else None,
        enable_turn_tracking=False,
        idle_timeout_secs=idle_s,
    )
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
        asyncio.get_running_loop().call_later(LEFT_S, _dismantle, pipeline)


def _dismantle(processor: FrameProcessor) -> None:
    """Free what a processor and those in it hold.

    They hold each other in cycles, which a node collects seldom, because it stands still meanwhile.
    """
    for each in processor.processors:
        _dismantle(each)
    vars(processor).clear()


class PageMessages(RTVIProcessor):
    """Pipecat's processor, for the messages of `MESSAGE_TYPES`; others are refused, each with an error.

    The page has messages of its own: a change of the voice, and what it measured.
    """

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns
        self.add_event_handler("on_client_message", self._take)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        message = frame.message if isinstance(frame, InputTransportMessageFrame) else None
        if message is None or (message.get("label") == MESSAGE_LABEL and message["type"] in MESSAGE_TYPES):
            await super().process_frame(frame, direction)
        else:
            refused = ClientMessage(msg_id=str(message.get("id", ""))[:64], type="")
            await self.send_error_response(refused, f"the messages are {', '.join(MESSAGE_TYPES)}")

    async def _take(self, _: RTVIProcessor, message: ClientMessage) -> None:
        data = message.data if isinstance(message.data, dict) else {}
        if message.type == "voice":
            wanted = {name: data[name] for name in VOICE_FIELDS if name in data and isinstance(data[name], str | None)}
            await self.push_frame(TTSUpdateSettingsFrame(delta=AgentTTSService.Settings(**wanted)))
        elif message.type in ("heard", "silent"):
            self._turns.page(message.type, data.get("ms"))
        else:
            await self.send_error_response(message, "the types are voice, heard and silent")
