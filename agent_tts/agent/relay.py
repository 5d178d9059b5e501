"""The agent as an extension of a front whose calls run in processes of their own. Nothing here needs Pipecat."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from agent_tts.agent.signalling import routes
from agent_tts.config.settings import Settings
from agent_tts.errors import BadMessage
from agent_tts.ipc.front_messages import AddCandidates, BeginCall, DescribeAgent
from agent_tts.serve.access.supervisor_client import NO_SESSION, SupervisorClient
from agent_tts.serve.node import Node
from agent_tts.serve.routes.realtime import refuse_realtime

NO_REALTIME = "this node has no realtime sessions: they need agent.processes: 0"


class AgentRelay:
    """An `Extension` of a supervised front, and the `Switchboard` of its routes: it asks those that run calls."""

    _supervisor: SupervisorClient

    def install(self, app: FastAPI, node: Node) -> None:
        assert node.supervisor is not None
        self._supervisor = node.supervisor
        self._supervisor.channel.handle(AddCandidates, _refuse)
        app.state.agent = self
        app.include_router(routes)
        refuse_realtime(app, node, NO_REALTIME)  # a WebSocket stays in the front that took it

    async def start(self) -> None:
        """Nothing runs here."""

    async def close(self) -> None:
        """Nothing runs here."""

    async def describe(self) -> dict[str, Any]:
        return await self._supervisor.ask(DescribeAgent())

    async def begin(self, call: BeginCall) -> dict[str, str]:
        return await self._supervisor.ask(call)

    async def candidates(self, question: AddCandidates) -> None:
        await self._supervisor.ask(question)


def _refuse(_: AddCandidates) -> None:
    """Candidates for a call that would be of this front, by the id that a client made up."""
    raise BadMessage(NO_SESSION)


def extension(_: Settings) -> AgentRelay:
    """The extension of a front of `agent-tts agent` with `agent.processes`."""
    return AgentRelay()
