"""ElevenLabs' HTTP: `/v1/text-to-speech/{voice_id}`, as audio or as JSON with times of characters; `/v1/voices`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from agent_tts.errors import SpeechError, TextTooLong
from agent_tts.serve.dialects.audio_body import AudioBody
from agent_tts.serve.dialects.elevenlabs_body import TimedBody
from agent_tts.serve.dialects.elevenlabs_request import (
    CONTENT_TYPES,
    DEFAULT_FORMAT,
    FILE_FORMATS,
    File,
    SpeechRequest,
    file_of,
    parse_request,
)
from agent_tts.serve.guard import Client
from agent_tts.serve.routes.http import Authorized, errors_as, node_of, read_body
from agent_tts.serve.routes.speech_response import Body, SpeechResponse
from agent_tts.speech.utterance import WordsMode

PATH = "/v1/text-to-speech/{voice_id}"

Format = Annotated[str, Query(description=f"one of {', '.join(FILE_FORMATS)}")]


class VoiceCard(BaseModel):
    """A voice."""

    voice_id: str
    name: str
    category: Literal["premade", "cloned"]
    description: str
    labels: dict[str, str]


class VoiceList(BaseModel):
    """All voices."""

    voices: list[VoiceCard]


def router() -> APIRouter:
    """All routes of this module. Their node is `app.state.node`."""
    routes = APIRouter(dependencies=[errors_as(error_body)])
    body = {"required": True, "content": {"application/json": {"schema": SpeechRequest.json_schema()}}}
    binary = {"schema": {"type": "string", "format": "binary"}}
    audio = {
        "description": "The audio, sent while it is made.",
        "content": dict.fromkeys(CONTENT_TYPES.values(), binary),
    }
    timed = {
        "description": "The audio in base64, and when its characters are spoken.",
        "content": {"application/json": {}},
    }
    errors = {"description": "What was wrong and what is allowed.", "content": {"application/json": {}}}
    endpoints: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
        ("", create_audio, audio),
        ("/stream", create_audio, audio),
        ("/with-timestamps", create_timed, timed),
        ("/stream/with-timestamps", stream_timed, timed),
    ]
    for path, endpoint, answer in endpoints:
        routes.add_api_route(
            PATH + path,
            endpoint,
            methods=["POST"],
            response_class=Response,
            responses={200: answer, "4XX": errors, "5XX": errors},
            openapi_extra={"requestBody": body},
        )
    routes.add_api_route("/v1/voices", list_voices, responses={"4XX": errors, "5XX": errors})
    return routes


async def list_voices(request: Request, client: Authorized) -> VoiceList:
    """The voices that can be spoken."""
    routing = node_of(request).service.routing
    return VoiceList(
        voices=[
            VoiceCard(
                voice_id=voice.name,
                name=voice.name,
                category="premade" if routing.is_own(voice.name) else "cloned",
                description=voice.description,
                labels={"language": voice.languages[0]} if voice.languages else {},
            )
            for voice in routing.voices()
        ]
    )


async def create_audio(
    voice_id: str, request: Request, client: Authorized, output_format: Format = DEFAULT_FORMAT
) -> Response:
    """Speak a text: the audio is sent while it is made."""
    file = file_of(output_format)
    return await _speak(voice_id, request, client, file.content_type, partial(_audio, file))


async def create_timed(
    voice_id: str, request: Request, client: Authorized, output_format: Format = DEFAULT_FORMAT
) -> Response:
    """Speak a text: all of its audio and times in one object."""
    return await _timed(voice_id, request, client, output_format, whole=True)


async def stream_timed(
    voice_id: str, request: Request, client: Authorized, output_format: Format = DEFAULT_FORMAT
) -> Response:
    """Speak a text: an object a line, sent while it is made."""
    return await _timed(voice_id, request, client, output_format, whole=False)


def error_body(error: SpeechError) -> dict[str, Any]:
    """The body of a response that is an error."""
    return {"detail": {"status": error.code, "message": error.message}}


def _audio(file: File) -> AudioBody:
    return AudioBody(file.encoding, file.sample_rate, file.bit_rate, is_wav=file.is_wav)


async def _timed(voice_id: str, request: Request, client: Client, output_format: str, *, whole: bool) -> Response:
    file = file_of(output_format)
    return await _speak(
        voice_id, request, client, "application/json", lambda: TimedBody(_audio(file), is_whole=whole), "told"
    )


async def _speak(
    voice_id: str,
    request: Request,
    client: Client,
    media_type: str,
    make_body: Callable[[], Body],
    words: WordsMode = "none",
) -> Response:
    node = node_of(request)
    wanted = parse_request(await read_body(request, node.settings))
    if len(wanted.text) > node.settings.limits.text_context_chars:
        raise TextTooLong(f"text has more than {node.settings.limits.text_context_chars} characters")
    options = node.service.resolve(wanted.options(voice_id))
    return SpeechResponse(node, client, wanted.text, options, media_type, make_body, words)
