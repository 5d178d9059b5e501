"""Cartesia's WebSocket, `/tts/websocket`: contexts with text, flushes, cancels and times of words."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from secrets import token_hex
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from agent_tts.config.settings import Limits
from agent_tts.errors import BadMessage, SpeechError, TextTooLong, cut_short
from agent_tts.messages import Append, Audio, Cancel, End, Finished, Flush, Flushed, Open, Word, Words
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Command, Created, Event, Failed, ProtocolAdapter
from agent_tts.protocol.options import Lenient, SpeakerEmbedding
from agent_tts.protocol.validation import check_message
from agent_tts.serve.dialects.text import spaced
from agent_tts.serve.dictionaries import Dictionaries, LoadedDictionaries
from agent_tts.speech.words.due_words import DueWords

# ---------------------------------------------------------------- from the client

Encoding = Literal["pcm_s16le", "pcm_f32le", "pcm_mulaw", "pcm_alaw"]
Rate = Literal[8_000, 16_000, 22_050, 24_000, 44_100, 48_000]

# Cartesia's names lead to this node's name, and bytes of a sample.
ENCODINGS: dict[Encoding, tuple[str, int]] = {
    "pcm_s16le": ("pcm_s16le", 2),
    "pcm_f32le": ("pcm_f32le", 4),
    "pcm_mulaw": ("mulaw", 1),
    "pcm_alaw": ("alaw", 1),
}

# Sent by clients whose user named no voice: LiveKit's class sends the first, Cartesia's own the second to end a text.
PLACEHOLDER_VOICES = {"f786b574-daa5-4673-aa0c-cbe3e8534c02", "6ccbfb76-1fc6-48f7-b71d-91ac6298247b"}

SPEEDS = {"slowest": 0.6, "slow": 0.8, "normal": 1.0, "fast": 1.25, "fastest": 1.5}


class CartesiaControls(Lenient):
    """How to speak; in API versions up to 2024-11-13 a part of the voice."""

    speed: float | str | None = None
    emotion: str | Annotated[list[str], Field(fail_fast=True)] | None = None

    @field_validator("speed")
    @classmethod
    def _is_known(cls, speed: float | str | None) -> float | str | None:
        if isinstance(speed, str) and speed not in SPEEDS:
            raise ValueError(f"should be a number or one of {', '.join(SPEEDS)}")
        return speed

    def absolute(self) -> CartesiaControls:
        """The controls of a voice, whose speed is a number from -1 to 1, with the speed as a factor."""
        if not isinstance(self.speed, float):
            return self
        span = SPEEDS["fastest"] - 1 if self.speed > 0 else 1 - SPEEDS["slowest"]
        return self.model_copy(update={"speed": 1 + span * self.speed})

    def overrides(self) -> dict[str, Any]:
        """The fields of a session that they stand for."""
        fields: dict[str, Any] = {}
        if self.speed is not None:
            fields["speed"] = SPEEDS[self.speed] if isinstance(self.speed, str) else self.speed
        emotion = self.emotion[0] if isinstance(self.emotion, list) and self.emotion else self.emotion
        if isinstance(emotion, str) and emotion.lower() != "neutral":
            fields["instructions"] = f"Emotion: {emotion.partition(':')[0].lower()}."
        return fields


class GenerationConfig(CartesiaControls):
    """How to speak, in later API versions."""

    volume: float | None = Field(None, ge=0, le=4)


class CartesiaVoice(Lenient):
    id: str | None = None
    embedding: SpeakerEmbedding | None = None
    controls: CartesiaControls = Field(CartesiaControls(), alias="__experimental_controls")


class SampleFormat(Lenient):
    encoding: Encoding = "pcm_s16le"
    sample_rate: Rate = 24_000
    bit_rate: ClassVar = None

    @property
    def ours(self) -> str:
        """The encoding by this node's name."""
        return ENCODINGS[self.encoding][0]


class RawFormat(SampleFormat):
    container: Literal["raw"] = "raw"


class CartesiaRequest(Lenient):
    """The fields of every request to speak."""

    transcript: str = ""
    voice: str | CartesiaVoice | None = None
    language: str | None = None
    locale: str | None = None
    generation_config: GenerationConfig | None = None
    speed: Literal["slow", "normal", "fast"] | None = None
    normalization: str | None = None
    pronunciation_dict_id: str | None = None
    add_timestamps: bool | None = None

    @property
    def prologue(self) -> str:
        """What stands before the first text."""
        volume = self.generation_config.volume if self.generation_config else None
        return "" if volume is None else f'<volume ratio="{volume:.3f}"/>'

    def overrides(self, dictionaries: Dictionaries | LoadedDictionaries) -> dict[str, Any]:
        """The fields of a session without its output, and without a model: the voice decides which one speaks.

        Raises `UnknownDictionary`.
        """
        voice = self.voice if isinstance(self.voice, CartesiaVoice) else CartesiaVoice(id=self.voice)
        fields: dict[str, Any] = {
            "language": self.language or self.locale,
            "timestamps": "word" if self.add_timestamps else "none",
        }
        if self.normalization is not None:
            fields["normalize"] = self.normalization != "off"
        if self.pronunciation_dict_id is not None:
            fields["lexicon"] = dictionaries.lexicon([(self.pronunciation_dict_id, None)])
        if voice.embedding is not None:
            fields["speaker_embedding"] = voice.embedding
        elif voice.id not in PLACEHOLDER_VOICES:
            fields["voice"] = voice.id
        generation = self.generation_config or CartesiaControls()
        for controls in (voice.controls.absolute(), CartesiaControls(speed=self.speed), generation):
            fields |= controls.overrides()
        return fields


