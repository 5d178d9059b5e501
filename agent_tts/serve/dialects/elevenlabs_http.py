"""ElevenLabs' HTTP: speech and dialogues, as audio or as JSON with times of characters; `/v1/voices`."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import InvalidRequest, SpeechError
from agent_tts.messages import Word, Words
from agent_tts.options import SpeechOptions
from agent_tts.protocol import v1 as protocol
from agent_tts.serve.access.guard import Client
from agent_tts.serve.dialects.elevenlabs_messages import (
    DEFAULT_FORMAT,
    FILE_FORMATS,
    KINDS,
    MAX_VOICES,
    AudioFormat,
    CharacterTimes,
    DialogueInput,
    DialogueRequest,
    ElevenLabsRequest,
    SpokenRequest,
    TimedCharacter,
    format_of,
)
from agent_tts.serve.node import Node
from agent_tts.serve.routes.http import (
    AUDIO,
    VENDOR_ERRORS,
    Authorized,
    Here,
    errors_as,
    read_request,
    speaks,
    told_aside,
)
from agent_tts.serve.routes.speech_response import AudioBody, SpeechResponse
from agent_tts.speech.routing import Routing
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

PATH, DIALOGUE = "/v1/text-to-speech/{voice_id}", "/v1/text-to-dialogue"
TIMED = "/with-timestamps"

_AUDIO = {content_type: AUDIO for _, content_type in KINDS.values()}
_timed = partial(speaks, content={"application/json": {}}, description="Audio in base64, and times of its characters.")
_SPEAKS, _SPEAKS_TIMED = speaks(ElevenLabsRequest, _AUDIO), _timed(ElevenLabsRequest)
_DIALOGUE, _DIALOGUE_TIMED = speaks(DialogueRequest, _AUDIO), _timed(DialogueRequest)


@routes.get("/v1/voices", response_model=ElevenLabsVoices, responses=VENDOR_ERRORS)
async def list_voices(node: Here, client: Authorized) -> Response:
    """The voices that can be spoken."""
    return await told_aside(node, lambda: _voices(node.service.routing))


def _voices(routing: Routing) -> ElevenLabsVoices:
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
@routes.post(PATH + TIMED, **_SPEAKS_TIMED)
@routes.post(PATH + "/stream" + TIMED, **_SPEAKS_TIMED)
async def create_audio(voice_id: str, request: Request, node: Here, client: Authorized, audio: Format) -> Response:
    """Speak a text: the audio, or audio and times in one object, with `stream` an object a line; sent while made."""
    wanted = await read_request(request, ElevenLabsRequest)
    lines = [DialogueInput(text=wanted.text, voice_id=voice_id)]
    return await _spoken(request.url.path, node, client, audio, wanted, lines)


@routes.post(DIALOGUE, **_DIALOGUE)
@routes.post(DIALOGUE + "/stream", **_DIALOGUE)
@routes.post(DIALOGUE + TIMED, **_DIALOGUE_TIMED)
@routes.post(DIALOGUE + "/stream" + TIMED, **_DIALOGUE_TIMED)
async def create_dialogue(request: Request, node: Here, client: Authorized, audio: Format) -> Response:
    """Speak lines in several voices, one after another: the answer is that of one text."""
    wanted = await read_request(request, DialogueRequest)
    return await _spoken(request.url.path, node, client, audio, wanted, wanted.inputs)


async def _spoken(
    path: str, node: Node, client: Client, audio: AudioFormat, wanted: SpokenRequest, lines: Sequence[DialogueInput]
) -> Response:
    voices = dict.fromkeys(line.voice_id for line in lines)
    if len(voices) > MAX_VOICES:
        raise InvalidRequest(f"inputs: at most {MAX_VOICES} voices", "inputs")
    options = {voice: await _options(voice, node, wanted) for voice in voices}
    # The response resolves the first line's options itself.
    resolved = {voice: node.service.resolve(options[voice]) for voice in voices} if len(lines) > 1 else {}
    first, then = lines[0], [(line.text, resolved[line.voice_id]) for line in lines[1:]]
    speak = partial(SpeechResponse, node, client, first.text, options[first.voice_id], then=then)
    if not path.endswith(TIMED):
        make_body = partial(AudioBody, audio.encoding, audio.sample_rate, audio.bit_rate, is_wav=audio.is_wav)
        return speak(audio.content_type, make_body)
    in_one = not path.endswith("/stream" + TIMED)
    body, is_dialogue = OneTimedBody if in_one else TimedBody, isinstance(wanted, DialogueRequest)
    make_timed = partial(body, audio, lines, is_dialogue=is_dialogue)
    return speak("application/json", make_timed, "told", ends_aside=in_one)


async def _options(voice_id: str | None, node: Node, wanted: SpokenRequest) -> SpeechOptions:
    if not wanted.pronunciation_dictionary_locators:
        return wanted.options(voice_id, node)
    return await node.reading(wanted.options, voice_id, node)


# ---------------------------------------------------------------- bodies


class TimedBody(AudioBody):
    """JSON objects, one a line, each with audio and the characters that begin in it; of a dialogue, whose they are."""

    def __init__(self, audio: AudioFormat, lines: Sequence[DialogueInput], *, is_dialogue: bool = False) -> None:
        super().__init__(audio.encoding, audio.sample_rate, audio.bit_rate, is_wav=audio.is_wav)
        self._lines, self._is_dialogue = lines, is_dialogue
        # The place of the line that is spoken, and its words.
        self._place = 0
        self._due = DueWords()
        self._characters = CharacterTimes(lines[0].text)
        # Characters for the next object, and whose they are.
        self._told: list[TimedCharacter] = []
        self._segments: list[dict[str, Any]] = []
        # Audio so far, at 24 kHz.
        self._samples = 0

    def words(self, words: Words[str]) -> None:
        self._due.learn(words.words, final=words.kind == "aligned")

    def audio(self, pcm: bytes) -> bytes:
        self._samples += len(pcm) // 2
        self._take(self._due.due(self._audio_ms() - self._characters.begin_ms))
        return self._tell(super().audio(pcm))

    def turn(self) -> None:
        self._take(self._due.rest())
        self._place += 1
        self._due, self._characters = DueWords(), CharacterTimes(self._lines[self._place].text, self._audio_ms())

    def end(self) -> bytes:
        self._take(self._due.rest())
        return self._tell(super().end(), last=True)

    def _audio_ms(self) -> int:
        return round(self._samples * 1_000 / SAMPLE_RATE)

    def _take(self, words: list[Word]) -> None:
        told = self._characters.of(words)
        if not told:
            return
        if not self._segments or self._segments[-1]["dialogue_input_index"] != self._place:
            start = {"start_time_seconds": told[0].start_ms / 1_000, "character_start_index": len(self._told)}
            voice = self._lines[self._place].voice_id
            self._segments.append(start | {"voice_id": voice, "dialogue_input_index": self._place})
        self._told += told
        self._segments[-1] |= {"end_time_seconds": told[-1].end_ms / 1_000, "character_end_index": len(self._told)}

    def _tell(self, data: bytes, *, last: bool = False) -> bytes:
        if not data and not self._told:
            return b""
        return f'{{"audio_base64":"{base64.b64encode(data).decode()}",{self._alignments()}}}\n'.encode()

    def _alignments(self) -> str:
        """The fields with the times of `_told`, which is empty then."""
        told, self._told, segments, self._segments = self._told, [], self._segments, []
        alignment = {
            "characters": [each.char for each in told],
            "character_start_times_seconds": [each.start_ms / 1_000 for each in told],
            "character_end_times_seconds": [each.end_ms / 1_000 for each in told],
        }
        text = protocol.dump(alignment) if told else "null"
        fields = f'"alignment":{text},"normalized_alignment":{text}'
        return f'{fields},"voice_segments":{json.dumps(segments)}' if self._is_dialogue else fields


class OneTimedBody(TimedBody):
    """One object: the audio, which is sent while it is made, and behind it the times of all characters."""

    # What is sent before the next audio; and the rest of it, less than the three bytes of four characters.
    _opening, _rest = b'{"audio_base64":"', b""

    def _tell(self, data: bytes, *, last: bool = False) -> bytes:
        data = self._rest + data
        size = len(data) if last else len(data) - len(data) % 3
        data, self._rest = data[:size], data[size:]
        opening, self._opening = self._opening, b""
        return opening + base64.b64encode(data) + (f'",{self._alignments()}}}\n'.encode() if last else b"")
