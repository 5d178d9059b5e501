"""OpenAI's Realtime API on a front that has no sessions of it: an answer that says who has them."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from agent_tts.errors import UnsupportedProtocol
from agent_tts.serve.node import Node
from agent_tts.serve.transports.websocket import deny

REALTIME = "/v1/realtime"  # path of the API


def refuse_realtime(app: FastAPI, node: Node, why: str) -> None:
    """Add its routes, all of which refuse."""

    async def refuse(websocket: WebSocket) -> None:
        await deny(websocket, UnsupportedProtocol(why), node.settings.timeouts.write_s)

    async def refuse_call() -> None:
        raise UnsupportedProtocol(why)

    app.router.routes.append(WebSocketRoute(REALTIME, refuse))
    for name in ("calls", "client_secrets"):
        app.add_api_route(f"{REALTIME}/{name}", refuse_call, methods=["POST"], include_in_schema=False)