# ---------------------------------------------------------------- to the client

MORE, ALL = 206, 200  # HTTP statuses: a part, the whole


class ContextEvents:
    """The events of one context, as JSON texts; `audio_format` is that of its audio."""

    def __init__(self, context_id: str | None, audio_format: RawFormat, text: str = "") -> None:
        # Words that wait for their audio, and the text so far that has them.
        self.words = DueWords()
        self.text = text
        self._context_id = context_id
        self._sample_bytes = ENCODINGS[audio_format.encoding][1]
        self._samples_ms = audio_format.sample_rate / 1_000
        # Flushes that have been answered.
        self._flushed = 0
        # Whether the client has ended the context, and whether it was cancelled.
        self.is_ended = self.is_cancelled = False

    def audio(self, payload: bytes, first_sample: int) -> Iterator[str]:
        """The next audio, after the words that begin in it. `first_sample`: its index at the output rate."""
        samples = first_sample + len(payload) // self._sample_bytes
        yield from self._timestamps(self.words.due(samples / self._samples_ms))
        if payload:
            data, flush_id = base64.b64encode(payload).decode(), self._flushed + 1
            yield _dump("chunk", self._context_id, MORE, done=False, data=data, step_time=0.0, flush_id=flush_id)

    def flushed(self) -> str:
        self._flushed += 1
        return _dump("flush_done", self._context_id, MORE, done=False, flush_done=True, flush_id=self._flushed)

    def end(self) -> Iterator[str]:
        """All audio has been sent: the last words and the end."""
        yield from self._timestamps(self.words.rest())
        yield self.done()

    def done(self) -> str:
        return _dump("done", self._context_id, ALL, done=True)

    def _timestamps(self, words: list[Word]) -> Iterator[str]:
        """Times are in seconds from the context's first sample.

        Phones are no word: Pipecat's class, which has put them in the place of a word, expects none for them.
        """
        words = [word for word in words if word.word[0] == "<" or not self.text.startswith("<<", word.char_start)]
        if words:
            times = {
                "words": [word.word for word in words],
                "start": [word.start_ms / 1_000 for word in words],
                "end": [word.end_ms / 1_000 for word in words],
            }
            yield _dump("timestamps", self._context_id, MORE, done=False, word_timestamps=times)


def failure(context_id: str | None, error: SpeechError, request_id: str) -> Iterator[str]:
    """The last events of a context that failed; without a context only the error.

    `done` has an event of its own: LiveKit's class takes an error that is done for a success, and Pipecat's waits three
    seconds for more after an error without `done`.
    """
    yield _dump("error", context_id, error.status, done=False, **error_fields(error, request_id))
    if context_id is not None:
        yield _dump("done", context_id, error.status, done=True)


def error_fields(error: SpeechError, request_id: str) -> dict[str, str | int]:
    """The fields of an error besides its status."""
    title = error.code.replace("_", " ").capitalize()
    return {"title": title, "message": error.message, "error_code": error.code, "request_id": request_id, **error.again}


def _dump(type_: str, context_id: str | None, status: int, **fields: Any) -> str:
    return protocol.dump({"type": type_, "context_id": context_id, "status_code": status, **fields})


# ---------------------------------------------------------------- the adapter

# Failed contexts that are remembered, so that a client's text in flight does not open them again.
MAX_REMEMBERED = 64


class GenerationMessage(CartesiaRequest):
    context_id: protocol.NewId | None = None
    output_format: RawFormat = RawFormat()
    cancel: bool | None = None
    continue_: bool | None = Field(None, alias="continue")
    flush: bool | None = None
    max_buffer_delay_ms: int | None = None


