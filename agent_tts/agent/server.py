"""The agent as an extension of a node: its components, its calls and its routes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from starlette.routing import WebSocketRoute

from agent_tts.agent.call import load_build
from agent_tts.agent.calls import Calls
from agent_tts.agent.detectors import share_models
from agent_tts.agent.llm import LanguageModel
from agent_tts.agent.realtime.endpoint import RealtimeEndpoint
from agent_tts.agent.realtime.endpoint import routes as realtime_routes
from agent_tts.agent.signalling import routes
from agent_tts.agent.stt import SpeechToText
from agent_tts.config.settings import Agent, Settings
from agent_tts.ipc.front_messages import AddCandidates, BeginCall, DescribeAgent
from agent_tts.serve.node import Node
from agent_tts.serve.routes.realtime import REALTIME


class AgentServer:
    """An `Extension` of a node, and the `Switchboard` of its routes.

    Raises SettingsError: the pipeline's file cannot be used.

    Args:
        stt: speech recognition; None is the one of the settings `agent.stt`.
    """

    def __init__(self, settings: Agent, stt: SpeechToText | None = None) -> None:
        share_models()
        self._build = load_build(settings.pipeline)
        self.stt = stt or SpeechToText(settings.stt, settings.calls)
        self.llm = LanguageModel(settings.llm)

    def install(self, app: FastAPI, node: Node) -> None:
        self.calls = Calls(node, self.stt, self.llm, self._build)
        self._supervisor = node.supervisor
        if node.supervisor is not None:
            channel = node.supervisor.channel
            channel.handle(AddCandidates, self.calls.candidates)
            channel.handle(BeginCall, self.begin)
            channel.handle(DescribeAgent, lambda _: self.describe())
        app.state.agent = self
        app.include_router(routes)
        self.realtime = app.state.realtime = RealtimeEndpoint(node, self.calls)
        app.include_router(realtime_routes)
        app.router.routes.append(WebSocketRoute(REALTIME, self.realtime))

    async def start(self) -> None:
        self.stt.start()
        await self.llm.start()

    async def close(self) -> None:
        await self.calls.close()
        await self.llm.close()
        await self.stt.close()

    async def describe(self) -> dict[str, Any]:
        return {"stt": asdict(self.stt.status), "llm": asdict(await self.llm.status())}

    async def begin(self, call: BeginCall) -> dict[str, str]:
        return await self.calls.offer(call)

    async def candidates(self, question: AddCandidates) -> None:
        if self._supervisor is None or self._supervisor.has(question.session_id):
            await self.calls.candidates(question)
        else:
            await self._supervisor.ask(question)


def extension(settings: Settings) -> AgentServer:
    """The extension of `agent-tts agent`."""
    return AgentServer(settings.agent)
