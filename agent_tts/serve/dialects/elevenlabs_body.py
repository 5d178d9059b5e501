"""The bodies of ElevenLabs' responses that say when characters are spoken. Pure."""

from __future__ import annotations

import base64
import json
from typing import Any

from agent_tts.errors import SpeechError
from agent_tts.events import SAMPLE_RATE
from agent_tts.protocol.context import Word, Words
from agent_tts.serve.dialects.audio_body import AudioBody
from agent_tts.serve.dialects.elevenlabs_alignment import Character, Characters
from agent_tts.speech.words.due_words import DueWords


class TimedBody:
    """Objects of JSON, one a line, with the audio and the characters that begin in it; or all in one. See `Body`.

    Args:
        audio: of the format that is asked for.
        is_whole: one object at the end.
    """

    def __init__(self, audio: AudioBody, *, is_whole: bool) -> None:
        self._audio = audio
        self._is_whole = is_whole
        self._due = DueWords[Word]()
        self._characters = Characters()
        # Bytes and characters that wait to be told, where that happens at the end.
        self._data = b""
        self._told: list[Character] = []
        # At 24 kHz.
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

    def error(self, error: SpeechError) -> bytes | None:
        """See `Body`: there is no object for it."""
        return None

    def close(self) -> None:
        """See `Body`."""
        self._audio.close()

    def _tell(self) -> bytes:
        data, self._data = self._data, b""
        told, self._told = self._told, []
        if not data and not told:
            return b""
        alignment = _alignment(told) if told else None
        body = {
            "audio_base64": base64.b64encode(data).decode(),
            "alignment": alignment,
            "normalized_alignment": alignment,
        }
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _alignment(characters: list[Character]) -> dict[str, Any]:
    return {
        "characters": [each.char for each in characters],
        "character_start_times_seconds": [each.start_ms / 1_000 for each in characters],
        "character_end_times_seconds": [each.end_ms / 1_000 for each in characters],
    }
