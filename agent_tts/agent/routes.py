"""The agent's HTTP: what it is made of, and the signalling of its calls in the shape of Pipecat's clients."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_tts.agent.calls import Calls, VoiceChoice
from agent_tts.errors import BadMessage
from agent_tts.serve.node import Node
from agent_tts.serve.routes.http import Authorized, read_body
from agent_tts.serve.transports import ice

Body = TypeVar("Body", bound=BaseModel)


class CallOfferBody(BaseModel):
    """Pipecat's `SmallWebRTCRequest`. A call is not negotiated anew: another offer is another call."""

    model_config = ConfigDict(extra="ignore")
    sdp: str
    type: Literal["offer"]
    request_data: VoiceChoice | None = None


class CandidateBody(BaseModel):
    """One candidate of the caller."""

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
    routes.add_api_route("/offer", _offer, methods=["POST"], openapi_extra=_takes(CallOfferBody))
    routes.add_api_route(
        "/offer",
        _patch,
        methods=["PATCH"],
        status_code=204,
        response_class=Response,
        openapi_extra=_takes(CandidatesBody),
    )
    return routes


async def _describe(request: Request, client: Authorized) -> dict[str, Any]:
    """What hears, answers and speaks here, and why something else does not."""
    server, node = request.app.state.agent, _node(request)
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
    """Begin a call: an answer with the node's candidates."""
    node = _node(request)
    client = node.guard.authorize(request.headers, request.query_params, token_ok=True)
    body = _parse(CallOfferBody, await read_body(request, node.settings))
    calls: Calls = request.app.state.agent.calls
    return await calls.offer(body.sdp, body.request_data or VoiceChoice(), client)


async def _patch(request: Request) -> Response:
    """Take candidates that were found after the offer."""
    node = _node(request)
    client = node.guard.authorize(request.headers, request.query_params, token_ok=True)
    body = _parse(CandidatesBody, await read_body(request, node.settings))
    found = [(each.candidate, each.sdp_mid, each.sdp_mline_index) for each in body.candidates]
    await request.app.state.agent.calls.candidates(body.pc_id, found, client)
    return Response(status_code=204)


def _node(request: Request) -> Node:
    node: Node = request.app.state.node
    return node


def _takes(body: type[BaseModel]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": body.model_json_schema()}}}}


def _parse(shape: type[Body], body: bytes) -> Body:
    try:
        return shape.model_validate_json(body)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) or "the body"
        raise BadMessage(f"{where}: {error.errors()[0]['msg']}") from None
