"""ElevenLabs' HTTP: `/v1/text-to-speech/{voice_id}`, as audio or as JSON with times of characters; `/v1/voices`."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from agent_tts.errors import SpeechError
from agent_tts.events import SAMPLE_RATE
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.context import Word, Words
from agent_tts.serve.dialects.elevenlabs_messages import (
    CONTENT_TYPES,
    DEFAULT_FORMAT,
    FILE_FORMATS,
    AudioFormat,
    CharacterTimes,
    ElevenLabsRequest,
    TimedCharacter,
    format_of,
)
from agent_tts.serve.dialects.vendor_http import ERROR_ANSWER, AudioBody, audio_answer, json_body, read_request
from agent_tts.serve.guard import Client
from agent_tts.serve.routes.http import Authorized, errors_as, node_of
from agent_tts.serve.routes.speech_response import Body, SpeechResponse
from agent_tts.speech.utterance import WordsMode
from agent_tts.speech.words.due_words import DueWords

PATH = "/v1/text-to-speech/{voice_id}"

Format = Annotated[str, Query(description=f"one of {', '.join(FILE_FORMATS)}")]


class ElevenLabsVoice(BaseModel):
    """A voice."""

    voice_id: str
    name: str
    category: Literal["premade", "cloned"]
    description: str
    labels: dict[str, str]


class ElevenLabsVoices(BaseModel):
    """All voices."""

    voices: list[ElevenLabsVoice]


def router() -> APIRouter:
    """All routes of this module. Their node is `app.state.node`."""
    routes = APIRouter(dependencies=[errors_as(error_body)])
    audio = audio_answer(CONTENT_TYPES.values())
    timed = {
        "description": "The audio in base64, and when its characters are spoken.",
        "content": {"application/json": {}},
    }
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
            responses={200: answer, "4XX": ERROR_ANSWER, "5XX": ERROR_ANSWER},
            openapi_extra={"requestBody": json_body(ElevenLabsRequest.json_schema())},
        )
    routes.add_api_route("/v1/voices", list_voices, responses={"4XX": ERROR_ANSWER, "5XX": ERROR_ANSWER})
    return routes


async def list_voices(request: Request, client: Authorized) -> ElevenLabsVoices:
    """The voices that can be spoken."""
    routing = node_of(request).service.routing
    return ElevenLabsVoices(
        voices=[
            ElevenLabsVoice(
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
    audio = format_of(output_format)
    return await _speak(voice_id, request, client, audio.content_type, partial(_audio, audio))


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


def _audio(audio: AudioFormat) -> AudioBody:
    return AudioBody(audio.encoding, audio.sample_rate, audio.bit_rate, is_wav=audio.is_wav)


async def _timed(voice_id: str, request: Request, client: Client, output_format: str, *, whole: bool) -> Response:
    audio = format_of(output_format)
    return await _speak(
        voice_id, request, client, "application/json", lambda: TimedBody(_audio(audio), is_whole=whole), "told"
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
    wanted = await read_request(request, ElevenLabsRequest)
    options = node.service.resolve(wanted.options(voice_id))
    return SpeechResponse(node, client, wanted.text, options, media_type, make_body, words)


# ---------------------------------------------------------------- bodies


class TimedBody(Body):
    """JSON objects, one a line, each with audio and the characters that begin in it. See `Body`.

    Args:
        audio: of the format that is asked for.
        is_whole: send a single object at the end.
    """

    def __init__(self, audio: AudioBody, *, is_whole: bool) -> None:
        self._audio = audio
        self._is_whole = is_whole
        self._due = DueWords[Word]()
        self._characters = CharacterTimes()
        # Bytes and characters for the next object.
        self._data = b""
        self._told: list[TimedCharacter] = []
        # Audio so far, at 24 kHz.
        self._samples = 0

    def words(self, words: Words) -> bytes:
        """See `Body`."""
        self._due.learn(words.words, final=words.kind == "aligned")
        return b""

    def audio(self, pcm: bytes) -> bytes:
        """See `Body`."""
        self._samples += len(pcm) // 2
        self._data += self._audio.audio(pcm)
        audio_ms = round(self._samples * 1_000 / SAMPLE_RATE)
        self._told += self._characters.of(self._due.due(audio_ms))
        return b"" if self._is_whole else self._tell()

    def end(self) -> bytes:
        """See `Body`."""
        self._data += self._audio.end()
        self._told += self._characters.of(self._due.rest())
        return self._tell()

    def _tell(self) -> bytes:
        data, self._data = self._data, b""
        told, self._told = self._told, []
        if not data and not told:
            return b""
        alignment = _character_times(told) if told else None
        body = {
            "audio_base64": base64.b64encode(data).decode(),
            "alignment": alignment,
            "normalized_alignment": alignment,
        }
        return protocol.dump(body).encode() + b"\n"


def _character_times(characters: list[TimedCharacter]) -> dict[str, Any]:
    return {
        "characters": [each.char for each in characters],
        "character_start_times_seconds": [each.start_ms / 1_000 for each in characters],
        "character_end_times_seconds": [each.end_ms / 1_000 for each in characters],
    }
