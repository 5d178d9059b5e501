"""HTTP routes: speech in OpenAI's format, models, tokens, health and metrics. The routes of voices are in `voices`.

`/health` and `/ready` need no key. All others, `/metrics` too, need one when keys are configured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from agent_tts import errors
from agent_tts.messages import EngineState
from agent_tts.protocol.validation import LIST_VALUES, MAX_VALUES, Complaint, check_body
from agent_tts.serve import openai
from agent_tts.serve.access.guard import Client, authorized
from agent_tts.serve.node import Node
from agent_tts.serve.routes.signing import sign
from agent_tts.serve.routes.speech_response import EventBody, FileBody, Seal, SpeechResponse, WholeBody
from agent_tts.sound.provenance import HEADERS
from agent_tts.speech.audio.files import CONTENT_TYPES
from agent_tts.speech.audio.manifest import SIGNABLE

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)


class BrowserToken(BaseModel):
    """A one-time token for a browser."""

    token: str
    expires_in: float  # seconds


class Operator(BaseModel):
    """Whether a key is an operator's."""

    operator: bool


class Status(BaseModel):
    """State of the node, in one word."""

    status: str


class Health(Status):
    """State of the node and of each engine."""

    engines: list[EngineState]  # by number, as in the metrics


PROBES = ("/health", "/ready")

PARSED_AT_ONCE = 32_768  # bytes of a body, on the event loop
SLOWEST_UPLOAD = 131_072  # bytes/s of a file: 1 Mbit/s, a slow mobile uplink


def node_of(request: Request) -> Node:
    node: Node = request.app.state.node
    return node


async def _here(request: Request) -> Node:
    return node_of(request)


Here = Annotated[Node, Depends(_here)]
Authorized = Annotated[Client, Depends(authorized)]

ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": openai.ErrorBody}, "5XX": {"model": openai.ErrorBody}}

routes = APIRouter()


