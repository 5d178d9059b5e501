"""What the HTTP routes of all vendors share: their OpenAPI, a checked request, audio as the body of a response."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from agent_tts.protocol.validation import check_body
from agent_tts.serve.routes.http import node_of, read_body
from agent_tts.serve.routes.speech_response import Body
from agent_tts.speech.audio.encoding import Chunk, make_encoder
from agent_tts.speech.audio.files import wav_header

Model = TypeVar("Model", bound=BaseModel)

# In OpenAPI.
ERROR_ANSWER: dict[str, Any] = {
    "description": "What was wrong and what is allowed.",
    "content": {"application/json": {}},
}


def audio_answer(content_types: Iterable[str]) -> dict[str, Any]:
    """A response with audio, in OpenAPI."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    return {"description": "The audio, sent while it is made.", "content": dict.fromkeys(content_types, binary)}


def json_body(schema: dict[str, Any]) -> dict[str, Any]:
    """The body of a request, in OpenAPI."""
    return {"required": True, "content": {"application/json": {"schema": schema}}}


async def read_request(request: Request, model: type[Model], spoken: str = "text") -> Model:
    """Receive and check a request; `spoken` is the field with the text to speak. Cancelling it is safe.

    Raises:
        SpeechError: see `read_body` and `check_body`.
    """
    max_chars = node_of(request).settings.limits.text_context_chars
    return check_body(model, await read_body(request), spoken, max_chars, depth=3)


class AudioBody(Body):
    """Audio without times. See `Body`.

    Args:
        bit_rate: as `make_encoder` has it.
        is_wav: the audio begins with a WAV header.
    """

    def __init__(self, encoding: str, sample_rate: int, bit_rate: int | None = None, *, is_wav: bool = False) -> None:
        self._encoder = make_encoder(encoding, sample_rate, bit_rate)
        # What precedes the first bytes of audio.
        self._head = wav_header(None, sample_rate, encoding) if is_wav else b""

    def audio(self, pcm: bytes) -> bytes:
        """See `Body`."""
        return self._joined(self._encoder.encode(pcm))

    def end(self) -> bytes:
        """See `Body`."""
        return self._joined(self._encoder.flush())

    def _joined(self, chunks: list[Chunk]) -> bytes:
        head, self._head = self._head, b""
        return head + b"".join(payload for payload, _ in chunks)
