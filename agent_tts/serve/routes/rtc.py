"""WebRTC signalling: `POST /v1/rtc/offer` opens a peer, `DELETE /v1/rtc/{session_id}` closes it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal

from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import BaseModel, ValidationError

from agent_tts.errors import BadMessage, Draining
from agent_tts.ipc.front_messages import ClosePeer
from agent_tts.protocol.validation import parse
from agent_tts.serve.access.supervisor_client import NO_SESSION
from agent_tts.serve.node import Node
from agent_tts.serve.routes.http import ERRORS, Authorized, Here, json_body, read_as
from agent_tts.serve.transports import ice, sdp
from agent_tts.serve.transports.rtc_peer import RtcPeer

NOT_AN_OFFER = 'an offer is JSON: {"type": "offer", "sdp": "v=0..."}'
PLAY_OUT_S = 5.0  # for audio that is made but not played when the node has drained; the engine's window is 4 s


class OfferBody(BaseModel):
    """The browser's `RTCSessionDescription`, with its candidates gathered. Other fields are ignored."""

    sdp: str
    type: Literal["offer"]


routes = APIRouter(prefix="/v1/rtc", tags=["webrtc"], responses=ERRORS)


async def close_all(node: Node) -> None:
    """Close every peer; after a drain each may first play out its audio, for `PLAY_OUT_S` at most."""
    peers = list(node.peers.values())
    if node.service.draining:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PLAY_OUT_S):
                await asyncio.gather(*(peer.wait_closed() for peer in peers))
    await asyncio.gather(*(peer.close() for peer in peers))


async def close_peer(node: Node, question: ClosePeer) -> None:
    """Close a peer of this front, and wait until it is closed. Raises `BadMessage` if the client has none like it."""
    peer = node.peers.get(question.session_id)
    if peer is None or peer.client.key_id != question.key_id:
        raise BadMessage(NO_SESSION)
    await peer.close()


@routes.post("/offer", openapi_extra=json_body(OfferBody))
async def offer(request: Request, node: Here) -> dict[str, str]:
    """Open a peer; returns the answer with the node's candidates, and the session's id."""
    client = await node.guard.identify(request, token_ok=True)
    try:
        body = await read_as(request, lambda data: OfferBody.model_validate(parse(data, NOT_AN_OFFER)))
    except ValidationError:
        raise BadMessage(NOT_AN_OFFER) from None
    wanted = sdp.read_offer(body.sdp)
    if node.settings.limits.rtc_peers == 0:
        raise HTTPException(404, "WebRTC is turned off on this node (limits.rtc_peers)")
    if node.service.draining:
        raise Draining
    with contextlib.ExitStack() as admitted:
        permit = admitted.enter_context(contextlib.closing(await node.guard.admit(client, "WebRTC peers")))
        peer = RtcPeer(node, client, permit)
        admitted.pop_all()  # it is the peer's
    try:
        answer = await peer.answer(wanted)
    except BaseException:
        await peer.close()
        raise
    return {"sdp": answer, "type": "answer", "session_id": peer.id}


@routes.get("/ice")
async def ice_servers(node: Here, client: Authorized) -> dict[str, list[dict[str, object]]]:
    """The STUN and TURN servers for `RTCPeerConnection`."""
    return {"iceServers": ice.for_browser(node.settings)}


@routes.delete("/{session_id}", status_code=204, response_class=Response)
async def hang_up(session_id: str, node: Here, client: Authorized) -> Response:
    """Close a peer of the same client, and wait until it is closed."""
    question = ClosePeer(session_id, client.key_id)
    try:
        if node.supervisor is None or node.supervisor.has(session_id):
            await close_peer(node, question)
        else:
            await node.supervisor.ask(question)
    except BadMessage:
        raise HTTPException(404, "no such WebRTC session") from None
    return Response(status_code=204)
