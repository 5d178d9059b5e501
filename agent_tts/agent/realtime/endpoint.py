"""OpenAI's Realtime API: who may begin a session over a WebSocket or WebRTC, and its refusal in OpenAI's form."""

from __future__ import annotations

import asyncio
import contextlib
import json
import zlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from agent_tts.agent.realtime.ear import DetectorTurns
from agent_tts.agent.realtime.lines import RtcLine, WebSocketLine
from agent_tts.agent.realtime.session import RealtimeSession, check_voice, new_id
from agent_tts.agent.realtime.shapes import SessionSettings, Shape, checked, merged
from agent_tts.errors import InvalidRequest, SpeechError
from agent_tts.protocol.validation import NOT_JSON, parse
from agent_tts.serve.access.guard import Client
from agent_tts.serve.node import Node
from agent_tts.serve.routes import multipart
from agent_tts.serve.routes.http import ERRORS, Authorized, json_body, node_of, read_as
from agent_tts.serve.routes.realtime import REALTIME
from agent_tts.serve.transports import sdp
from agent_tts.serve.transports.websocket import CLOSE_CODES, close_reason, deny
from agent_tts.voices import OPENAI_VOICES

if TYPE_CHECKING:
    from agent_tts.agent.calls import Calls

SUBPROTOCOL = "realtime"
BETA = "openai-beta.realtime-v1"  # a subprotocol by which browsers, which set no headers, ask for the beta
MAX_CARRIED = 6_000  # bytes of a packed session in a client secret, which clients send in a header


class RealtimeEndpoint:
    """Sessions of a node, over WebSockets and WebRTC."""

    def __init__(self, node: Node, calls: Calls) -> None:
        self._node = node
        self._calls = calls
        self._detectors = DetectorTurns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application of the WebSocket's route."""
        offered: list[str] = scope.get("subprotocols", [])
        websocket = WebSocket(scope, receive, send)
        beta = BETA in offered or websocket.headers.get("openai-beta") == "realtime=v1"
        try:
            client = await self._node.guard.identify(websocket, token_ok=True, secret_ok=True)
            start = self.start(websocket.query_params, client)
            async with self._calls.admitted("realtime", client) as owner:
                async with asyncio.timeout(self._node.settings.timeouts.handshake_s):
                    await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
                line = WebSocketLine(self._node, websocket, send, client)
                session = RealtimeSession(
                    self._node, line, client, start, self._calls.deaf, self._detectors, beta=beta and start.responds
                )
                await self._serve(session, owner)
        except SpeechError as error:
            self._node.metrics.refused.labels(error.code).inc()
            write_s = self._node.settings.timeouts.write_s
            if websocket.application_state is WebSocketState.CONNECTING:
                await deny(websocket, error, write_s)
                return
            with contextlib.suppress(Exception):  # the client may be gone
                async with asyncio.timeout(write_s):
                    await websocket.close(CLOSE_CODES.get(error.code, 1011), close_reason(error.message))

    def start(
        self, query: Mapping[str, str], client: Client, given: Mapping[str, Any] | None = None
    ) -> SessionSettings:
        """The settings with which a session begins: the node's, those of a client secret, those that are given.

        Raises `InvalidRequest`.
        """
        settings = SessionSettings(instructions=self._node.settings.agent.llm.instructions, model=query.get("model"))
        asked = {"type": "transcription"} if query.get("intent") == "transcription" else {}
        carried = json.loads(zlib.decompress(client.carried)) if client.carried else {}
        for more in (asked, carried, given or {}):
            settings = merged(settings, more, "session")
        voice = settings.audio.output.voice
        if voice is not None and voice not in OPENAI_VOICES:
            check_voice(self._node, voice)
        return settings

    async def call(self, offer: sdp.Offer, client: Client, start: SessionSettings) -> tuple[str, str]:
        """Begin a session over WebRTC; returns its id and the answer to the offer. Raises `SpeechError`."""
        async with contextlib.AsyncExitStack() as resources:
            owner = await resources.enter_async_context(self._calls.admitted("realtime", client))
            line = RtcLine(self._node, client)
            resources.push_async_callback(line.close, 1000)
            session = RealtimeSession(self._node, line, client, start, self._calls.deaf, self._detectors)
            answer = await line.answer(offer)
            call_id = new_id("rtc")
            self._calls.own(f"realtime call {call_id}", partial(self._serve, session, owner), resources, session, line)
        return call_id, answer

    async def _serve(self, session: RealtimeSession, owner: int) -> None:
        llm = await self._calls.llm.service(for_client=True)
        await session.serve(self._calls.parts(llm, session, owner))


class ExpiresAfter(Shape):
    anchor: Literal["created_at"] = "created_at"
    seconds: int = Field(600, ge=10, le=7_200)


class ClientSecretBody(Shape):
    """OpenAI's request of a client secret."""

    expires_after: ExpiresAfter = ExpiresAfter()
    session: dict[str, Any] = Field({})


routes = APIRouter(prefix=REALTIME, tags=["realtime"], responses=ERRORS)


@routes.post("/client_secrets", openapi_extra=json_body(ClientSecretBody))
async def create_client_secret(request: Request, client: Authorized) -> Response:
    """A key for a page that begins realtime sessions of this kind, until it expires."""
    endpoint: RealtimeEndpoint = request.app.state.realtime
    given = await read_as(request, lambda body: parse(body, NOT_JSON) if body else {})
    body: ClientSecretBody = checked(ClientSecretBody, given)
    settings = endpoint.start({}, client, body.session)
    content = await node_of(request).computing(zlib.compress, json.dumps(body.session).encode())
    if len(content) > MAX_CARRIED:
        raise InvalidRequest(
            f"session: at most {MAX_CARRIED} bytes when packed: send the rest by session.update", "session"
        )
    value, expires_at = node_of(request).guard.issue_secret(client, body.expires_after.seconds, content)
    told = {"value": value, "expires_at": round(expires_at), "session": settings.described(new_id("sess"))}
    return Response(json.dumps(told), media_type="application/json")  # a text of a client's may be no UTF-8


_OFFER = {"requestBody": {"required": True, "content": {"application/sdp": {}, multipart.CONTENT_TYPE: {}}}}


@routes.post("/calls", status_code=201, response_class=Response, openapi_extra=_OFFER)
async def create_call(request: Request) -> Response:
    """Begin a realtime session over WebRTC: an offer, alone or in a form with `session`; returns the answer's SDP."""
    node, endpoint = node_of(request), request.app.state.realtime
    client = await node.guard.identify(request, token_ok=True, secret_ok=True)
    content_type = request.headers.get("content-type", "")
    if content_type.startswith(multipart.CONTENT_TYPE):
        form = await read_as(request, lambda body: multipart.parse(content_type, body))
        text, session = _text(form.get("sdp", "")), parse(_text(form.get("session", "{}")), "session: JSON is needed")
    else:
        text, session = await read_as(request, _text), {}
    start = endpoint.start(request.query_params, client, session)
    if not start.responds:
        raise InvalidRequest("a call is no transcription session: use the WebSocket", "session.type")
    call_id, answer = await endpoint.call(sdp.read_offer(text, microphone=True), client, start)
    location = {"Location": f"{REALTIME}/calls/{call_id}"}
    return Response(answer, 201, location, media_type="application/sdp")


def _text(part: str | bytes) -> str:
    return part if isinstance(part, str) else part.decode(errors="replace")
