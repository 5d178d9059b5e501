"""The requests of telephone platforms for a custom voice: Vapi's `voice-request`, jambonz' HTTP."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from agent_tts.errors import BadMessage, SpeechError
from agent_tts.protocol.options import Lenient, SessionConfig, check_format
from agent_tts.protocol.validation import check_body, decode
from agent_tts.serve.access.guard import Client
from agent_tts.serve.dialects.jambonz import JambonzVoice
from agent_tts.serve.node import Node
from agent_tts.serve.routes.http import AUDIO, Authorized, errors_as, node_of, read_as, read_request, speaks
from agent_tts.serve.routes.speech_response import AudioBody, SpeechResponse

VAPI_BYTES = 256 * 1_024  # of what Vapi tells of the call besides
VAPI_VALUES = 16_384  # in all objects and lists of it
MP3_RATE = 24_000  # Hz


class VapiRequest(Lenient):
    """The `message` of a request; what it tells of the call is ignored."""

    type: Literal["voice-request"]
    text: str
    sampleRate: int = 24_000


class JambonzRequest(JambonzVoice):
    type: Literal["text", "ssml"] = "text"
    text: str = Field(min_length=1, pattern=r"\S", description="text to speak; tags are obeyed in both types")


def error_body(error: SpeechError) -> dict[str, Any]:
    return {"error": error.message}


routes = APIRouter(dependencies=[errors_as(error_body)])


def _speech(
    node: Node, client: Client, text: str, session: dict[str, Any], media_type: str, encoding: str, rate: int
) -> Response:
    config = SessionConfig().merged(session | {"lead_ms": None}, node.settings.limits.max_lead_ms)
    return SpeechResponse(node, client, text, config.options(), media_type, partial(AudioBody, encoding, rate))


@routes.post("/v1/vapi", **speaks(VapiRequest, {"application/octet-stream": AUDIO}))
async def create_audio_for_vapi(
    request: Request,
    client: Authorized,
    voice: Annotated[str | None, Query(max_length=200)] = None,
    language: Annotated[str, Query(max_length=100)] = "auto",
    speed: Annotated[float, Query(ge=0.25, le=4)] = 1.0,
) -> Response:
    """Speak for a Vapi assistant with a custom voice: raw 16-bit PCM, sent while it is made."""
    node = node_of(request)
    max_chars = node.settings.limits.text_context_chars
    wanted = await read_as(request, lambda body: check_body(VapiRequest, _message(body), "text", max_chars), VAPI_BYTES)
    check_format("pcm_s16le", wanted.sampleRate)
    session = {"voice": voice, "language": language, "speed": speed}
    return _speech(node, client, wanted.text, session, "application/octet-stream", "pcm_s16le", wanted.sampleRate)


def _message(body: bytes) -> bytes:
    """The fields of Vapi's message that are used; of the call it may tell much."""
    try:
        message = decode(body, "", VAPI_VALUES)["message"]
        return json.dumps({name: message[name] for name in VapiRequest.model_fields if name in message}).encode()
    except (BadMessage, KeyError, TypeError):
        return b"{}"


@routes.post("/v1/jambonz", **speaks(JambonzRequest, {"audio/mpeg": AUDIO}))
async def create_audio_for_jambonz(request: Request, client: Authorized) -> Response:
    """Speak for jambonz, as a custom speech vendor."""
    wanted = await read_request(request, JambonzRequest)
    return _speech(node_of(request), client, wanted.text, wanted.session(), "audio/mpeg", "mp3", MP3_RATE)
