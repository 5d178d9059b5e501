"""Where each dialect is spoken."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.websockets import WebSocket

from agent_tts.config.settings import Settings
from agent_tts.serve.dialects import cartesia_http, deepgram_http, elevenlabs_http
from agent_tts.serve.dialects.cartesia import CartesiaCodec
from agent_tts.serve.dialects.deepgram_aura import AuraCodec
from agent_tts.serve.dialects.deepgram_flux import FluxCodec
from agent_tts.serve.dialects.elevenlabs import MultiStreamCodec, StreamCodec
from agent_tts.serve.dialects.vllm_omni import VllmOmniCodec
from agent_tts.serve.node import Node
from agent_tts.serve.transports.websocket import Dialect

# The dialect of each WebSocket path.
STREAMS: dict[str, Dialect] = {
    "/tts/websocket": Dialect("cartesia", lambda client: CartesiaCodec(_settings(client).limits), key_query="api_key"),
    "/v1/speak": Dialect(
        "aura",
        lambda client: AuraCodec(client.query_params, _settings(client).voice_aliases),
        denies=True,
        denial_header="dg-error",
    ),
    "/v2/speak": Dialect(
        "flux",
        lambda client: FluxCodec(client.query_params, _settings(client).voice_aliases),
        denies=True,
        denial_header="dg-error",
    ),
    elevenlabs_http.PATH + "/stream-input": Dialect(
        "elevenlabs",
        lambda client: StreamCodec(client.path_params["voice_id"], client.query_params, _settings(client).limits),
        key_query="authorization",
        denies=True,
    ),
    elevenlabs_http.PATH + "/multi-stream-input": Dialect(
        "elevenlabs",
        lambda client: MultiStreamCodec(client.path_params["voice_id"], client.query_params, _settings(client).limits),
        key_query="authorization",
        denies=True,
    ),
    "/v1/audio/speech/stream": Dialect("vllm_omni", lambda _: VllmOmniCodec()),
}


def router() -> APIRouter:
    """The HTTP routes of all dialects. Their node is `app.state.node`."""
    routes = APIRouter()
    for dialect in (cartesia_http, deepgram_http, elevenlabs_http):
        routes.include_router(dialect.router())
    return routes


def _settings(client: WebSocket) -> Settings:
    node: Node = client.app.state.node
    return node.settings