def body_of(content: dict[str, Any]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads its body itself, which has one of these types."""
    return {"requestBody": {"required": True, "content": content}}


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """As `body_of`, of one JSON object."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inlined(part: Any) -> Any:
        if isinstance(part, list):
            return [inlined(item) for item in part]
        if not isinstance(part, dict):
            return part
        own = {name: inlined(value) for name, value in part.items() if name != "$ref"}
        return inlined(definitions[part["$ref"].rpartition("/")[2]]) | own if "$ref" in part else own

    return body_of({"application/json": {"schema": inlined(schema)}})


# OpenAPI is told: content that is a file, and the errors of other vendors' routes.
AUDIO = {"schema": {"type": "string", "format": "binary"}}
_ERROR = {"description": "What was wrong and what is allowed.", "content": {"application/json": {}}}
VENDOR_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": _ERROR, "5XX": _ERROR}


def speaks(
    body: type[BaseModel],
    content: dict[str, Any],
    description: str = "The audio, sent while it is made.",
    **extra: Any,
) -> dict[str, Any]:
    """Arguments of a vendor's route that speaks: `content` is its answer's, `extra` what OpenAPI is told besides."""
    return {
        "response_class": Response,
        "responses": {200: {"description": description, "content": content}, **VENDOR_ERRORS},
        "openapi_extra": json_body(body) | extra,
    }


_SPEECH = {
    "description": "The audio file, or `speech.audio.delta` events with its bytes, sent while it is made.",
    "headers": {name: {"schema": {"type": "string"}, "description": "the speech is synthetic"} for name in HEADERS},
    "content": dict.fromkeys(CONTENT_TYPES.values(), AUDIO) | {"text/event-stream": {}},
}
_METRICS = {"content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}


@routes.post(
    "/v1/audio/speech",
    response_class=Response,
    responses={200: _SPEECH, **ERRORS},
    openapi_extra=json_body(openai.SpeechRequest),
)
async def create_speech(request: Request, node: Here, client: Authorized) -> Response:
    """Speak a text. The audio file is sent while it is made."""
    wanted = await read_request(request, openai.SpeechRequest, "input", depth=1)
    options = wanted.options(normalize=node.settings.normalize)
    file = wanted.response_format
    make_body: Callable[[], FileBody]
    seal: Seal | None = None
    if wanted.c2pa:
        if file not in SIGNABLE or wanted.stream_format == "sse":
            raise errors.InvalidRequest(f"c2pa: only {', '.join(SIGNABLE)}, and not as sse, can be signed", "c2pa")
        if node.signer is None:
            raise errors.Unsupported(
                "c2pa: this node has no certificate to sign with (c2pa.certificate in its settings)"
            )
        media_type, make_body, seal = CONTENT_TYPES[file], partial(WholeBody, file), partial(sign, node.signer, file)
    elif wanted.stream_format == "sse":
        media_type, make_body = "text/event-stream", partial(EventBody, file, wanted.input)
    else:
        media_type, make_body = CONTENT_TYPES[file], partial(FileBody, file)
    response = SpeechResponse(node, client, wanted.input, options, media_type, make_body, seal=seal)
    if response.resolved.voice is not None:
        response.headers["X-Voice"] = response.resolved.voice
    return response


@routes.get("/v1/models", responses=ERRORS)
async def list_models(node: Here, client: Authorized) -> openai.ModelList:
    """The models that a request may name."""
    return openai.ModelList(data=[openai.ModelCard(id=name) for name in node.service.routing.model_names()])


@routes.get("/v1/models/{model:path}", responses=ERRORS)
async def retrieve_model(model: str, node: Here, client: Authorized) -> openai.ModelCard:
    """One model."""
    node.service.routing.find_model(model)
    return openai.ModelCard(id=model)


@routes.post("/v1/tokens", responses=ERRORS)
async def create_token(node: Here, client: Authorized) -> BrowserToken:
    """A one-time token for a browser that opens the WebSocket."""
    token, expires_in = node.guard.issue_token(client)
    return BrowserToken(token=token, expires_in=expires_in)


@routes.get("/health", response_model=Health, responses={503: {"model": Health}})
async def health(node: Here) -> Response:
    """Whether the event loop and an engine are alive, and the state of each engine."""
    status, code = ("ok", 200) if node.service.alive else ("engine_lost", 503)
    return JSONResponse({"status": status, "engines": [engine.state for engine in node.service.engines]}, code)


@routes.get("/ready", response_model=Status, responses={503: {"model": Status}})
async def ready(node: Here) -> Response:
    """Whether to send requests here: an engine has spoken since it started, there is room, new sessions are counted."""
    is_ready = node.service.ready and (node.supervisor is None or node.supervisor.node_ready.is_set())
    status = "draining" if node.service.draining else "ok" if is_ready else "starting"
    if status == "ok" and node.is_full():
        status = "full"
    if status == "ok" and node.supervisor is not None and not await node.supervisor.counts():
        status = "unsupervised"
    return JSONResponse({"status": status}, 200 if status == "ok" else 503)


@routes.get("/api/operator", responses=ERRORS)
async def operator(node: Here, client: Authorized) -> Operator:
    """Whether this key is an operator's: `GET /metrics` is for it, and the page's view of the node at work."""
    return Operator(operator=node.guard.operates(client))


@routes.get("/metrics", response_class=Response, responses={200: _METRICS, **ERRORS})
async def metrics(node: Here, client: Authorized) -> Response:
    """Prometheus metrics of the node, for operators: they tell what all keys use, by name."""
    if not node.guard.operates(client):
        raise errors.Unauthorized("this key is no operator's (auth.keys.NAME.operator): it cannot read the metrics")
    if node.supervisor is None:
        page: str | bytes = await node.computing(generate_latest, node.metrics.registry)
    else:
        page = await node.supervisor.page()
    return Response(page, media_type=CONTENT_TYPE_LATEST)


async def told_aside(node: Node, make: Callable[[], BaseModel]) -> Response:
    """What is told of as many things as a node may store: that of a thousand takes milliseconds."""
    return Response(await node.computing(lambda: make().model_dump_json()), media_type="application/json")


async def read_body(request: Request, file_bytes: int = 0, held: ExitStack | None = None) -> bytearray:
    """The body of a request, within `limits.message_bytes` and `timeouts.handshake_s`. Cancelling it is safe.

    Args:
        file_bytes: additional bytes for a file in the body; the time limit grows with what has come of them.
        held: holds the place of a body with a file afterwards.

    Raises:
        TextTooLong: it is longer; the rest is not read.
        RequestTimeout: it takes longer, or comes more slowly than `SLOWEST_UPLOAD`.
        BadMessage: the client left before its end.
        AtCapacity: there are too many with a file at once.
    """
    settings = node_of(request).settings
    limit = settings.limits.message_bytes + file_bytes
    timeout_s, began = settings.timeouts.handshake_s, asyncio.get_running_loop().time()
    too_long = errors.TextTooLong(f"the body has more than {limit} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            async for piece in request.stream():
                body += piece
                if len(body) > limit:
                    raise too_long
                if held is not None and len(body) > settings.limits.message_bytes:
                    place, held = held, None
                    place.enter_context(await node_of(request).guard.place("long bodies", request.state.client))
                deadline.reschedule(began + timeout_s + min(len(body), file_bytes) / SLOWEST_UPLOAD)
    except TimeoutError:
        file = f", and 1 s for each {SLOWEST_UPLOAD} bytes of a file" if file_bytes else ""
        raise errors.RequestTimeout(f"the body is late: it may take {timeout_s:g} s{file}") from None
    except ClientDisconnect:
        raise errors.BadMessage("the body is not complete") from None
    return body


async def read_as(
    request: Request, parse: Callable[[bytes], T], file_bytes: int = 0, at_once: int = PARSED_AT_ONCE
) -> T:
    """The body of a request as `parse` makes it, in a thread if it has more than `at_once` bytes.

    All routes read their bodies here. For the other arguments and errors see `read_body`; cancelling it is safe.
    """
    with ExitStack() as held:
        body = await read_body(request, file_bytes, held)
        if len(body) <= at_once:
            return parse(bytes(body))
        return await node_of(request).computing(lambda: parse(bytes(body)))  # the copy, too, takes milliseconds


async def read_request(request: Request, model: type[Model], spoken: str = "text", *, depth: int = 3) -> Model:
    """Receive and check a request that speaks. Cancelling it is safe.

    Args:
        spoken, depth: see `check_body`, whose errors and those of `read_body` it raises.
    """
    max_chars = node_of(request).settings.limits.text_context_chars
    return await read_as(request, lambda body: check_body(model, body, spoken, max_chars, depth=depth))


async def read_fields(request: Request, model: type[Model], list_bytes: int = 0) -> Model:
    """Receive and check a request that does not speak, with a list of at most so many bytes. Cancelling it is safe.

    Raises `InvalidRequest` for what is not allowed, and what `read_body` raises.
    """
    most = LIST_VALUES if list_bytes else MAX_VALUES
    return await read_as(request, lambda body: check_body(model, body, depth=3, most=most), list_bytes)


_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}  # of errors that starlette raises

# Makes the JSON body of an error response.
ErrorBody = Callable[[errors.SpeechError], dict[str, Any]]


def errors_as(body: ErrorBody) -> Any:
    """A dependency of routes, before all others: sends their errors in another vendor's format."""

    async def set_body(request: Request) -> None:
        request.state.error_body = body

    return Depends(set_body)


# After these errors the client may still be sending its body, which is not read: the connection is closed.
_CLOSING = {errors.RequestTimeout.status, errors.TextTooLong.status}


async def _on_speech_error(request: Request, error: errors.SpeechError) -> Response:
    headers = openai.retry_headers(error)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status in _CLOSING:
        headers["Connection"] = "close"
    error_body: ErrorBody = getattr(request.state, "error_body", openai.error_body)
    return JSONResponse(error_body(error), error.status, headers)


async def _on_validation_error(request: Request, error: RequestValidationError) -> Response:
    complaint = Complaint.of(error.errors()[0])
    param = complaint.path[-1]
    return await _on_speech_error(request, errors.InvalidRequest(f"{param}: {complaint.reason}", param))


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    code = _HTTP_CODES.get(error.status_code, "bad_message")
    return JSONResponse(openai.status_body(error.status_code, error.detail, code), error.status_code, error.headers)


async def _on_fault(request: Request, error: Exception) -> Response:
    # uvicorn logs the fault itself.
    return await _on_speech_error(request, errors.Internal("internal error; the node has logged it"))


# Answer every error in OpenAI's format, or in that of `request.state.error_body`.
ERROR_HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    errors.SpeechError: _on_speech_error,
    RequestValidationError: _on_validation_error,
    HTTPException: _on_http_error,
    Exception: _on_fault,
}
