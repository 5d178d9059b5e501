"""Deepgram's WebSockets, Aura's `/v1/speak` and Flux' `/v2/speak`, and what they share with its HTTP API. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from agent_tts.errors import SpeechError, UnknownType, UnknownVoice, UnsupportedFormat, cut_short
from agent_tts.messages import Cancelled, Finished, Started
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Close, Command, Echo, Event, Failed, Later, Update, Updated
from agent_tts.protocol.options import Lenient, SessionConfig, limits
from agent_tts.protocol.v1 import Message
from agent_tts.protocol.validation import check_message
from agent_tts.serve.dialects.utterances import SpokenUtterance, TextMessage, UtterancesAdapter
from agent_tts.speech.routing import ANY_NAME

# What Pipecat's and LiveKit's classes send when their user names no voice.
STOCK_MODELS = frozenset({"aura-2-helena-en", "aura-2-andromeda-en", "flux-heather-en", "flux-alexis-en"})

# Encodings of raw audio by Deepgram's names: this node's name, and the default rate in Hz.
ENCODINGS = {"linear16": ("pcm_s16le", 24_000), "mulaw": ("mulaw", 8_000), "alaw": ("alaw", 8_000)}


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


# ---------------------------------------------------------------- Aura

AURA_TYPES = ("Speak", "Flush", "Clear", "Close")


class AuraAdapter(DeepgramAdapter):
    """Text and flushes on one connection, a `Flushed` for each flush."""

    _answered = 0  # answers to Flush and Clear so far

    def decode(self, data: str | bytes) -> Iterator[Command]:
        message = protocol.load(data)
        match message.get("type"):
            case "Speak":
                yield from self._write(check_message(TextMessage, message).text)
            case "Flush":
                if self._utterance is None:
                    yield Echo(protocol.build("Flushed"))
                else:
                    yield from self._flush()
            case "Clear":
                yield Echo(protocol.build("Cleared"))
                yield from self._silence()
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
            case Finished(reason="length", audio_ms=audio_ms):
                yield cut_short_warning(audio_ms)
            case Echo(item=answer) if answer is not None:
                yield self._numbered(answer)
            case Failed(error=error) if self._closes(error.code, error.code):
                message = described(error)
                yield protocol.build("Error", description=message, message=message, variant=error.code, **error.again)

    def _spoken(self, utterance: SpokenUtterance) -> Iterator[Message]:
        for _ in range(utterance.flushes):
            yield self._numbered(protocol.build("Flushed"))

    def _numbered(self, answer: Message) -> Message:
        answer["sequence_id"] = self._answered
        self._answered += 1
        return answer


# ---------------------------------------------------------------- Flux

FLUX_TYPES = ("Speak", "Flush", "Interrupt", "Configure", "Close")

# Flux' codes of errors; others keep the node's own.
FLUX_CODES = {
    "bad_message": "MESSAGE-0000",
    "unknown_type": "MESSAGE-0000",
    "text_too_long": "BIG-0000",
    "unknown_voice": "DATA-0000",
    "unsupported_format": "DATA-0000",
    "unsupported_language": "DATA-0000",
}

FLUX_WARNINGS = {
    "NO_ACTIVE_SPEECH": "there is no active turn",
    "NO_SYNTHESIZABLE_TEXT": "the turn has no text that can be spoken",
    "INTERRUPT_IN_PROGRESS": "an earlier Interrupt is still being processed",
    "INVALID_INTERRUPT_OFFSET": "playback_offset lies before that of an earlier Interrupt",
}


class ConfigureMessage(Lenient):
    """New settings, for the utterances that begin after it."""

    speed: float | None = Field(None, allow_inf_nan=False)


class PlaybackOffset(Lenient):
    """How much of the session's audio the client has played."""

    type: Literal["time_ms"] = "time_ms"
    value: protocol.Milliseconds


class InterruptMessage(Lenient):
    playback_offset: PlaybackOffset | None = None


