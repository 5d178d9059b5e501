"""What Cartesia's clients are told while a context is spoken, over every transport of theirs. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from agent_tts.errors import SpeechError
from agent_tts.protocol.context import Word
from agent_tts.serve.dialects.cartesia_request import RawFormat
from agent_tts.speech.words.due_words import DueWords
from agent_tts.text.breaks import BreakTokens

SAMPLE_BYTES = {"pcm_s16le": 2, "pcm_f32le": 4, "mulaw": 1, "alaw": 1}

MORE, ALL = 206, 200  # HTTP's statuses for a part and for the whole


class ContextEvents:
    """The events of one context, as JSON texts.

    Args:
        audio_format: of the audio that it will be given.
    """

    def __init__(self, context_id: str | None, audio_format: RawFormat) -> None:
        # Words whose audio has not been told.
        self.words = DueWords[Word]()
        self._context_id = context_id
        self._sample_bytes = SAMPLE_BYTES[audio_format.ours]
        self._samples_ms = audio_format.sample_rate / 1_000
        # Flushes whose audio has been told.
        self._flushed = 0
        # Finds the tags for pauses among the words.
        self._breaks = BreakTokens()

    def audio(self, payload: bytes, first_sample: int) -> Iterator[str]:
        """The next piece, and the words that begin with it. `first_sample`: its index at the output rate."""
        samples = first_sample + len(payload) // self._sample_bytes
        if words := self._spoken(self.words.due(samples / self._samples_ms)):
            yield self._timestamps(words)
        if payload:
            data, flush_id = base64.b64encode(payload).decode(), self._flushed + 1
            yield self._dump("chunk", MORE, done=False, data=data, step_time=0.0, flush_id=flush_id)

    def flushed(self) -> str:
        """All audio before a flush has been told."""
        self._flushed += 1
        return self._dump("flush_done", MORE, done=False, flush_done=True, flush_id=self._flushed)

    def end(self) -> Iterator[str]:
        """All has been told but the last words."""
        if words := self._spoken(self.words.rest()):
            yield self._timestamps(words)
        yield self.done()

    def done(self) -> str:
        """There is nothing more."""
        return self._dump("done", ALL, done=True)

    def _spoken(self, words: list[Word]) -> list[Word]:
        """The words without the parts of tags for pauses."""
        spoken = []
        for word in words:
            part = self._breaks.read(word.word)
            if text := word.word[part.start : part.end]:
                spoken.append(replace(word, word=text))
        return spoken

    def _timestamps(self, words: list[Word]) -> str:
        """Times are in seconds from the context's first sample."""
        times = {
            "words": [word.word for word in words],
            "start": [word.start_ms / 1_000 for word in words],
            "end": [word.end_ms / 1_000 for word in words],
        }
        return self._dump("timestamps", MORE, done=False, word_timestamps=times)

    def _dump(self, type_: str, status: int, **fields: Any) -> str:
        return _dump(type_, self._context_id, status, fields)


def failure(context_id: str | None, error: SpeechError, request_id: str) -> Iterator[str]:
    """The last events of a context that failed, or what is wrong when it is about none.

    It is `done` in an event of its own: LiveKit's class takes an error that is done for a good end, and Pipecat's waits
    three seconds for more after one without.
    """
    yield _dump("error", context_id, error.status, {"done": False, **error_fields(error, request_id)})
    if context_id is not None:
        yield _dump("done", context_id, error.status, {"done": True})


def error_fields(error: SpeechError, request_id: str) -> dict[str, str]:
    """What Cartesia says of an error besides its status."""
    title = error.code.replace("_", " ").capitalize()
    return {"title": title, "message": error.message, "error_code": error.code, "request_id": request_id}


def _dump(type_: str, context_id: str | None, status: int, fields: dict[str, Any]) -> str:
    event = {"type": type_, "context_id": context_id, "status_code": status, **fields}
    return json.dumps(event, separators=(",", ":"), allow_nan=False)
