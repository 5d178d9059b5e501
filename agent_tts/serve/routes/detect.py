"""`POST /v1/audio/detect`: whether an audio file is synthetic speech."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request

from agent_tts.errors import InvalidRequest
from agent_tts.serve.routes import multipart
from agent_tts.serve.routes.http import ERRORS, Authorized, node_of, read_body
from agent_tts.serve.routes.voices import unless_gone
from agent_tts.voices.detection import Detection, detect

routes = APIRouter(prefix="/v1/audio/detect", responses=ERRORS)

_FILE = {"audio_sample": {"type": "string", "format": "binary", "description": "an audio file"}}
_SCHEMA = {"type": "object", "properties": _FILE, "required": ["audio_sample"], "additionalProperties": False}
_BODY = {"required": True, "content": {multipart.CONTENT_TYPE: {"schema": _SCHEMA}}}


@routes.post("", openapi_extra={"requestBody": _BODY})
async def detect_speech(request: Request, client: Authorized) -> Detection:
    """Look for the marks of this project's nodes in an audio file, which is not kept."""
    node = node_of(request)
    settings = node.settings
    with await node.guard.admit(client):
        with await node.guard.place("new voices"):
            body = await read_body(request, settings.voices.clip_bytes)
        fields = multipart.parse(request.headers.get("content-type", ""), body)
        clip = fields.pop("audio_sample", None)
        if not isinstance(clip, bytes) or fields:
            raise InvalidRequest(f"audio_sample: must be a file in {multipart.CONTENT_TYPE}, and alone", "audio_sample")
        folder = None if settings.watermark == "none" else Path(settings.audioseal.source)
        with await node.guard.place("clips"):
            return await unless_gone(request.receive, detect(clip, folder, max_s=settings.voices.clip_s))
