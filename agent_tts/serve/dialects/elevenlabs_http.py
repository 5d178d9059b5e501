"""ElevenLabs' HTTP: `/v1/text-to-speech/{voice_id}`, as audio or as JSON with times of characters; `/v1/voices`."""

from __future__ import annotations

import base64
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import SpeechError
from agent_tts.messages import Words
from agent_tts.options import SpeechOptions
from agent_tts.protocol import v1 as protocol
from agent_tts.serve.dialects.elevenlabs_messages import (
    DEFAULT_FORMAT,
    FILE_FORMATS,
    KINDS,
    AudioFormat,
    CharacterTimes,
    ElevenLabsRequest,
    TimedCharacter,
    format_of,
)
from agent_tts.serve.node import Node
from agent_tts.serve.routes.http import AUDIO, VENDOR_ERRORS, Authorized, errors_as, node_of, read_request, speaks
from agent_tts.serve.routes.speech_response import AudioBody, SpeechResponse
from agent_tts.speech.words.due_words import DueWords


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


async def _asked(
    output_format: Annotated[str, Query(description=f"one of {', '.join(FILE_FORMATS)}")] = DEFAULT_FORMAT,
) -> AudioFormat:
    return format_of(output_format)


Format = Annotated[AudioFormat, Depends(_asked)]


def error_body(error: SpeechError) -> dict[str, Any]:
    return {"detail": {"status": error.code, "message": error.message}}


routes = APIRouter(dependencies=[errors_as(error_body)])

PATH = "/v1/text-to-speech/{voice_id}"

_SPEAKS = speaks(ElevenLabsRequest, {content_type: AUDIO for _, content_type in KINDS.values()})
_SPEAKS_TIMED = speaks(
    ElevenLabsRequest, {"application/json": {}}, "The audio in base64, and when its characters are spoken."
)


@routes.get("/v1/voices", responses=VENDOR_ERRORS)
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


@routes.post(PATH, **_SPEAKS)
@routes.post(PATH + "/stream", **_SPEAKS)
async def create_audio(voice_id: str, request: Request, client: Authorized, audio: Format) -> Response:
    """Speak a text: the audio is sent while it is made."""
    wanted = await read_request(request, ElevenLabsRequest)
    make_body = partial(AudioBody, audio.encoding, audio.sample_rate, audio.bit_rate, is_wav=audio.is_wav)
    node = node_of(request)
    options, media_type = await _options(voice_id, node, wanted), audio.content_type
    return SpeechResponse(node, client, wanted.text, options, media_type, make_body)


@routes.post(PATH + "/with-timestamps", **_SPEAKS_TIMED)
@routes.post(PATH + "/stream/with-timestamps", **_SPEAKS_TIMED)
async def create_timed(voice_id: str, request: Request, client: Authorized, audio: Format) -> Response:
    """Speak a text: its audio and times in one object, with `stream` an object a line; sent while it is made."""
    wanted, node = await read_request(request, ElevenLabsRequest), node_of(request)
    options = await _options(voice_id, node, wanted)
    in_one = not request.url.path.endswith("/stream/with-timestamps")
    make_body = partial(OneTimedBody if in_one else TimedBody, audio, wanted.text)
    return SpeechResponse(node, client, wanted.text, options, "application/json", make_body, "told", ends_aside=in_one)


async def _options(voice_id: str, node: Node, wanted: ElevenLabsRequest) -> SpeechOptions:
    if not wanted.pronunciation_dictionary_locators:
        return wanted.options(voice_id, node)
    return await node.reading(wanted.options, voice_id, node)


# ---------------------------------------------------------------- bodies


class TimedBody(AudioBody):
    """JSON objects, one a line, each with audio and the characters that begin in it."""

    def __init__(self, audio: AudioFormat, text: str) -> None:
        super().__init__(audio.encoding, audio.sample_rate, audio.bit_rate, is_wav=audio.is_wav)
        self._due = DueWords()
        self._characters = CharacterTimes(text)
        # Characters for the next object.
        self._told: list[TimedCharacter] = []
        # Audio so far, at 24 kHz.
        self._samples = 0

    def words(self, words: Words[str]) -> bytes:
        self._due.learn(words.words, final=words.kind == "aligned")
        return b""

    def audio(self, pcm: bytes) -> bytes:
        self._samples += len(pcm) // 2
        audio_ms = round(self._samples * 1_000 / SAMPLE_RATE)
        self._told += self._characters.of(self._due.due(audio_ms))
        return self._tell(super().audio(pcm))

    def end(self) -> bytes:
        self._told += self._characters.of(self._due.rest())
        return self._tell(super().end(), last=True)

    def _tell(self, data: bytes, *, last: bool = False) -> bytes:
        if not data and not self._told:
            return b""
        return f'{{"audio_base64":"{base64.b64encode(data).decode()}",{self._alignments()}}}\n'.encode()

    def _alignments(self) -> str:
        """The fields with the times of `_told`, which is empty then."""
        told, self._told = self._told, []
        alignment = {
            "characters": [each.char for each in told],
            "character_start_times_seconds": [each.start_ms / 1_000 for each in told],
            "character_end_times_seconds": [each.end_ms / 1_000 for each in told],
        }
        text = protocol.dump(alignment) if told else "null"
        return f'"alignment":{text},"normalized_alignment":{text}'


class OneTimedBody(TimedBody):
    """One object: the audio, which is sent while it is made, and behind it the times of all characters."""

    def __init__(self, audio: AudioFormat, text: str) -> None:
        super().__init__(audio, text)
        # What is sent before the next audio; and the rest of it, less than the three bytes of four characters.
        self._opening = b'{"audio_base64":"'
        self._rest = b""

    def _tell(self, data: bytes, *, last: bool = False) -> bytes:
        data = self._rest + data
        size = len(data) if last else len(data) - len(data) % 3
        data, self._rest = data[:size], data[size:]
        opening, self._opening = self._opening, b""
        return opening + base64.b64encode(data) + (f'",{self._alignments()}}}\n'.encode() if last else b"")
