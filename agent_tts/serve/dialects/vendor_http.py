"""What the HTTP routes of all vendors share: their OpenAPI, a checked request, audio as the body of a response."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from agent_tts.errors import InvalidRequest, TextTooLong
from agent_tts.protocol.validation import body_error
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


def parse_request(body: bytes, model: type[Model], spoken: str, max_chars: int) -> Model:
    """The request in a body; `spoken` is the field with the text to speak.

    Raises:
        InvalidRequest, UnsupportedFormat, TextTooLong: what was wrong and what is allowed, without any of the text.
    """
    try:
        wanted = model.model_validate_json(body)
    except ValidationError as error:
        raise body_error(error, model, spoken=spoken, depth=3) from None
    text: str = getattr(wanted, spoken)
    if not text.strip():
        raise InvalidRequest(f"{spoken}: there is nothing to speak", spoken)
    if len(text) > max_chars:
        raise TextTooLong(f"{spoken} has more than {max_chars} characters")
    return wanted


async def read_request(request: Request, model: type[Model], spoken: str = "text") -> Model:
    """Receive and check a request. Cancelling it is safe.

    Raises:
        SpeechError: see `read_body` and `parse_request`.
    """
    settings = node_of(request).settings
    return parse_request(await read_body(request, settings), model, spoken, settings.limits.text_context_chars)


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
