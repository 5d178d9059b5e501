"""The HTTP routes: speech in OpenAI's shape, models, voices, tokens, health and metrics.

`/health` and `/ready` answer everybody; all others, `/metrics` too, want a key when keys are configured.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from agent_tts.errors import (
    RETRY_MS,
    BadMessage,
    EngineLost,
    Internal,
    InvalidRequest,
    RequestTimeout,
    SpeechError,
    TextTooLong,
    Unsupported,
)
from agent_tts.events import EngineInfo
from agent_tts.serve import openai
from agent_tts.serve.encode import CONTENT_TYPES
from agent_tts.serve.guard import Client, authorized
from agent_tts.serve.node import Node
from agent_tts.serve.speech_response import SpeechResponse
from agent_tts.settings import Settings


class Token(BaseModel):
    """A one-time token for a browser."""

    token: str
    expires_in: float  # seconds


class Status(BaseModel):
    """Whether something is as it should be."""

    status: str


# ---------------------------------------------------------------- routes


Authorized = Annotated[Client, Depends(authorized)]

_BYTES = {"schema": {"type": "string", "format": "binary"}}
_TEXT = {"schema": {"type": "string"}}
_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": openai.ErrorBody}, "5XX": {"model": openai.ErrorBody}}
_SPEECH: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The audio file, or `speech.audio.delta` events with its bytes, sent while it is made.",
        "content": dict.fromkeys(CONTENT_TYPES.values(), _BYTES) | {"text/event-stream": {}},
    }
}
_NOT_NOW: dict[int | str, dict[str, Any]] = {503: {"model": Status}}
_METRICS: dict[int | str, dict[str, Any]] = {200: {"content": {CONTENT_TYPE_LATEST: _TEXT}}}


def router() -> APIRouter:
    """All routes of this module. Their node is `app.state.node`."""
    routes = APIRouter()
    body = {"required": True, "content": {"application/json": {"schema": openai.SpeechRequest.json_schema()}}}
    routes.add_api_route(
        "/v1/audio/speech",
        create_speech,
        methods=["POST"],
        response_class=Response,
        responses=_SPEECH | _ERRORS,
        openapi_extra={"requestBody": body},
    )
    routes.add_api_route("/v1/models", list_models, responses=_ERRORS)
    routes.add_api_route("/v1/models/{model:path}", retrieve_model, responses=_ERRORS)
    routes.add_api_route("/v1/audio/voices", list_voices, responses=_ERRORS)
    routes.add_api_route("/v1/audio/voices", change_voices, methods=["POST"], status_code=400, responses=_ERRORS)
    routes.add_api_route("/v1/audio/voices", change_voices, methods=["DELETE"], status_code=400, responses=_ERRORS)
    routes.add_api_route("/v1/tokens", create_token, methods=["POST"], responses=_ERRORS)
    routes.add_api_route("/health", health, response_model=Status, responses=_NOT_NOW)
    routes.add_api_route("/ready", ready, response_model=Status, responses=_NOT_NOW)
    routes.add_api_route("/metrics", metrics, response_class=Response, responses=_METRICS | _ERRORS)
    return routes


async def create_speech(request: Request, client: Authorized) -> Response:
    """Speak a text: the audio file is sent while it is made."""
    node = _node(request)
    wanted = openai.parse(await read_body(request, node.settings), node.settings.limits.text_context_chars)
    info = _info(node)
    options = node.service.resolve(wanted.options(info))
    response = SpeechResponse(node, client, wanted, options)
    voice = options.voice or info.default_voice
    response.headers["X-Voice"] = info.aliases.get(voice, voice)
    return response


async def list_models(request: Request, client: Authorized) -> openai.ModelList:
    """The models that a request may name."""
    return openai.ModelList(data=[openai.ModelCard(id=name) for name in openai.model_names(_info(_node(request)))])


async def retrieve_model(model: str, request: Request, client: Authorized) -> openai.ModelCard:
    """One model."""
    openai.model_language(model, _info(_node(request)))
    return openai.ModelCard(id=model)


async def list_voices(request: Request, client: Authorized) -> openai.VoiceList:
    """The voices that a request may name."""
    return openai.voice_list(_info(_node(request)))


async def change_voices(request: Request, client: Authorized) -> Response:
    """Voices of one's own: no engine of this node takes them."""
    raise Unsupported("this engine has no voice cloning: GET /v1/audio/voices lists its voices")


async def create_token(request: Request, client: Authorized) -> Token:
    """A one-time token, for a browser that opens the WebSocket."""
    token, expires_in = _node(request).guard.issue_token(client)
    return Token(token=token, expires_in=expires_in)


async def health(request: Request) -> Response:
    """Whether the event loop and the engine are alive."""
    alive = _node(request).service.alive
    return JSONResponse({"status": "ok" if alive else "engine_lost"}, 200 if alive else 503)


async def ready(request: Request) -> Response:
    """Whether speech may be sent here: the engine has really spoken since it started, and the node is not leaving."""
    service = _node(request).service
    status = "draining" if service.draining else "ok" if service.ready else "starting"
    return JSONResponse({"status": status}, 200 if status == "ok" else 503)


async def metrics(request: Request, client: Authorized) -> Response:
    """Prometheus metrics."""
    return Response(generate_latest(_node(request).metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _node(request: Request) -> Node:
    node: Node = request.app.state.node
    return node


def _info(node: Node) -> EngineInfo:
    if node.service.info is None:
        raise EngineLost("the engine is starting: try again", retry_after_ms=RETRY_MS)
    return node.service.info


async def read_body(request: Request, settings: Settings) -> bytes:
    """The body of a request, within `limits.message_bytes` and `timeouts.handshake_s`. Cancelling it is safe.

    Raises:
        TextTooLong: it is longer; the rest is not read.
        RequestTimeout: it takes longer.
        BadMessage: the client left in the middle of it.
    """
    limit, timeout_s = settings.limits.message_bytes, settings.timeouts.handshake_s
    too_long = TextTooLong(f"the body has more than {limit} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for piece in request.stream():
                body += piece
                if len(body) > limit:
                    raise too_long
    except TimeoutError:
        raise RequestTimeout(f"the body took more than {timeout_s:g} s") from None
    except ClientDisconnect:
        raise BadMessage("the body is not complete") from None
    return bytes(body)


# ---------------------------------------------------------------- errors


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error of the application in OpenAI's shape."""
    app.add_exception_handler(SpeechError, _on_speech_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_fault)


# What starlette itself answers with.
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}

# With these the client may still be sending its body, which nobody will read.
_CLOSING = {RequestTimeout.status, TextTooLong.status}


async def _on_speech_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, SpeechError)
    headers = {}
    if error.retry_after_ms is not None:
        headers["Retry-After"] = str(-(-error.retry_after_ms // 1_000))
        headers["Retry-After-Ms"] = str(error.retry_after_ms)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status in _CLOSING:
        headers["Connection"] = "close"
    return JSONResponse(openai.ErrorBody.of_error(error).model_dump(), error.status, headers)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = str(first["loc"][-1])
    return await _on_speech_error(request, InvalidRequest(f"{param}: {first['msg']}", param))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _HTTP_CODES.get(error.status_code, "bad_message")
    body = openai.ErrorBody.of(error.status_code, error.detail, code)
    return JSONResponse(body.model_dump(), error.status_code, error.headers)


async def _on_fault(request: Request, error: Exception) -> Response:
    # The server logs the fault itself; its words stay in the node.
    return await _on_speech_error(request, Internal("a fault of this node; it has been logged"))
