"""The body of a speech response: an audio file, plain or in OpenAI's server-sent events."""

from __future__ import annotations

import base64

from agent_tts.errors import SpeechError
from agent_tts.serve.routes import openai
from agent_tts.serve.routes.speech_response import Body
from agent_tts.speech.audio.files import FileEncoder


class FileBody(Body):
    """The plain file."""

    def __init__(self, format: str) -> None:
        self._file = FileEncoder(format)

    def audio(self, pcm: bytes) -> bytes:
        """See `Body`."""
        return self._file.encode(pcm)

    def end(self) -> bytes:
        """See `Body`."""
        return self._file.close()

    def close(self) -> None:
        """See `Body`."""
        self._file.close()


class EventBody(FileBody):
    """The file's bytes in `speech.audio.delta` events, with an event for the end and for an error."""

    def __init__(self, format: str, text: str) -> None:
        super().__init__(format)
        self._text = text
        self._frames = 0

    def audio(self, pcm: bytes) -> bytes:
        """See `Body`."""
        self._frames += 1
        return _delta(super().audio(pcm))

    def end(self) -> bytes:
        """See `Body`."""
        usage = openai.Usage.of(self._text, self._frames)
        return _delta(super().end()) + openai.server_sent(openai.AudioDone(usage=usage))

    def error(self, error: SpeechError) -> bytes | None:
        """See `Body`."""
        return openai.server_sent(openai.AudioError.of_error(error))


def _delta(data: bytes) -> bytes:
    return openai.server_sent(openai.AudioDelta(audio=base64.b64encode(data).decode())) if data else b""
