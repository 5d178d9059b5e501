"""The agent's HTTP: a description of it, and the signalling of its calls in the shape of Pipecat's clients."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_tts.agent.calls import Calls, VoiceChoice
from agent_tts.protocol.validation import first_complaint, message_error
from agent_tts.serve.routes.http import Authorized, json_body, node_of, read_body
from agent_tts.serve.transports import ice

Body = TypeVar("Body", bound=BaseModel)


class CallOfferBody(BaseModel):
    """Pipecat's `SmallWebRTCRequest`. There is no renegotiation: another offer is another call."""

    model_config = ConfigDict(extra="ignore")
    sdp: str
    type: Literal["offer"]
    request_data: VoiceChoice | None = None


class CandidateBody(BaseModel):
    model_config = ConfigDict(extra="ignore")
    candidate: str = Field(max_length=1_000)
    sdp_mid: str = Field("0", max_length=64)
    sdp_mline_index: int = 0


class CandidatesBody(BaseModel):
    """Pipecat's `SmallWebRTCPatchRequest`."""

    model_config = ConfigDict(extra="ignore")
    pc_id: str
    candidates: list[CandidateBody]


def router() -> APIRouter:
    """`GET /api/agent`, and `POST` and `PATCH /api/agent/offer`."""
    routes = APIRouter(prefix="/api/agent", tags=["agent"])
    routes.add_api_route("", _describe, methods=["GET"])
    routes.add_api_route("/offer", _offer, methods=["POST"], openapi_extra=json_body(CallOfferBody.model_json_schema()))
    routes.add_api_route(
        "/offer",
        _patch,
        methods=["PATCH"],
        status_code=204,
        response_class=Response,
        openapi_extra=json_body(CandidatesBody.model_json_schema()),
    )
    return routes


async def _describe(request: Request, client: Authorized) -> dict[str, Any]:
    """The agent's speech recognition, language model and voice, and what is missing."""
    server, node = request.app.state.agent, node_of(request)
    info = node.service.info
    starting = "The engine is starting." if info is None else None
    tts = {"kind": info and info.engine, "name": info and info.model, "message": starting}
    return {
        "stt": asdict(server.stt.status),
        "llm": asdict(await server.llm.status()),
        "tts": tts,
        "ice_servers": ice.for_browser(node.settings),
    }


async def _offer(request: Request) -> dict[str, str]:
    """Begin a call; answers with the node's candidates."""
    client = node_of(request).guard.authorize(request.headers, request.query_params, token_ok=True)
    body = await _body(CallOfferBody, request)
    calls: Calls = request.app.state.agent.calls
    return await calls.offer(body.sdp, body.request_data or VoiceChoice(), client)


async def _patch(request: Request) -> Response:
    """Add candidates that were found after the offer."""
    client = node_of(request).guard.authorize(request.headers, request.query_params, token_ok=True)
    body = await _body(CandidatesBody, request)
    found = [(each.candidate, each.sdp_mid, each.sdp_mline_index) for each in body.candidates]
    await request.app.state.agent.calls.candidates(body.pc_id, found, client)
    return Response(status_code=204)


async def _body(shape: type[Body], request: Request) -> Body:
    try:
        return shape.model_validate_json(await read_body(request, node_of(request).settings))
    except ValidationError as error:
        raise message_error(first_complaint(error)) from None
