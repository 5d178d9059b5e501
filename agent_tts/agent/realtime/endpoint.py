"""`GET /v1/realtime`: who may begin a session, and its refusal in OpenAI's form."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from agent_tts.agent.realtime.ear import DetectorTurns
from agent_tts.agent.realtime.session import RealtimeSession
from agent_tts.errors import SpeechError
from agent_tts.serve.node import Node
from agent_tts.serve.transports.websocket import CLOSE_CODES, deny

if TYPE_CHECKING:
    from agent_tts.agent.calls import Calls

SUBPROTOCOL = "realtime"
# Subprotocols by which browsers, which set no headers, send a key and ask for the beta.
KEY = "openai-insecure-api-key."
BETA = "openai-beta.realtime-v1"


class RealtimeEndpoint:
    """The ASGI application of the route."""

    def __init__(self, node: Node, calls: Calls) -> None:
        self._node = node
        self._calls = calls
        self._detectors = DetectorTurns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        offered: list[str] = scope.get("subprotocols", [])
        key = next((each.removeprefix(KEY) for each in offered if each.startswith(KEY)), None)
        if key is not None:
            scope["headers"] = [*scope["headers"], (b"authorization", f"Bearer {key}".encode())]
        websocket = WebSocket(scope, receive, send)
        beta = BETA in offered or websocket.headers.get("openai-beta") == "realtime=v1"
        try:
            client = await self._node.guard.identify(websocket, token_ok=True)
            async with self._calls.admitted("realtime", client) as owner:
                async with asyncio.timeout(self._node.settings.timeouts.handshake_s):
                    await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
                session = RealtimeSession(
                    self._node, websocket, send, client, self._calls.deaf, self._detectors, beta=beta
                )
                llm = await self._calls.llm.service(for_client=True)
                await session.serve(self._calls.parts(llm, session, owner))
        except SpeechError as error:
            self._node.metrics.refused.labels(error.code).inc()
            write_s = self._node.settings.timeouts.write_s
            if websocket.application_state is WebSocketState.CONNECTING:
                await deny(websocket, error, write_s)
                return
            with contextlib.suppress(Exception):  # the client may be gone
                async with asyncio.timeout(write_s):
                    await websocket.close(CLOSE_CODES.get(error.code, 1011), error.message[:120])
