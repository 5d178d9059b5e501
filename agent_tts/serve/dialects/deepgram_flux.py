"""Deepgram's Flux: utterances, which it calls turns, on one connection, spoken one at a time (`/v2/speak`)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from agent_tts.errors import UnknownType
from agent_tts.messages import Cancel, Cancelled, Finished, Started
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Command, Echo, Event, Failed, Update, Updated
from agent_tts.protocol.options import Lenient, SessionConfig
from agent_tts.protocol.v1 import Message
from agent_tts.protocol.validation import check_message
from agent_tts.serve.dialects.deepgram import (
    DeepgramAdapter,
    SpeakMessage,
    cut_short_warning,
    described,
)
from agent_tts.serve.dialects.utterances import QueuedUtterance

TYPES = ("Speak", "Flush", "Interrupt", "Configure", "Close")

# Deepgram's codes of errors; others keep the node's own.
ERROR_CODES = {
    "bad_message": "MESSAGE-0000",
    "unknown_type": "MESSAGE-0000",
    "text_too_long": "BIG-0000",
    "unknown_voice": "DATA-0000",
    "unsupported_format": "DATA-0000",
    "unsupported_language": "DATA-0000",
}

WARNINGS = {
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
    """See `ProtocolAdapter`.

    Positions are milliseconds of the session's audio: all that was spoken of earlier utterances, but of an interrupted
    one only what was heard.
    """

    def __init__(self, query: Mapping[str, str], aliases: Mapping[str, str]) -> None:
        super().__init__(query, aliases)
        self._connected = False  # the session has taken the query
        # The utterance that is being cancelled, the client's playback offset in ms, and the text of the utterances
        # after it; None when there is none.
        self._interrupted: tuple[QueuedUtterance, float | None, str] | None = None
        # The first utterance's id.
        self._speech_id = _speech_id()
        self._is_started = False  # SpeechStarted was sent for it
        self._position_ms = 0  # where its audio begins
        # The position of the last Interrupt.
        self._interrupt_ms = 0.0
        self._chars = 0  # text of all utterances that are over
        self._is_leaving = False  # the client has sent Close: the rest is spoken first

    # ------------------------------------------------------------ from the client

    def decode(self, data: str | bytes) -> Iterator[Command]:
        message = protocol.load(data)
        if self._is_leaving:
            return
        match message.get("type"):
            case "Speak":
                yield from self._queue.write(check_message(SpeakMessage, message).text)
            case "Flush":
                if self._queue.writing is None:
                    yield Echo(_warning("NO_ACTIVE_SPEECH"))
                else:
                    yield from self._queue.flush()
                    yield Echo()
            case "Interrupt":
                yield self._interrupt(check_message(InterruptMessage, message).playback_offset)
            case "Configure":
                yield self._configure(check_message(ConfigureMessage, message).speed)
            case "Close":
                self._is_leaving = True
                if self._queue.writing is not None:
                    yield from self._queue.flush()
                yield Echo()
            case "KeepAlive":
                pass
            case _:
                raise UnknownType(f"type is one of {', '.join(TYPES)}")

    def _configure(self, speed: float | None) -> Command:
        fields = {} if speed is None else {"speed": speed}
        try:
            SessionConfig.model_validate(fields)
        except ValidationError:
            limit = SessionConfig.model_json_schema()["properties"]["speed"]
            failure = protocol.build("ConfigureFailure", code="SPEED_OUT_OF_RANGE", field="speed", value=speed)
            failure["description"] = f"speed is {limit['minimum']} to {limit['maximum']}"
            return Echo(failure)
        return Update(fields)

    def _interrupt(self, offset: PlaybackOffset | None) -> Command:
        if self._interrupted is not None:
            return Echo(_warning("INTERRUPT_IN_PROGRESS"))
        if offset is not None and offset.value < self._interrupt_ms:
            return Echo(_warning("INVALID_INTERRUPT_OFFSET"))
        dropped = self._queue.drop()
        utterance = dropped[0] if dropped else None
        if utterance is None or utterance.context_id is None:
            if utterance is not None:
                self._over(utterance)
            return Echo(_warning("NO_ACTIVE_SPEECH"))
        offset_ms = None if offset is None else offset.value
        self._interrupted = utterance, offset_ms, "".join(text for other in dropped[1:] for text in other.waiting)
        if offset_ms is None:
            return Cancel(utterance.context_id)
        return Cancel(utterance.context_id, max(0.0, offset_ms - self._position_ms - utterance.audio_ms))

    # ------------------------------------------------------------ to the client

    def _answers(self, event: Event) -> Iterator[Message]:
        match event:
            case Updated(session=session) if self._connected:
                yield protocol.build("ConfigureSuccess", applied={"speed": session.speed})
            case Updated():
                self._connected = True
                model = self._described_model()
                model["model_uuids"] = [model.pop("model_uuid")]
                yield protocol.build("Connected", **model)
            case Started(id=context_id) if self._queue.of(context_id) is not None and not self._is_started:
                self._is_started = True
                yield protocol.build("SpeechStarted", speech_id=self._speech_id)
            case Cancelled() if self._interrupted is not None:
                interrupted, self._interrupted = self._interrupted, None
                yield self._cut(event, *interrupted)
            case Finished(reason=reason, audio_ms=audio_ms):
                if reason == "length":
                    yield cut_short_warning(audio_ms)
                yield from self._ended(event)
            case Echo(item=answer) if answer is not None:
                yield answer
            case Failed(error=error):
                code = ERROR_CODES.get(error.code, error.code.upper())
                if self._closes(error.code, code):
                    yield protocol.build("Error", code=code, description=described(error))
        while (utterance := self._queue.finish()) is not None:
            yield from self._finished(utterance)
        if self._is_leaving and self._queue.speaking is None and self.closing is None:
            self.closing = 1000, "closed by the client"
            totals = {"total_input_character_count": self._chars, "total_billable_character_count": self._chars}
            yield protocol.build("SessionMetadata", total_audio_duration_ms=self._position_ms, **totals)

    def _cut(self, cut: Cancelled[str], utterance: QueuedUtterance, offset_ms: float | None, behind: str) -> Message:
        """The answer to an Interrupt, whose context has been cancelled."""
        utterance.audio_ms += cut.generated_ms
        metadata = self._over(utterance)
        text = {}
        if offset_ms is not None:
            self._position_ms = min(round(offset_ms), self._position_ms)
            text = {"text_spoken": cut.heard_text, "text_remaining": cut.unheard_text + behind}
        self._interrupt_ms = self._position_ms
        return protocol.build("SpeechInterrupted", audio_played_ms=self._position_ms, **text, metadata=metadata)

    def _ended(self, done: Finished[str]) -> Iterator[Message]:
        self._queue.ended(done)
        if self._interrupted is not None and self._interrupted[0].context_id == done.id:
            # It had ended before the Interrupt came.
            utterance, self._interrupted = self._interrupted[0], None
            utterance.audio_ms += done.audio_ms
            yield from self._finished(utterance)
            yield _warning("NO_ACTIVE_SPEECH")

    def _finished(self, utterance: QueuedUtterance) -> Iterator[Message]:
        """The answers to an utterance that was spoken to its end."""
        if not utterance.audio_ms:
            yield _warning("NO_SYNTHESIZABLE_TEXT")
        yield protocol.build("Flushed", speech_id=self._speech_id)
        yield protocol.build("SpeechMetadata", **self._over(utterance))

    def _over(self, utterance: QueuedUtterance) -> dict[str, Any]:
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
    return protocol.build("Warning", code=code, description=WARNINGS[code])


def _speech_id() -> str:
    return f"dg_sp_{uuid.uuid4().hex[:12]}"
