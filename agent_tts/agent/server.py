"""The agent as an extension of a node: its components, and its routes in the shape of Pipecat's clients."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from pydantic import BaseModel, Field, ValidationError

from agent_tts.agent.call import Build, load_build
from agent_tts.agent.calls import Calls, VoiceChoice
from agent_tts.agent.llm import LanguageModel
from agent_tts.agent.stt import SpeechToText
from agent_tts.config.settings import Agent, Settings
from agent_tts.ipc.front_messages import AddCandidates, Candidate
from agent_tts.protocol.validation import first_complaint, message_error
from agent_tts.serve.guard import Client
from agent_tts.serve.node import Node
from agent_tts.serve.routes.http import Authorized, json_body, node_of, read_body
from agent_tts.serve.transports import ice, sdp

Body = TypeVar("Body", bound=BaseModel)


class CallOfferBody(BaseModel):
    """Pipecat's `SmallWebRTCRequest`. There is no renegotiation: another offer is another call."""

    sdp: str
    type: Literal["offer"]
    request_data: VoiceChoice | None = None


class CandidateBody(BaseModel):
    candidate: str = Field(max_length=1_000)
    sdp_mid: str = Field("0", max_length=64)
    sdp_mline_index: int = Field(0, ge=0, le=sdp.MAX_LINES)


class CandidatesBody(BaseModel):
    """Pipecat's `SmallWebRTCPatchRequest`."""

    pc_id: str = Field(max_length=200)
    candidates: list[CandidateBody] = Field(max_length=sdp.MAX_CANDIDATES)


class AgentServer:
    """An `Extension` of a node. Raises SettingsError: the pipeline's file cannot be used.

    Args:
        build: makes the pipeline of a call; None is the file of the setting `agent.pipeline`.
        stt: speech recognition; None is the one of the settings `agent.stt`.
    """

    def __init__(self, settings: Agent, build: Build | None = None, stt: SpeechToText | None = None) -> None:
        self._build = build or load_build(settings.pipeline)
        self.stt = stt or SpeechToText(settings.stt)
        self.llm = LanguageModel(settings.llm)

    def install(self, app: FastAPI, node: Node) -> None:
        self.calls = Calls(node, self.stt, self.llm, self._build)
        if node.supervision is not None:
            node.supervision.channel.handle(AddCandidates, self.calls.candidates)
        app.state.agent = self
        app.include_router(routes)

    async def start(self) -> None:
        self.stt.start()

    async def close(self) -> None:
        await self.calls.close()
        await self.stt.close()


def extension(settings: Settings) -> AgentServer:
    """The extension of `agent-tts agent`."""
    return AgentServer(settings.agent)


routes = APIRouter(prefix="/api/agent", tags=["agent"])


@routes.get("")
async def describe(request: Request, client: Authorized) -> dict[str, Any]:
    """The agent's speech recognition, language model and voice, and what is missing."""
    server: AgentServer = request.app.state.agent
    node = node_of(request)
    info = node.service.info
    starting = "The engine is starting." if info is None else None
    return {
        "stt": asdict(server.stt.status),
        "llm": asdict(await server.llm.status()),
        "tts": {"kind": info and info.engine, "name": info and info.model, "message": starting},
        "ice_servers": ice.for_browser(node.settings),
    }


@routes.post("/offer", openapi_extra=json_body(CallOfferBody))
async def offer(request: Request) -> dict[str, str]:
    """Begin a call; answers with the node's candidates."""
    calls, client, body = await _signal(CallOfferBody, request)
    return await calls.offer(body.sdp, body.request_data or VoiceChoice(), client)


@routes.patch(
    "/offer",
    status_code=204,
    response_class=Response,
    openapi_extra=json_body(CandidatesBody),
)
async def add_candidates(request: Request) -> None:
    """Add candidates that were found after the offer."""
    calls, client, body = await _signal(CandidatesBody, request)
    await node_of(request).guard.redeem(client)
    found = [Candidate(each.candidate, each.sdp_mid, each.sdp_mline_index) for each in body.candidates]
    question, supervision = AddCandidates(body.pc_id, client.key_id, tuple(found)), node_of(request).supervision
    if supervision is None or supervision.has(body.pc_id):
        await calls.candidates(question)
    else:
        await supervision.at_owner(question)


async def _signal(shape: type[Body], request: Request) -> tuple[Calls, Client, Body]:
    """Who sends a message of signalling, and what."""
    node = node_of(request)
    client = await node.guard.identify(request, token_ok=True)
    try:
        body = shape.model_validate_json(await read_body(request))
    except ValidationError as error:
        raise message_error(first_complaint(error)) from None
    return request.app.state.agent.calls, client, body
