"""One conversation: what its pipeline is built of."""

from __future__ import annotations

from dataclasses import dataclass

from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.stt_service import STTService
from pipecat.transports.base_transport import BaseTransport

from agent_tts.agent.turns import Turns
from agent_tts.config.settings import Agent
from agent_tts.integrations.pipecat import AgentTTSService


@dataclass(frozen=True, slots=True)
class Call:
    """What `build(call)` of a pipeline's file is given; it gives a `Pipeline`."""

    id: str
    settings: Agent
    transport: BaseTransport
    stt: STTService | None  # None: the user types
    llm: FrameProcessor  # a language model, or the built-in responder
    tts: AgentTTSService  # in this process
    turns: Turns  # follows the call; to be given to its `Playout`
