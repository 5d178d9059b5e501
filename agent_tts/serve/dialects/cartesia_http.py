"""Cartesia's HTTP routes: `POST /tts/bytes` answers with audio, `POST /tts/sse` with events."""

from __future__ import annotations

from functools import partial
from secrets import token_hex
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from agent_tts.errors import SpeechError
from agent_tts.events import SpeechOptions
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.context import Words
from agent_tts.serve.dialects.cartesia_messages import (
    CartesiaFields,
    CartesiaRequest,
    ContextEvents,
    Rate,
    RawFormat,
    SampleFormat,
    error_fields,
    failure,
)
from agent_tts.serve.dialects.vendor_http import AudioBody, read_request
from agent_tts.serve.routes.http import Authorized, errors_as, node_of
from agent_tts.serve.routes.speech_response import Body, SpeechResponse
from agent_tts.speech.audio.encoding import Encoder, make_encoder

# ---------------------------------------------------------------- requests


class WavFormat(SampleFormat):
    """A WAV file."""

    container: Literal["wav"]


class Mp3Format(CartesiaFields):
    """An MP3 file."""

    container: Literal["mp3"]
    sample_rate: Rate = 44_100
    bit_rate: Literal[32_000, 64_000, 96_000, 128_000, 192_000] = 128_000

    @property
    def ours(self) -> str:
        """The encoding by this node's name."""
        return "mp3"


class CartesiaBytesRequest(CartesiaRequest):
    """The body of `POST /tts/bytes`."""

    output_format: Annotated[RawFormat | WavFormat | Mp3Format, Field(discriminator="container")]


class CartesiaEventsRequest(CartesiaRequest):
    """The body of `POST /tts/sse`."""

    output_format: RawFormat
    context_id: protocol.NewId | None = None


MEDIA_TYPES = {"raw": "audio/pcm", "wav": "audio/wav", "mp3": "audio/mpeg"}


# ---------------------------------------------------------------- events


class CartesiaEventsBody(Body):
    """Audio and words as server-sent events. See `Body`."""

    def __init__(self, request: CartesiaEventsRequest) -> None:
        audio_format = request.output_format
        self._context_id = request.context_id
        self._encoder: Encoder = make_encoder(audio_format.ours, audio_format.sample_rate)
        self._events = ContextEvents(request.context_id, audio_format)
        # Index of the next sample at the output rate.
        self._first_sample = 0

    def words(self, words: Words) -> bytes:
        """See `Body`: they are sent with their audio."""
        self._events.words.learn(words.words, final=words.kind == "aligned")
        return b""

    def audio(self, pcm: bytes) -> bytes:
        """See `Body`."""
        return b"".join(self._chunk(payload, samples) for payload, samples in self._encoder.encode(pcm))

    def end(self) -> bytes:
        """See `Body`."""
        last = b"".join(self._chunk(payload, samples) for payload, samples in self._encoder.flush())
        return last + b"".join(map(_server_sent, self._events.end()))

    def error(self, error: SpeechError) -> bytes | None:
        """See `Body`."""
        return b"".join(map(_server_sent, failure(self._context_id, error, token_hex(8))))

    def _chunk(self, payload: bytes, samples: int) -> bytes:
        events = self._events.audio(payload, self._first_sample)
        self._first_sample += samples
        return b"".join(map(_server_sent, events))


def _server_sent(event: str) -> bytes:
    return b"data: " + event.encode() + b"\n\n"


# ---------------------------------------------------------------- routes


def router() -> APIRouter:
    """Both routes. Their node is `app.state.node`."""
    routes = APIRouter(dependencies=[errors_as(_error_body)])
    # Documented by Cartesia.
    routes.add_api_route("/tts/bytes", speak_bytes, methods=["POST"], include_in_schema=False)
    routes.add_api_route("/tts/sse", speak_events, methods=["POST"], include_in_schema=False)
    return routes


async def speak_bytes(request: Request, client: Authorized) -> Response:
    """Speak a text: the audio is sent while it is made."""
    wanted = await read_request(request, CartesiaBytesRequest, "transcript")
    options = _options(wanted, request)
    audio = wanted.output_format
    media_type = MEDIA_TYPES[audio.container]
    bit_rate = audio.bit_rate if isinstance(audio, Mp3Format) else None
    make_body = partial(AudioBody, audio.ours, audio.sample_rate, bit_rate, is_wav=audio.container == "wav")
    return SpeechResponse(node_of(request), client, wanted.transcript, options, media_type, make_body)


async def speak_events(request: Request, client: Authorized) -> Response:
    """Speak a text: audio and words are sent as events, while they are made."""
    wanted = await read_request(request, CartesiaEventsRequest, "transcript")
    options = _options(wanted, request)
    return SpeechResponse(
        node_of(request),
        client,
        wanted.transcript,
        options,
        "text/event-stream",
        partial(CartesiaEventsBody, wanted),
        "told" if wanted.add_timestamps else "none",
    )


def _options(wanted: CartesiaRequest, request: Request) -> SpeechOptions:
    """The options of speech, unpaced."""
    config = protocol.SessionConfig(lead_ms=None).merged(wanted.overrides(), protocol.MIN_LEAD_MS)
    return node_of(request).service.resolve(config.options())


def _error_body(error: SpeechError) -> dict[str, Any]:
    return {"status_code": error.status, **error_fields(error, token_hex(8))}
