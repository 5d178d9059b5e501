"""Where each dialect is spoken."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.websockets import WebSocket

from agent_tts.serve.dialects import elevenlabs_http
from agent_tts.serve.dialects.cartesia import CartesiaCodec
from agent_tts.serve.dialects.elevenlabs import MultiStreamCodec, StreamCodec
from agent_tts.serve.node import Node
from agent_tts.serve.websocket import Dialect
from agent_tts.settings import Limits

# The dialect of each WebSocket path.
STREAMS: dict[str, Dialect] = {
    "/tts/websocket": Dialect("cartesia", lambda client: CartesiaCodec(_limits(client)), key_query="api_key"),
    elevenlabs_http.PATH + "/stream-input": Dialect(
        "elevenlabs",
        lambda client: StreamCodec(client.path_params["voice_id"], client.query_params, _limits(client)),
        key_query="authorization",
    ),
    elevenlabs_http.PATH + "/multi-stream-input": Dialect(
        "elevenlabs",
        lambda client: MultiStreamCodec(client.path_params["voice_id"], client.query_params, _limits(client)),
        key_query="authorization",
    ),
}


def router() -> APIRouter:
    """The HTTP routes of all dialects. Their node is `app.state.node`."""
    routes = APIRouter()
    routes.include_router(elevenlabs_http.router())
    return routes


def _limits(client: WebSocket) -> Limits:
    node: Node = client.app.state.node
    return node.settings.limits
