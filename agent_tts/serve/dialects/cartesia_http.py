"""Cartesia's HTTP routes: `POST /tts/bytes` answers with audio, `POST /tts/sse` with events."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from secrets import token_hex
from typing import Annotated, ClassVar, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from agent_tts.errors import SpeechError
from agent_tts.messages import Words
from agent_tts.options import SpeechOptions
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.options import Lenient
from agent_tts.serve.dialects import cartesia
from agent_tts.serve.node import Node
from agent_tts.serve.routes.http import Authorized, Here, errors_as, read_request
from agent_tts.serve.routes.speech_response import AudioBody, Body, SpeechResponse, server_sent
from agent_tts.speech.audio.encoding import Chunk, make_encoder
from agent_tts.speech.utterance import WordsMode

# ---------------------------------------------------------------- requests


class WavFormat(cartesia.SampleFormat):
    container: Literal["wav"]


class Mp3Format(Lenient):
    container: Literal["mp3"]
    sample_rate: cartesia.Rate = 44_100
    bit_rate: Literal[32_000, 64_000, 96_000, 128_000, 192_000] = 128_000
    ours: ClassVar = "mp3"


class CartesiaBytesRequest(cartesia.CartesiaRequest):
    """The body of `POST /tts/bytes`."""

    output_format: Annotated[cartesia.RawFormat | WavFormat | Mp3Format, Field(discriminator="container")]


class CartesiaEventsRequest(cartesia.CartesiaRequest):
    """The body of `POST /tts/sse`."""

    output_format: cartesia.RawFormat
    context_id: protocol.NewId | None = None


MEDIA_TYPES = {"raw": "audio/pcm", "wav": "audio/wav", "mp3": "audio/mpeg"}


# ---------------------------------------------------------------- events


class CartesiaEventsBody(Body):
    """Audio and words as server-sent events."""

    def __init__(self, request: CartesiaEventsRequest) -> None:
        audio_format = request.output_format
        self._context_id = request.context_id
        self._encoder = make_encoder(audio_format.ours, audio_format.sample_rate)
        self._events = cartesia.ContextEvents(request.context_id, audio_format, request.prologue + request.transcript)
        # Index of the next sample at the output rate.
        self._first_sample = 0

    def words(self, words: Words[str]) -> None:
        self._events.words.learn(words.words, final=words.kind == "aligned")

    def audio(self, pcm: bytes) -> bytes:
        return server_sent(self._audio(self._encoder.encode(pcm)))

    def end(self) -> bytes:
        return server_sent([*self._audio(self._encoder.flush()), *self._events.end()])

    def error(self, error: SpeechError) -> bytes:
        return server_sent(cartesia.failure(self._context_id, error, token_hex(8)))

    def _audio(self, chunks: list[Chunk]) -> Iterator[str]:
        for payload, samples in chunks:
            yield from self._events.audio(payload, self._first_sample)
            self._first_sample += samples


# ---------------------------------------------------------------- routes


# A dependency of routes: sends errors in Cartesia's format.
cartesia_errors = errors_as(lambda error: {"status_code": error.status, **cartesia.error_fields(error, token_hex(8))})

# Cartesia documents its routes.
routes = APIRouter(dependencies=[cartesia_errors], include_in_schema=False)


@routes.post("/tts/bytes")
async def speak_bytes(request: Request, node: Here, client: Authorized) -> Response:
    """Speak a text: the audio is sent while it is made."""
    wanted = await read_request(request, CartesiaBytesRequest, "transcript")
    audio = wanted.output_format
    media_type = MEDIA_TYPES[audio.container]
    make_body = partial(AudioBody, audio.ours, audio.sample_rate, audio.bit_rate, is_wav=audio.container == "wav")
    text, options = wanted.prologue + wanted.transcript, await _options(node, wanted)
    return SpeechResponse(node, client, text, options, media_type, make_body)


@routes.post("/tts/sse")
async def speak_events(request: Request, node: Here, client: Authorized) -> Response:
    """Speak a text: audio and words are sent as events, while they are made."""
    wanted = await read_request(request, CartesiaEventsRequest, "transcript")
    words: WordsMode = "told" if wanted.add_timestamps else "none"
    text, options = wanted.prologue + wanted.transcript, await _options(node, wanted)
    make_body = partial(CartesiaEventsBody, wanted)
    return SpeechResponse(node, client, text, options, "text/event-stream", make_body, words)


async def _options(node: Node, wanted: cartesia.CartesiaRequest) -> SpeechOptions:
    def unpaced() -> SpeechOptions:
        return node.unpaced(wanted.overrides(node.dictionaries))

    return unpaced() if wanted.pronunciation_dict_id is None else await node.reading(unpaced)
