"""What the HTTP routes of all vendors share: their OpenAPI, a checked request, audio as the body of a response."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from agent_tts.serve.routes.http import json_body
from agent_tts.serve.routes.speech_response import Body
from agent_tts.speech.audio.encoding import Chunk, make_encoder
from agent_tts.speech.audio.files import wav_header

# OpenAPI is told: content that is audio, and the errors of a route.
AUDIO = {"schema": {"type": "string", "format": "binary"}}
_ERROR = {"description": "What was wrong and what is allowed.", "content": {"application/json": {}}}
ERRORS: dict[int | str, dict[str, Any]] = {"4XX": _ERROR, "5XX": _ERROR}


def speaks(
    body: type[BaseModel],
    content: dict[str, Any],
    description: str = "The audio, sent while it is made.",
    **extra: Any,
) -> dict[str, Any]:
    """Arguments of a route that speaks, for OpenAPI; `content` is its answer's, `extra` are fields of the operation."""
    return {
        "response_class": Response,
        "responses": {200: {"description": description, "content": content}, **ERRORS},
        "openapi_extra": json_body(body) | extra,
    }


class AudioBody(Body):
    """Audio without times, after a WAV header if `is_wav`; see `make_encoder` for the other arguments."""

    def __init__(self, encoding: str, sample_rate: int, bit_rate: int | None = None, *, is_wav: bool = False) -> None:
        self._encoder = make_encoder(encoding, sample_rate, bit_rate)
        # What precedes the first bytes of audio.
        self._head = wav_header(None, sample_rate, encoding) if is_wav else b""

    def audio(self, pcm: bytes) -> bytes:
        return self._joined(self._encoder.encode(pcm))

    def end(self) -> bytes:
        return self._joined(self._encoder.flush())

    def _joined(self, chunks: list[Chunk]) -> bytes:
        head, self._head = self._head, b""
        return head + b"".join(payload for payload, _ in chunks)
