"""Where each dialect is spoken."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.websockets import WebSocket

from agent_tts.serve.dialects.deepgram_aura import AuraCodec
from agent_tts.serve.dialects.deepgram_flux import FluxCodec
from agent_tts.serve.websocket import Dialect


def _flux(websocket: WebSocket) -> FluxCodec:
    return FluxCodec(websocket.query_params, websocket.app.state.node.settings.voice_aliases)


def _aura(websocket: WebSocket) -> AuraCodec:
    return AuraCodec(websocket.query_params, websocket.app.state.node.settings.voice_aliases)


# The dialect of each WebSocket path.
STREAMS: dict[str, Dialect] = {
    "/v2/speak": Dialect("deepgram_flux", _flux),
    "/v1/speak": Dialect("deepgram_aura", _aura),
}


def router() -> APIRouter:
    """The HTTP routes of all dialects. Their node is `app.state.node`."""
    return APIRouter()
