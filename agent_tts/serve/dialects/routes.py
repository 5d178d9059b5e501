"""Where each dialect is spoken."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.websockets import WebSocket

from agent_tts.serve.dialects import cartesia_http
from agent_tts.serve.dialects.cartesia import CartesiaCodec
from agent_tts.serve.node import Node
from agent_tts.serve.websocket import Dialect
from agent_tts.settings import Limits

# The dialect of each WebSocket path.
STREAMS: dict[str, Dialect] = {
    "/tts/websocket": Dialect("cartesia", lambda client: CartesiaCodec(_limits(client)), key_query="api_key"),
}


def router() -> APIRouter:
    """The HTTP routes of all dialects. Their node is `app.state.node`."""
    routes = APIRouter()
    routes.include_router(cartesia_http.router())
    return routes


def _limits(client: WebSocket) -> Limits:
    node: Node = client.app.state.node
    return node.settings.limits
