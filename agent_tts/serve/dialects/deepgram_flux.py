"""Deepgram's Flux: turns on one connection, of which one at a time is spoken (`/v2/speak`)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_tts.errors import UnknownType
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Message
from agent_tts.protocol.context import AudioChunk
from agent_tts.serve.dialects.deepgram import (
    CLOSE_CODES,
    POLICY_VIOLATION,
    Query,
    Speak,
    check,
    described,
    model_uuid,
    session_of,
)
from agent_tts.serve.dialects.turns import Turn, Turns

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

# What the session echoes to the adapter, so that answers that need no work keep their place among the others.
WARNING, SPEED_REFUSED, PROCEED = "warning ", "speed ", "proceed"


class Configure(BaseModel):
    """New settings, for the turns that begin after it."""

    model_config = ConfigDict(frozen=True, strict=True)

    speed: float | None = Field(None, allow_inf_nan=False)


class PlaybackOffset(BaseModel):
    """What the client has played of the session's audio."""

    model_config = ConfigDict(frozen=True, strict=True)

    type: Literal["time_ms"] = "time_ms"
    value: protocol.Milliseconds


class Interrupt(BaseModel):
    """Barge-in."""

    model_config = ConfigDict(frozen=True, strict=True)

    playback_offset: PlaybackOffset | None = None