class FluxAdapter(DeepgramAdapter):
    """Utterances, which Flux calls turns, on one connection, spoken one at a time.

    Positions are milliseconds of the session's audio: all that was spoken of earlier utterances, but of an interrupted
    one only what was heard.
    """

    def __init__(self, query: Mapping[str, str], aliases: Mapping[str, str]) -> None:
        super().__init__(query, aliases)
        self._connected = False  # the session has taken the query
        # The utterance that is being cancelled, the client's playback offset in ms, and the text that waited for its
        # end; None when there is none.
        self._interrupted: tuple[SpokenUtterance, float | None, str] | None = None
        # The first utterance's id.
        self._speech_id = _speech_id()
        self._is_started = False  # SpeechStarted was sent for it
        self._position_ms = 0  # where its audio begins
        # The position of the last Interrupt.
        self._interrupt_ms = 0.0
        self._chars = 0  # text of all utterances that are over
        self._is_leaving = False  # the client has sent Close: the rest is spoken first
        self._is_last = False  # no text waits behind the utterance then

    # ------------------------------------------------------------ from the client

    def decode(self, data: str | bytes) -> Iterator[Command]:
        message = protocol.load(data)
        if self._is_leaving:
            return
        match message.get("type"):
            case "Speak":
                yield from self._write(check_message(TextMessage, message).text)
            case "Flush":
                if self._is_writing:
                    yield from self._flush()
                else:
                    yield Echo(_warning("NO_ACTIVE_SPEECH"))
            case "Interrupt":
                yield from self._interrupt(check_message(InterruptMessage, message).playback_offset)
            case "Configure":
                yield self._configure(check_message(ConfigureMessage, message).speed)
            case "Close":
                self._is_leaving = True
                yield from self._leave()
            case "KeepAlive":
                pass
            case _:
                raise UnknownType(f"type is one of {', '.join(FLUX_TYPES)}")

    def _leave(self, *, has_waited: bool = False) -> Iterator[Command]:
        utterance = self._utterance
        if utterance is not None and self._waiting and not has_waited:
            yield Later(utterance.context_id, 0, self._leave(has_waited=True))
            return
        if utterance is not None and not utterance.flushes:
            yield from self._flush()
        self._is_last = True
        yield Echo()

    def _configure(self, speed: float | None) -> Command:
        fields = {} if speed is None else {"speed": speed}
        try:
            SessionConfig.model_validate(fields)
        except ValidationError:
            failure = protocol.build("ConfigureFailure", code="SPEED_OUT_OF_RANGE", field="speed", value=speed)
            failure["description"] = "speed is {ge} to {le}".format(**limits("speed"))
            return Echo(failure)
        return Update(fields)

    def _interrupt(self, offset: PlaybackOffset | None) -> Iterator[Command]:
        utterance, offset_ms = self._utterance, None if offset is None else offset.value
        if self._interrupted is not None:
            yield Echo(_warning("INTERRUPT_IN_PROGRESS"))
        elif offset_ms is not None and offset_ms < self._interrupt_ms:
            yield Echo(_warning("INVALID_INTERRUPT_OFFSET"))
        elif utterance is None or not utterance.context_id:
            if utterance is not None:
                self._over(utterance)
            yield from self._silence()
            yield Echo(_warning("NO_ACTIVE_SPEECH"))
        else:
            self._interrupted = utterance, offset_ms, "".join(self._waiting)
            begun_ms = self._position_ms + utterance.audio_ms
            yield from self._silence(None if offset_ms is None else max(0.0, offset_ms - begun_ms))

    # ------------------------------------------------------------ to the client

    def encode(self, event: Event) -> list[str | bytes]:
        told = super().encode(event)
        if self._is_last and self._utterance is None and self.closing is None:
            self.closing = 1000, "closed by the client"
            totals = {"total_input_character_count": self._chars, "total_billable_character_count": self._chars}
            metadata = protocol.build("SessionMetadata", total_audio_duration_ms=self._position_ms, **totals)
            told.append(protocol.dump(metadata))
        return told

    def _answers(self, event: Event) -> Iterator[Message]:
        match event:
            case Updated(session=session) if self._connected:
                yield protocol.build("ConfigureSuccess", applied={"speed": session.speed})
            case Updated():
                self._connected = True
                model = self._described_model()
                model["model_uuids"] = [model.pop("model_uuid")]
                yield protocol.build("Connected", **model)
            case Started(id=context_id) if self._of(context_id) is not None and not self._is_started:
                self._is_started = True
                yield protocol.build("SpeechStarted", speech_id=self._speech_id)
            case Cancelled() if self._interrupted is not None:
                interrupted, self._interrupted = self._interrupted, None
                yield self._cut(event, *interrupted)
            case Finished(reason=reason, audio_ms=audio_ms):
                if reason == "length":
                    yield cut_short_warning(audio_ms)
                yield from self._late(event.id, audio_ms)
            case Echo(item=answer) if answer is not None:
                yield answer
            case Failed(error=error):
                code = FLUX_CODES.get(error.code, error.code.upper())
                if self._closes(error.code, code):
                    yield protocol.build("Error", code=code, description=described(error), **error.again)

    def _cut(self, cut: Cancelled[str], utterance: SpokenUtterance, offset_ms: float | None, unsaid: str) -> Message:
        """The answer to an Interrupt, whose context has been cancelled."""
        utterance.audio_ms += cut.generated_ms
        metadata = self._over(utterance)
        text = {}
        if offset_ms is not None:
            self._position_ms = min(round(offset_ms), self._position_ms)
            text = {"text_spoken": cut.heard_text, "text_remaining": cut.unheard_text + unsaid}
        self._interrupt_ms = self._position_ms
        return protocol.build("SpeechInterrupted", audio_played_ms=self._position_ms, **text, metadata=metadata)

    def _late(self, context_id: str, audio_ms: int) -> Iterator[Message]:
        """The answers to an Interrupt of a context that had ended before it came."""
        if self._interrupted is not None and self._interrupted[0].context_id == context_id:
            utterance, self._interrupted = self._interrupted[0], None
            utterance.audio_ms += audio_ms
            yield from self._spoken(utterance)
            yield _warning("NO_ACTIVE_SPEECH")

    def _spoken(self, utterance: SpokenUtterance) -> Iterator[Message]:
        if not utterance.audio_ms:
            yield _warning("NO_SYNTHESIZABLE_TEXT")
        yield protocol.build("Flushed", speech_id=self._speech_id)
        yield protocol.build("SpeechMetadata", **self._over(utterance))

    def _over(self, utterance: SpokenUtterance) -> dict[str, Any]:
        """Count an utterance, for whatever reason it ended, and return its figures."""
        self._chars += utterance.chars
        self._position_ms += utterance.audio_ms
        speech_id, self._speech_id, self._is_started = self._speech_id, _speech_id(), False
        return {
            "speech_id": speech_id,
            "audio_duration_ms": utterance.audio_ms,
            "input_character_count": utterance.chars,
            "billable_character_count": utterance.chars,
            "controls_applied": {"pronunciations_applied": 0, "breaks_applied": 0, "pronunciation_warnings": 0},
        }


def _warning(code: str) -> Message:
    return protocol.build("Warning", code=code, description=FLUX_WARNINGS[code])


def _speech_id() -> str:
    return f"dg_sp_{uuid.uuid4().hex[:12]}"
