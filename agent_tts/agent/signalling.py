"""The routes of the agent, in the shape of Pipecat's clients. Nothing here needs Pipecat."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from agent_tts.ipc.front_messages import AddCandidates, BeginCall, Candidate
from agent_tts.protocol.options import Lenient
from agent_tts.protocol.validation import NOT_JSON, check_message, parse
from agent_tts.serve.access.guard import Client
from agent_tts.serve.routes.http import Authorized, json_body, node_of, read_as
from agent_tts.serve.transports import ice, sdp


class Switchboard(Protocol):
    """What the routes need of an agent, in this process or in others: `app.state.agent`."""

    async def describe(self) -> dict[str, Any]:
        """Its speech recognition and language model, and what is missing."""

    async def begin(self, call: BeginCall) -> dict[str, str]:
        """Begin a call: an answer with the node's candidates, as Pipecat's clients want it. Raises SpeechError."""

    async def candidates(self, question: AddCandidates) -> None:
        """Take candidates that a caller found later. Raises `BadMessage`."""


class VoiceChoice(BaseModel):
    """The voice that a caller asks for; None is the node's choice."""

    model_config = ConfigDict(frozen=True)
    voice: str | None = Field(None, max_length=200)
    language: str | None = Field(None, max_length=100)
    instructions: str | None = Field(None, max_length=4_000)


Body = TypeVar("Body", bound=BaseModel)


class CallOfferBody(BaseModel):
    """Pipecat's `SmallWebRTCRequest`. There is no renegotiation: another offer is another call.

    A client that has lost its connection names its last call, which then ends first.
    """

    sdp: str
    type: Literal["offer"]
    pc_id: str | None = Field(None, max_length=200)
    # Pipecat's clients in JavaScript send the second name.
    request_data: VoiceChoice | None = Field(None, validation_alias=AliasChoices("request_data", "requestData"))


class CandidateBody(Lenient):
    candidate: str = Field(max_length=1_000)
    # A browser has null for what it does not know.
    sdp_mid: str = Field("0", max_length=64)
    sdp_mline_index: int = Field(0, ge=0, le=sdp.MAX_LINES)


class CandidatesBody(BaseModel):
    """Pipecat's `SmallWebRTCPatchRequest`."""

    pc_id: str = Field(max_length=200)
    candidates: list[CandidateBody] = Field(max_length=sdp.MAX_CANDIDATES)


routes = APIRouter(prefix="/api/agent", tags=["agent"])


@routes.get("")
async def describe(request: Request, client: Authorized) -> dict[str, Any]:
    """The agent's speech recognition, language model and voice, and what is missing."""
    agent: Switchboard = request.app.state.agent
    node = node_of(request)
    info = node.service.info
    starting = "The engine is starting." if info is None else None
    return await agent.describe() | {
        "tts": {"kind": info and info.engine, "name": info and info.model, "message": starting},
        "ice_servers": ice.for_browser(node.settings),
        "level_db": node.settings.agent.level_db,
    }


@routes.post("/offer", openapi_extra=json_body(CallOfferBody))
async def offer(request: Request) -> dict[str, str]:
    """Begin a call; answers with the node's candidates."""
    agent, client, body = await _signal(CallOfferBody, request)
    choice = body.request_data or VoiceChoice()
    return await agent.begin(
        BeginCall(body.sdp, body.pc_id, choice.voice, choice.language, choice.instructions, client.key_id, client.token)
    )


@routes.patch(
    "/offer",
    status_code=204,
    response_class=Response,
    openapi_extra=json_body(CandidatesBody),
)
async def add_candidates(request: Request) -> None:
    """Add candidates that were found after the offer."""
    agent, client, body = await _signal(CandidatesBody, request)
    await node_of(request).guard.redeem(client)
    found = [Candidate(each.candidate, each.sdp_mid, each.sdp_mline_index) for each in body.candidates]
    await agent.candidates(AddCandidates(body.pc_id, client.key_id, tuple(found)))


async def _signal(shape: type[Body], request: Request) -> tuple[Switchboard, Client, Body]:
    """Who sends a message of signalling, and what."""
    node = node_of(request)
    client = await node.guard.identify(request, token_ok=True)
    body = await read_as(request, lambda body: check_message(shape, parse(body, NOT_JSON)))
    return request.app.state.agent, client, body