class FluxAdapter:
    """See `adapter.QueueingAdapter`.

    Positions are milliseconds of the session's audio: what was spoken of all turns before, and of an interrupted one
    what was heard.
    """

    def __init__(self, query: Mapping[str, str], aliases: Mapping[str, str]) -> None:
        self.closing: tuple[int, str] | None = None
        self._query = query
        self._aliases = aliases
        self._turns = Turns()
        # Whether the session has taken the query.
        self._connected = False
        # The turn that is being cancelled, where its audio began, what was played by the client's word, and the text of
        # the turns behind it; None when there is none.
        self._interrupted: tuple[Turn, float | None, str] | None = None
        # Of the turn that is spoken; new for each.
        self._speech_id = _speech_id()
        self._is_started = False  # SpeechStarted was sent for it
        # Where the audio of the turn that is spoken begins.
        self._position_ms = 0
        # Where the last Interrupt was.
        self._interrupt_ms = 0.0
        self._chars = 0  # text of all turns that are over
        self._is_leaving = False  # the client wants to be told the rest and closed

    # ------------------------------------------------------------ from the client

    def begin(self) -> Iterator[Message]:
        """See `Adapter.begin`."""
        yield protocol.build("session.update", session=session_of(check(Query, self._query), self._aliases))

    def decode(self, data: str | bytes) -> Iterator[Message]:
        """See `Adapter.decode`."""
        message = protocol.load(data)
        if self._is_leaving:
            return
        match message.get("type"):
            case "Speak":
                yield from self._turns.write(check(Speak, message).text)
            case "Flush":
                if self._turns.writing is None:
                    yield _echo(WARNING + "NO_ACTIVE_SPEECH")
                else:
                    yield from self._turns.flush()
                    yield _echo(PROCEED)
            case "Interrupt":
                yield from self._interrupt(check(Interrupt, message).playback_offset)
            case "Configure":
                yield _configured(check(Configure, message).speed)
            case "Close":
                self._is_leaving = True
                if self._turns.writing is not None:
                    yield from self._turns.flush()
                yield _echo(PROCEED)
            case "KeepAlive":
                pass
            case _:
                raise UnknownType(f"type is one of {', '.join(TYPES)}")

    def follow(self) -> Iterable[Message]:
        """See `QueueingAdapter.follow`."""
        return self._turns.follow()

    def _interrupt(self, offset: PlaybackOffset | None) -> Iterator[Message]:
        turn = self._turns.speaking
        if self._interrupted is not None:
            yield _echo(WARNING + "INTERRUPT_IN_PROGRESS")
            return
        if offset is not None and offset.value < self._interrupt_ms:
            yield _echo(WARNING + "INVALID_INTERRUPT_OFFSET")
            return
        behind = self._turns.drop()[1:]
        if turn is None or turn.context_id is None:
            if turn is not None:
                self._over(turn)
            yield _echo(WARNING + "NO_ACTIVE_SPEECH")
            return
        offset_ms = None if offset is None else offset.value
        self._interrupted = turn, offset_ms, "".join(text for other in behind for text in other.waiting)
        cancel = protocol.build("context.cancel", context_id=turn.context_id)
        if offset_ms is not None:
            cancel["played_ms"] = max(0.0, offset_ms - self._position_ms - turn.audio_ms)
        yield cancel

    # ------------------------------------------------------------ to the client

    def encode(self, item: Message | AudioChunk) -> list[str | bytes]:
        """See `Adapter.encode`."""
        if isinstance(item, AudioChunk):
            return [item.payload] if item.payload and self._turns.of(item.context_id) is not None else []
        told: list[Message] = []
        match item["type"]:
            case "session.updated":
                told.append(self._updated(item))
            case "context.started" if self._turns.of(item["context_id"]) is not None and not self._is_started:
                self._is_started = True
                told.append(protocol.build("SpeechStarted", speech_id=self._speech_id))
            case "context.cancelled":
                told += self._cancelled(item)
            case "context.done":
                told += self._ended(item)
            case "pong":
                told += _echoed(item["t"])
            case "error":
                told += self._failed(item)
        told += self._proceed()
        return [protocol.dump(message) for message in told]

    def _updated(self, item: Message) -> Message:
        if self._connected:
            return protocol.build("ConfigureSuccess", applied={"speed": item["session"]["speed"]})
        self._connected = True
        model = self._query.get("model") or "default"
        return protocol.build(
            "Connected",
            request_id=str(uuid.uuid4()),
            model_name=model,
            model_version="1",
            model_uuids=[model_uuid(model)],
        )

    def _cancelled(self, item: Message) -> list[Message]:
        if self._interrupted is None:
            return []
        (turn, offset_ms, behind), self._interrupted = self._interrupted, None
        turn.audio_ms += item["generated_ms"]
        metadata = self._over(turn)
        text = {}
        if offset_ms is not None:
            self._position_ms = min(round(offset_ms), self._position_ms)
            text = {"text_spoken": item["heard_text"], "text_remaining": item["unheard_text"] + behind}
        self._interrupt_ms = self._position_ms
        return [protocol.build("SpeechInterrupted", audio_played_ms=self._position_ms, **text, metadata=metadata)]

    def _ended(self, item: Message) -> list[Message]:
        context_id, audio_ms = item["context_id"], item["audio_ms"]
        self._turns.ended(context_id, audio_ms)
        if self._interrupted is None or self._interrupted[0].context_id != context_id:
            return []
        # It had ended before the Interrupt came.
        turn, self._interrupted = self._interrupted[0], None
        turn.audio_ms += audio_ms
        return [*self._finished(turn), _warning("NO_ACTIVE_SPEECH")]

    def _failed(self, item: Message) -> list[Message]:
        code = item["code"]
        # The turn goes on with its next text; a context may end while a message for it is on its way.
        if code in ("starved", "unknown_context"):
            return []
        told = ERROR_CODES.get(code, code.upper())
        self.closing = CLOSE_CODES.get(code, POLICY_VIOLATION), told
        return [protocol.build("Error", code=told, description=described(code, item["message"]))]

    def _proceed(self) -> list[Message]:
        """What is over is told; and, to a client that wants to leave, that all is."""
        told: list[Message] = []
        while (turn := self._turns.finish()) is not None:
            told += self._finished(turn)
        if self._is_leaving and self._turns.speaking is None and self.closing is None:
            self.closing = 1000, "closed by the client"
            totals = {"total_input_character_count": self._chars, "total_billable_character_count": self._chars}
            told.append(protocol.build("SessionMetadata", total_audio_duration_ms=self._position_ms, **totals))
        return told

    def _finished(self, turn: Turn) -> list[Message]:
        """What is told of a turn that was spoken to its end."""
        flushed = protocol.build("Flushed", speech_id=self._speech_id)
        metadata = protocol.build("SpeechMetadata", **self._over(turn))
        return [flushed, metadata] if turn.audio_ms else [_warning("NO_SYNTHESIZABLE_TEXT"), flushed, metadata]

    def _over(self, turn: Turn) -> dict[str, Any]:
        """Count a turn, however it ended; its figures."""
        self._chars += turn.chars
        self._position_ms += turn.audio_ms
        speech_id, self._speech_id, self._is_started = self._speech_id, _speech_id(), False
        return {
            "speech_id": speech_id,
            "audio_duration_ms": turn.audio_ms,
            "input_character_count": turn.chars,
            "billable_character_count": turn.chars,
            "controls_applied": {"pronunciations_applied": 0, "breaks_applied": 0, "pronunciation_warnings": 0},
        }


def _configured(speed: float | None) -> Message:
    fields = {} if speed is None else {"speed": speed}
    try:
        protocol.SessionConfig.model_validate(fields)
    except ValidationError:
        return _echo(f"{SPEED_REFUSED}{speed}")
    return protocol.build("session.update", session=fields)


def _echo(text: str) -> Message:
    return protocol.build("ping", t=text)


def _echoed(text: str) -> list[Message]:
    if text.startswith(WARNING):
        return [_warning(text.removeprefix(WARNING))]
    if text.startswith(SPEED_REFUSED):
        speed = protocol.SessionConfig.model_json_schema()["properties"]["speed"]
        allowed = f"speed is {speed['minimum']} to {speed['maximum']}"
        value = float(text.removeprefix(SPEED_REFUSED))
        return [
            protocol.build(
                "ConfigureFailure", code="SPEED_OUT_OF_RANGE", field="speed", value=value, description=allowed
            )
        ]
    return []


def _warning(code: str) -> Message:
    return protocol.build("Warning", code=code, description=WARNINGS[code])


def _speech_id() -> str:
    return f"dg_sp_{uuid.uuid4().hex[:12]}"
