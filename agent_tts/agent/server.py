"""The agent as an extension of a node: its components, calls and routes."""

from __future__ import annotations

from fastapi import FastAPI

from agent_tts.agent.call import Build, load_build
from agent_tts.agent.calls import Calls
from agent_tts.agent.llm import LanguageModel
from agent_tts.agent.routes import router
from agent_tts.agent.stt import SpeechToText
from agent_tts.config.settings import Agent
from agent_tts.serve.node import Node


class AgentServer:
    """An `Extension` of a node.

    Args:
        build: makes the pipeline of a call; None is the file of the setting `agent.pipeline`.
        stt: speech recognition; None is the one of the settings `agent.stt`.

    Raises:
        SettingsError: the pipeline's file cannot be used.
    """

    def __init__(self, settings: Agent, build: Build | None = None, stt: SpeechToText | None = None) -> None:
        self._build = build or load_build(settings.pipeline)
        self.stt = stt or SpeechToText(settings.stt)
        self.llm = LanguageModel(settings.llm)

    def install(self, app: FastAPI, node: Node) -> None:
        self.calls = Calls(node, self.stt, self.llm, self._build)
        app.state.agent = self
        app.include_router(router())

    async def start(self) -> None:
        self.stt.start()

    async def close(self) -> None:
        await self.calls.close()
        await self.stt.close()