class CartesiaAdapter(ProtocolAdapter):
    """An error ends its context; its later text is dropped, up to the message that would have ended it. After `starved`
    all text has been spoken, and later text goes on in a new context.
    """

    def __init__(self, limits: Limits, dictionaries: Dictionaries) -> None:
        self._limits = limits
        self._dictionaries = LoadedDictionaries(dictionaries)
        # Those that have not ended.
        self._contexts: dict[str, ContextEvents] = {}
        # Contexts that failed before the client ended them, oldest first.
        self._failed: dict[str, None] = {}
        # The session's id, for error messages.
        self._request_id = ""

    # ------------------------------------------------------------ from the client

    def prepare(self, data: str | bytes) -> Callable[[], object] | None:
        if isinstance(data, bytes) or '"pronunciation_dict_id"' not in data:
            return None
        fields = protocol.load(data)
        wanted = fields.get("pronunciation_dict_id")
        if not isinstance(wanted, str) or protocol.context_of(fields) in self._contexts:
            return None
        return partial(self._dictionaries.load, [(wanted, None)])

    def decode(self, data: str | bytes) -> Iterator[Command]:
        fields = protocol.load(data)
        try:
            message = check_message(GenerationMessage, fields)
        except SpeechError as error:
            yield from self._refuse(protocol.context_of(fields), error, is_last=not fields.get("continue"))
            return
        if message.cancel:
            yield from self._cancel(message.context_id)
        else:
            yield from self._generate(message)

    def _cancel(self, context_id: str | None) -> Iterator[Command]:
        if context_id is None:
            raise BadMessage("context_id: is needed to cancel")
        self._failed.pop(context_id, None)
        context = self._contexts.get(context_id)
        if context is not None and not context.is_cancelled:  # otherwise it has ended already
            context.is_cancelled = True
            yield Cancel(context_id)

    def _generate(self, message: GenerationMessage) -> Iterator[Command]:
        # A new id is different from all that clients choose.
        context_id, is_last = message.context_id or f"context-{token_hex(8)}", not message.continue_
        context = self._contexts.get(context_id)
        if context_id in self._failed:
            if is_last:
                del self._failed[context_id]
            return
        if context is not None and context.is_cancelled:
            context.is_ended |= is_last
            return
        text = spaced(message.transcript, is_whole=message.max_buffer_delay_ms == 0)
        try:
            self._check(context, text)
            opening = message.overrides(self._dictionaries) if context is None else {}
        except SpeechError as error:
            yield from self._refuse(context_id, error, is_last=is_last)
        if context is None:
            text, audio = message.prologue + text, message.output_format
            context = self._contexts[context_id] = ContextEvents(context_id, audio)
            context.is_ended = is_last
            output = {"encoding": audio.ours, "sample_rate": audio.sample_rate, "framing": "binary"}
            yield Open(context_id, {"output": output} | opening)  # pyrefly: ignore[unbound-name]
        elif context.is_ended:
            return
        context.is_ended = is_last
        if text:
            context.text += text
            yield Append(context_id, text)
        if message.flush:
            yield Flush(context_id)
        if is_last:
            yield End(context_id)

    def _check(self, context: ContextEvents | None, text: str) -> None:
        """Refuse more text: raises what the session would only find after the context was opened."""
        if context is not None and context.is_ended and text.strip():
            raise BadMessage("its context was ended by a message without continue: use another context_id")
        limits = self._limits
        if len(text) > limits.text_message_chars:
            raise TextTooLong(f"transcript of one message is at most {limits.text_message_chars} characters")
        if context is not None and len(context.text) + len(text) > limits.text_context_chars:
            raise TextTooLong(f"text of one context is at most {limits.text_context_chars} characters")

    def _refuse(self, context_id: str | None, error: SpeechError, *, is_last: bool) -> Iterator[Command]:
        """End a context because of a message and raise the error; `is_last`: the message would have ended it anyway.

        A context that the client has ended is spoken to its end; the error names no context then.
        """
        context = None if context_id is None else self._contexts.get(context_id)
        if context_id is None or (context is not None and context.is_ended):
            raise error
        if context is None:
            if not is_last:
                self._fail(context_id)
        elif not context.is_cancelled:
            context.is_cancelled, context.is_ended = True, is_last
            yield Cancel(context_id)
        raise error.about(context_id)

    # ------------------------------------------------------------ to the client

    def encode(self, event: Event) -> Iterable[str]:
        if isinstance(event, Created):
            self._request_id = event.session_id
        elif isinstance(event, Failed) and event.error.code != "unknown_context":  # else a message was on its way
            return self._error(event.id, event.error)
        context_id: str | None = getattr(event, "id", None)
        if context_id is None or (context := self._contexts.get(context_id)) is None:
            return ()
        match event:
            case Audio(payload=payload, first_sample=first_sample):
                return context.audio(payload, first_sample)
            case Words(words=words, kind=kind):
                context.words.learn(words, final=kind == "aligned")
            case Flushed():
                return [context.flushed()]
            case Finished(reason=reason) if reason != "error":  # already told; a new context may have its id
                return self._done(context_id, context, event)
        return ()

    def _done(self, context_id: str, context: ContextEvents, done: Finished[str]) -> Iterable[str]:
        del self._contexts[context_id]
        if done.reason == "length":
            if not context.is_ended:
                self._fail(context_id)
            return failure(context_id, cut_short(done.audio_ms), self._request_id)
        return [context.done()] if done.reason == "cancelled" else context.end()

    def _error(self, context_id: str | None, error: SpeechError) -> Iterable[str]:
        context = None if context_id is None else self._contexts.pop(context_id, None)
        if context is not None and context_id is not None and not context.is_ended and error.code != "starved":
            self._fail(context_id)
        return failure(context_id, error, self._request_id)

    def _fail(self, context_id: str) -> None:
        self._failed[context_id] = None
        if len(self._failed) > MAX_REMEMBERED:
            del self._failed[next(iter(self._failed))]
