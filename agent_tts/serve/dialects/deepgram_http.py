"""Deepgram's HTTP: `POST /v1/speak` for Aura's clients, `POST /v2/speak` for Flux's."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from agent_tts.errors import SpeechError, Unsupported, UnsupportedFormat
from agent_tts.protocol.options import Lenient, check_format
from agent_tts.protocol.validation import check_message
from agent_tts.serve.dialects.deepgram import ENCODINGS, DeepgramQuery, described, model_uuid
from agent_tts.serve.routes.http import AUDIO, Authorized, Here, errors_as, read_request, speaks
from agent_tts.serve.routes.speech_response import AudioBody, Body, FileBody, SpeechResponse

# Content types of raw audio, by Deepgram's names of its encodings.
RAW_TYPES = {"linear16": "audio/l16", "mulaw": "audio/mulaw", "alaw": "audio/alaw"}

# Encodings that are files, with their content types.
FILE_TYPES = {"mp3": "audio/mpeg", "opus": "audio/ogg", "flac": "audio/flac", "aac": "audio/aac"}

# Hz: the default of MP3, the only rate of Ogg.
MP3_RATE = 22_050
OGG_RATE = 48_000


class FileQuery(DeepgramQuery):
    """The query of a request. The sample rate is ignored for Ogg, FLAC and AAC, which state their own."""

    container: str | None = None
    bit_rate: int | None = Field(None, ge=1_000, le=1_000_000)
    callback: str | None = None


class DeepgramRequest(Lenient):
    """The body of a request."""

    text: str = Field(min_length=1, pattern=r"\S", description="text to speak")


def error_body(error: SpeechError) -> dict[str, Any]:
    return {"err_code": error.code.upper(), "err_msg": described(error), "request_id": str(uuid.uuid4())}


routes = APIRouter(dependencies=[errors_as(error_body)])

_SPEAKS = speaks(
    DeepgramRequest,
    dict.fromkeys(("audio/wav", *RAW_TYPES.values(), *FILE_TYPES.values()), AUDIO),
    parameters=[
        {"in": "query", "name": name, "schema": schema, "required": False}
        for name, schema in FileQuery.model_json_schema()["properties"].items()
    ],
)


@routes.post("/v1/speak", operation_id="create_audio_v1_speak", **_SPEAKS)
@routes.post("/v2/speak", operation_id="create_audio_v2_speak", **_SPEAKS)
async def create_audio(request: Request, node: Here, client: Authorized) -> Response:
    """Speak a text: the audio is sent while it is made."""
    query = check_message(FileQuery, request.query_params)
    if query.callback is not None:
        raise Unsupported("callback: the audio is the answer to the request, and is sent nowhere else")
    media_type, make_body = audio_of(query)
    text = (await read_request(request, DeepgramRequest)).text
    options = node.unpaced(query.session(node.settings.voice_aliases))
    response = SpeechResponse(node, client, text, options, media_type, make_body)
    model = query.model or "default"
    response.headers["dg-request-id"] = str(uuid.uuid4())
    response.headers["dg-model-name"] = model if model.isascii() and model.isprintable() else "unprintable"
    response.headers["dg-model-uuid"] = model_uuid(model)
    response.headers["dg-char-count"] = str(len(text))
    return response


def audio_of(query: FileQuery) -> tuple[str, Callable[[], Body]]:
    """The content type that a query asks for, and what makes the body; raises `UnsupportedFormat`."""
    encoding, container = query.encoding or "mp3", query.container
    if encoding in ENCODINGS:
        if container not in (None, "wav", "none"):
            raise UnsupportedFormat(f"container of {encoding} is wav or none")
        ours, sample_rate = query.raw_format()
        is_wav = container != "none"
        media_type = "audio/wav" if is_wav else f"{RAW_TYPES[encoding]};rate={sample_rate}"
        check_format(ours, sample_rate)
        return media_type, partial(AudioBody, ours, sample_rate, is_wav=is_wav)
    match encoding:
        case "mp3":
            sample_rate = MP3_RATE if query.sample_rate is None else query.sample_rate
            check_format("mp3", sample_rate)
            make: Callable[[], Body] = partial(AudioBody, "mp3", sample_rate, query.bit_rate)
        case "opus":
            make = partial(AudioBody, "ogg_opus", OGG_RATE, query.bit_rate)
        case "flac" | "aac":
            make = partial(FileBody, encoding)
        case _:
            raise UnsupportedFormat(f"encoding is one of {', '.join((*ENCODINGS, *FILE_TYPES))}")
    return FILE_TYPES[encoding], make
