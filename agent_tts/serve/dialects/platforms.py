"""Telephone platforms with a custom voice: Vapi's `voice-request`, jambonz' HTTP and its streaming API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from agent_tts.errors import BadMessage, UnknownType
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Command, Event, Failed, Update, Updated
from agent_tts.protocol.options import Lenient, VoiceName, check_format, limits
from agent_tts.protocol.v1 import Message
from agent_tts.protocol.validation import check_body, check_message, decode
from agent_tts.serve.dialects.utterances import TextMessage, UtterancesAdapter
from agent_tts.serve.routes.http import AUDIO, Authorized, Here, errors_as, read_as, read_request, speaks
from agent_tts.serve.routes.speech_response import AudioBody, SpeechResponse

VAPI_BYTES = 256 * 1_024  # of what Vapi tells of the call besides
VAPI_VALUES = 16_384  # in all objects and lists of it
MP3_RATE = 24_000  # Hz
JAMBONZ_TYPES = ("stream", "flush", "stop", "keepalive")
RATES = (8_000, 16_000, 24_000, 32_000, 48_000)  # Hz that jambonz takes; it resamples


class VapiRequest(Lenient):
    """The `message` of a request; what it tells of the call is ignored."""

    type: Literal["voice-request"]
    text: str
    sampleRate: int = 24_000


class JambonzVoice(Lenient):
    """Who speaks. jambonz sends both names always; an empty one is the node's choice."""

    voice: VoiceName | None = None
    language: str | None = Field(None, **limits("language"))

    def session(self) -> Message:
        """As fields of a session."""
        return {"voice": self.voice or None, "language": self.language or "auto"}


class JambonzRequest(JambonzVoice):
    type: Literal["text", "ssml"] = "text"
    text: str = Field(min_length=1, pattern=r"\S", description="text to speak; tags are obeyed in both types")


routes = APIRouter(dependencies=[errors_as(lambda error: {"error": error.message})])


@routes.post("/v1/vapi", **speaks(VapiRequest, {"application/octet-stream": AUDIO}))
async def create_audio_for_vapi(
    request: Request,
    node: Here,
    client: Authorized,
    voice: Annotated[str | None, Query(max_length=200)] = None,
    language: Annotated[str, Query(max_length=100)] = "auto",
    speed: Annotated[float, Query(ge=0.25, le=4)] = 1.0,
) -> Response:
    """Speak for a Vapi assistant with a custom voice: raw 16-bit PCM, sent while it is made."""
    max_chars = node.settings.limits.text_context_chars
    wanted = await read_as(request, lambda body: check_body(VapiRequest, _message(body), "text", max_chars), VAPI_BYTES)
    check_format("pcm_s16le", wanted.sampleRate)
    session = {"voice": voice, "language": language, "speed": speed}
    media_type, make_body = "application/octet-stream", partial(AudioBody, "pcm_s16le", wanted.sampleRate)
    return SpeechResponse(node, client, wanted.text, node.unpaced(session), media_type, make_body)


def _message(body: bytes) -> bytes:
    """The fields of Vapi's message that are used; of the call it may tell much."""
    try:
        message = decode(body, "", VAPI_VALUES)["message"]
        return json.dumps({name: message[name] for name in VapiRequest.model_fields if name in message}).encode()
    except (BadMessage, KeyError, TypeError):
        return b"{}"


@routes.post("/v1/jambonz", **speaks(JambonzRequest, {"audio/mpeg": AUDIO}))
async def create_audio_for_jambonz(request: Request, node: Here, client: Authorized) -> Response:
    """Speak for jambonz, as a custom speech vendor."""
    wanted = await read_request(request, JambonzRequest)
    options, make_body = node.unpaced(wanted.session()), partial(AudioBody, "mp3", MP3_RATE)
    return SpeechResponse(node, client, wanted.text, options, "audio/mpeg", make_body)


# ---------------------------------------------------------------- jambonz' streaming API


class JambonzAdapter(UtterancesAdapter):
    """jambonz' streaming API: text and flushes on one connection, for one call. Pure.

    Args:
        query: of the connection: voice, language, sampleRate.
    """

    def __init__(self, query: Mapping[str, str]) -> None:
        super().__init__()
        self._query = query
        rate = query.get("sampleRate", "")
        self._rate = int(rate) if rate in map(str, RATES) else 16_000

    def begin(self) -> Iterator[Command]:
        output = {"encoding": "pcm_s16le", "sample_rate": self._rate}
        voice = check_message(JambonzVoice, self._query).session()
        yield Update(voice | {"timestamps": "none", "output": output})

    def decode(self, data: str | bytes) -> Iterator[Command]:
        message = protocol.load(data)
        match message.get("type"):
            case "stream":
                # jambonz cuts the text between words and sends no space there.
                yield from self._write(f"{check_message(TextMessage, message).text} ")
            case "flush":
                yield from self._flush()
            case "stop":
                yield from self._silence()
            case "keepalive":
                pass
            case _:
                raise UnknownType(f"type is one of {', '.join(JAMBONZ_TYPES)}")

    def _answers(self, event: Event) -> Iterator[Message]:
        match event:
            case Updated():
                yield protocol.build("connect", data={"sample_rate": self._rate, "base64_encoding": False})
            case Failed(error=error) if self._closes(error.code, error.code):
                yield protocol.build("error", error=error.message, **error.again)
