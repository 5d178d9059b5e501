"""The HTTP routes: speech in OpenAI's shape, models, tokens, health and metrics; `voices` has those of voices.

`/health` and `/ready` answer everybody; all others, `/metrics` too, want a key when keys are configured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from agent_tts.config.settings import Settings
from agent_tts.errors import (
    BadMessage,
    Internal,
    InvalidRequest,
    RequestTimeout,
    SpeechError,
    TextTooLong,
)
from agent_tts.protocol.validation import Complaint
from agent_tts.serve.guard import Client, authorized
from agent_tts.serve.node import Node
from agent_tts.serve.routes import openai
from agent_tts.serve.routes.file_body import EventBody, FileBody
from agent_tts.serve.routes.speech_response import SpeechResponse
from agent_tts.speech.audio.files import CONTENT_TYPES
from agent_tts.speech.engine_handle import EngineState
from agent_tts.speech.routing import Routing


class Token(BaseModel):
    """A one-time token for a browser."""

    token: str
    expires_in: float  # seconds


class Status(BaseModel):
    """Whether something is as it should be."""

    status: str


class Health(Status):
    """Whether the node is as it should be."""

    engines: list[EngineState]  # in the order of their numbers, as the metrics have them


# ---------------------------------------------------------------- routes


SLOWEST_UPLOAD = 131_072  # bytes/s of a file: 1 Mbit/s, as a telephone sends at its slowest

Authorized = Annotated[Client, Depends(authorized)]

_BYTES = {"schema": {"type": "string", "format": "binary"}}
_TEXT = {"schema": {"type": "string"}}
ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": openai.ErrorBody}, "5XX": {"model": openai.ErrorBody}}
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
        responses=_SPEECH | ERRORS,
        openapi_extra={"requestBody": body},
    )
    routes.add_api_route("/v1/models", list_models, responses=ERRORS)
    routes.add_api_route("/v1/models/{model:path}", retrieve_model, responses=ERRORS)
    routes.add_api_route("/v1/tokens", create_token, methods=["POST"], responses=ERRORS)
    routes.add_api_route("/health", health, response_model=Health, responses={503: {"model": Health}})
    routes.add_api_route("/ready", ready, response_model=Status, responses=_NOT_NOW)
    routes.add_api_route("/metrics", metrics, response_class=Response, responses=_METRICS | ERRORS)
    return routes


async def create_speech(request: Request, client: Authorized) -> Response:
    """Speak a text: the audio file is sent while it is made."""
    node = node_of(request)
    wanted = openai.parse(await read_body(request, node.settings), node.settings.limits.text_context_chars)
    options = node.service.resolve(wanted.options(normalize=node.settings.normalize))
    file = wanted.response_format
    make_body: Callable[[], FileBody]
    if wanted.stream_format == "sse":
        media_type, make_body = "text/event-stream", partial(EventBody, file, wanted.input)
    else:
        media_type, make_body = CONTENT_TYPES[file], partial(FileBody, file)
    response = SpeechResponse(node, client, wanted.input, options, media_type, make_body)
    if options.voice is not None:
        response.headers["X-Voice"] = options.voice
    return response


async def list_models(request: Request, client: Authorized) -> openai.ModelList:
    """The models that a request may name."""
    return openai.ModelList(data=[openai.ModelCard(id=name) for name in _routing(request).model_names()])


async def retrieve_model(model: str, request: Request, client: Authorized) -> openai.ModelCard:
    """One model."""
    _routing(request).check_model(model)
    return openai.ModelCard(id=model)


async def create_token(request: Request, client: Authorized) -> Token:
    """A one-time token, for a browser that opens the WebSocket."""
    token, expires_in = node_of(request).guard.issue_token(client)
    return Token(token=token, expires_in=expires_in)


async def health(request: Request) -> Response:
    """Whether the event loop and an engine are alive, and how each engine is."""
    service = node_of(request).service
    states = [engine.state for engine in service.engines]
    return JSONResponse(
        {"status": "ok" if service.alive else "engine_lost", "engines": states}, 200 if service.alive else 503
    )


async def ready(request: Request) -> Response:
    """Whether speech may be sent here: an engine has really spoken since it started, and the node is not leaving."""
    service = node_of(request).service
    status = "draining" if service.draining else "ok" if service.ready else "starting"
    return JSONResponse({"status": status}, 200 if status == "ok" else 503)


async def metrics(request: Request, client: Authorized) -> Response:
    """Prometheus metrics."""
    return Response(generate_latest(node_of(request).metrics.registry), media_type=CONTENT_TYPE_LATEST)


def node_of(request: Request) -> Node:
    """The node that a request came to."""
    node: Node = request.app.state.node
    return node


def _routing(request: Request) -> Routing:
    return node_of(request).service.routing


async def read_body(request: Request, settings: Settings, file_bytes: int = 0) -> bytes:
    """The body of a request, within `limits.message_bytes` and `timeouts.handshake_s`. Cancelling it is safe.

    Args:
        file_bytes: of a file that may be in it, which has a longer time in proportion.

    Raises:
        TextTooLong: it is longer; the rest is not read.
        RequestTimeout: it takes longer.
        BadMessage: the client left in the middle of it.
    """
    limit = settings.limits.message_bytes + file_bytes
    timeout_s = settings.timeouts.handshake_s + file_bytes / SLOWEST_UPLOAD
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
    """Answer every error of the application in OpenAI's shape, or as `request.state.error_body` has it."""
    app.add_exception_handler(SpeechError, _on_speech_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_fault)


# What starlette itself answers with.
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}

# The body of a response for an error.
ErrorBody = Callable[[SpeechError], dict[str, Any]]


def errors_as(body: ErrorBody) -> Any:
    """A dependency of routes, to stand before all others: their errors are told as another vendor tells them."""

    async def told(request: Request) -> None:
        request.state.error_body = body

    return Depends(told)


def _openai_error(error: SpeechError) -> dict[str, Any]:
    return openai.ErrorBody.of_error(error).model_dump()


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
    error_body: ErrorBody = getattr(request.state, "error_body", _openai_error)
    return JSONResponse(error_body(error), error.status, headers)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    complaint = Complaint.of(error.errors()[0])
    param = complaint.path[-1]
    return await _on_speech_error(request, InvalidRequest(f"{param}: {complaint.reason}", param))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _HTTP_CODES.get(error.status_code, "bad_message")
    body = openai.ErrorBody.of(error.status_code, error.detail, code)
    return JSONResponse(body.model_dump(), error.status_code, error.headers)


async def _on_fault(request: Request, error: Exception) -> Response:
    # The server logs the fault itself; its words stay in the node.
    return await _on_speech_error(request, Internal("a fault of this node; it has been logged"))
