"""Deepgram: what its WebSocket protocols and its HTTP API share, and Aura's protocol, `/v1/speak`. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping

from pydantic import Field

from agent_tts.errors import SpeechError, UnknownType, UnknownVoice, UnsupportedFormat, cut_short
from agent_tts.messages import Cancel, Finished
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Close, Command, Echo, Event, Failed, Update, Updated
from agent_tts.protocol.options import Lenient
from agent_tts.protocol.v1 import Message
from agent_tts.protocol.validation import check_message
from agent_tts.serve.dialects.utterances import UtterancesAdapter
from agent_tts.speech.routing import ANY_NAME

# What Pipecat's and LiveKit's classes send when their user names no voice.
STOCK_MODELS = frozenset({"aura-2-helena-en", "aura-2-andromeda-en", "flux-heather-en", "flux-alexis-en"})

# Encodings of raw audio by Deepgram's names: this node's name, and the default rate in Hz.
ENCODINGS = {"linear16": ("pcm_s16le", 24_000), "mulaw": ("mulaw", 8_000), "alaw": ("alaw", 8_000)}

AURA_TYPES = ("Speak", "Flush", "Clear", "Close")


class DeepgramQuery(Lenient, strict=False):
    """The query of a connection or request."""

    model: str | None = Field(None, max_length=256)  # the voice
    encoding: str | None = None
    sample_rate: int | None = None
    speed: float | None = Field(None, allow_inf_nan=False)

    def session(self, aliases: Mapping[str, str]) -> Message:
        """Voice and speed as fields of a session. Of `STOCK_MODELS` only names in the node's `aliases` are voices."""
        is_stock = self.model in STOCK_MODELS and self.model not in aliases and ANY_NAME not in aliases
        speed = {} if self.speed is None else {"speed": self.speed}
        return {"voice": None if is_stock else self.model or None, **speed}

    def raw_format(self) -> tuple[str, int]:
        """Encoding, by this node's name, and sample rate (Hz) of raw audio; raises `UnsupportedFormat`."""
        if (found := ENCODINGS.get(self.encoding or "linear16")) is None:
            raise UnsupportedFormat(f"encoding of raw audio is one of {', '.join(ENCODINGS)}")
        encoding, usual_rate = found
        return encoding, usual_rate if self.sample_rate is None else self.sample_rate


class SpeakMessage(Lenient):
    text: str


def described(error: SpeechError) -> str:
    """The text of an error; for an unknown voice also what the node's operator can do."""
    if isinstance(error, UnknownVoice):
        return f"{error.message}; voice_aliases, a setting of the node, gives voices other names"
    return error.message


def cut_short_warning(audio_ms: int) -> Message:
    """Tells that a context ended with `length`, after `audio_ms` of speech."""
    error = cut_short(audio_ms)
    return protocol.build("Warning", description=error.message, code=error.code.upper())


def model_uuid(model: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, model))


class DeepgramAdapter(UtterancesAdapter):
    """What Aura and Flux share."""

    def __init__(self, query: Mapping[str, str], aliases: Mapping[str, str]) -> None:
        super().__init__()
        self._query = query
        self._aliases = aliases

    def begin(self) -> Iterator[Command]:
        query = check_message(DeepgramQuery, self._query)
        encoding, sample_rate = query.raw_format()
        output = {"encoding": encoding, "sample_rate": sample_rate}
        # No message of these protocols has times of words.
        yield Update(query.session(self._aliases) | {"timestamps": "none", "output": output})

    def _described_model(self) -> Message:
        name = self._query.get("model") or "default"
        return {
            "request_id": str(uuid.uuid4()),
            "model_name": name,
            "model_version": "1",
            "model_uuid": model_uuid(name),
        }


class AuraAdapter(DeepgramAdapter):
    """Text and flushes on one connection, a `Flushed` for each flush."""

    def __init__(self, query: Mapping[str, str], aliases: Mapping[str, str]) -> None:
        super().__init__(query, aliases)
        # Answers to Flush and Clear so far.
        self._answered = 0

    def decode(self, data: str | bytes) -> Iterator[Command]:
        message = protocol.load(data)
        match message.get("type"):
            case "Speak":
                yield from self._queue.write(self._apart(check_message(SpeakMessage, message).text))
            case "Flush":
                # Without text before it, only earlier flushes are answered first.
                yield Echo(protocol.build("Flushed") if self._queue.speaking is None else None)
                yield from self._queue.flush()
            case "Clear":
                dropped = self._queue.drop()
                yield Echo(protocol.build("Cleared"))
                if dropped and dropped[0].context_id is not None:
                    yield Cancel(dropped[0].context_id)
            case "Close":
                yield Close()
            case "KeepAlive":
                pass
            case _:
                raise UnknownType(f"type is one of {', '.join(AURA_TYPES)}")

    def _answers(self, event: Event) -> Iterator[Message]:
        match event:
            case Updated():
                yield protocol.build("Metadata", **self._described_model(), additional_model_uuids=[])
            case Finished(reason=reason, audio_ms=audio_ms):
                self._queue.ended(event)
                if reason == "length":
                    yield cut_short_warning(audio_ms)
            case Echo(item=answer) if answer is not None:
                yield self._numbered(answer)
            case Failed(error=error) if self._closes(error.code, error.code):
                message = described(error)
                yield protocol.build("Error", description=message, message=message, variant=error.code)
        while (utterance := self._queue.finish()) is not None:
            for _ in range(utterance.flushes):
                yield self._numbered(protocol.build("Flushed"))

    def _apart(self, text: str) -> str:
        """The text, after a space if it begins a sentence and the text before it ended one without white space."""
        utterance = self._queue.writing
        return f" {text}" if utterance is not None and utterance.tail in ".!?" and text[:1].isupper() else text

    def _numbered(self, answer: Message) -> Message:
        answer["sequence_id"] = self._answered
        self._answered += 1
        return answer
