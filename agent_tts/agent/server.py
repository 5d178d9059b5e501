"""The agent beside a node: its parts, its calls and its routes."""

from __future__ import annotations

from fastapi import FastAPI

from agent_tts.agent.calls import Calls
from agent_tts.agent.llm import LanguageModel
from agent_tts.agent.loading import Build, load_build
from agent_tts.agent.routes import router
from agent_tts.agent.stt import SpeechToText
from agent_tts.config.settings import Agent
from agent_tts.serve.node import Node


class AgentServer:
    """A `Extension` of a node.

    Args:
        build: makes the pipeline of a call; None takes the one that `agent.pipeline` names.
        ears: what hears; None takes Whisper as `agent.stt` has it.

    Raises:
        SettingsError: there is no such pipeline.
    """

    def __init__(self, settings: Agent, build: Build | None = None, stt: SpeechToText | None = None) -> None:
        self._build = build or load_build(settings.pipeline)
        self.stt = stt or SpeechToText(settings.stt)
        self.llm = LanguageModel(settings.llm)

    def install(self, app: FastAPI, node: Node) -> None:
        """See `Extension`."""
        self.calls = Calls(node, self.stt, self.llm, self._build)
        app.state.agent = self
        app.include_router(router())

    async def start(self) -> None:
        """See `Extension`."""
        self.stt.start()

    async def close(self) -> None:
        """See `Extension`."""
        await self.calls.close()
        await self.stt.close()
