"""jambonz' streaming API for custom TTS vendors: text and flushes on one connection, for one call. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import Field

from agent_tts.errors import UnknownType
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Command, Echo, Event, Failed, Update, Updated
from agent_tts.protocol.options import Lenient, VoiceName, limits
from agent_tts.protocol.v1 import Message
from agent_tts.protocol.validation import check_message
from agent_tts.serve.dialects.utterances import TextMessage, UtterancesAdapter

TYPES = ("stream", "flush", "stop", "keepalive")
RATES = (8_000, 16_000, 24_000, 32_000, 48_000)  # Hz that jambonz takes; it resamples


class JambonzVoice(Lenient):
    """Who speaks. jambonz sends both names always; an empty one is the node's choice."""

    voice: VoiceName | None = None
    language: str | None = Field(None, **limits("language"))

    def session(self) -> Message:
        """As fields of a session."""
        return {"voice": self.voice or None, "language": self.language or "auto"}


class JambonzAdapter(UtterancesAdapter):
    """See `UtterancesAdapter`.

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
                yield Echo()  # of an utterance that has starved there may be nothing else to come
                yield from self._flush()
            case "stop":
                yield from self._silence()
            case "keepalive":
                pass
            case _:
                raise UnknownType(f"type is one of {', '.join(TYPES)}")

    def _answers(self, event: Event) -> Iterator[Message]:
        match event:
            case Updated():
                yield protocol.build("connect", data={"sample_rate": self._rate, "base64_encoding": False})
            case Failed(error=error) if self._closes(error.code, error.code):
                yield protocol.build("error", error=error.message)
