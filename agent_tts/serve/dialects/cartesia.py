"""Cartesia's WebSocket, `/tts/websocket`: contexts that are written, flushed and cancelled, with times of words."""

from __future__ import annotations

import base64
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, ValidationError

from agent_tts.errors import BadMessage, SpeechError, TextTooLong, from_code
from agent_tts.serve import protocol
from agent_tts.serve.codec import AudioChunk, Message
from agent_tts.serve.dialects.cartesia_request import Request, refusal
from agent_tts.serve.dialects.sentences import spaced
from agent_tts.serve.due_words import DueWords, Told
from agent_tts.settings import Limits

# Ids of contexts that failed, remembered so that a client's text in flight does not open them anew.
MAX_REMEMBERED = 64

SAMPLE_BYTES = {"pcm_s16le": 2, "pcm_f32le": 4, "pcm_mulaw": 1, "pcm_alaw": 1}


class Generation(Request):
    """A message of a client."""

    context_id: protocol.NewId | None = None
    cancel: bool | None = None
    continue_: bool | None = Field(None, alias="continue")
    flush: bool | None = None
    max_buffer_delay_ms: int | None = None


@dataclass(slots=True)
class _Context:
    """A context that the session has not ended yet."""

    rate: int  # Hz
    sample_bytes: int
    words: DueWords = field(default_factory=DueWords)
    chars: int = 0  # text so far
    flushed: int = 0  # flushes whose audio has been sent
    is_ended: bool = False  # by the client
    is_cancelled: bool = False


class CartesiaCodec:
    """See `Codec`. An error ends its context: later text for it is dropped, up to what would have ended it."""

    closing: tuple[int, str] | None = None

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Contexts by id.
        self._contexts: dict[str, _Context] = {}
        # Ids of contexts that failed before the client ended them, oldest first.
        self._failed: OrderedDict[str, None] = OrderedDict()
        # Contexts that the client gave no id.
        self._unnamed = 0
        # The session's id, which clients may quote.
        self._request_id = ""

    def begin(self) -> Iterator[Message]:
        """See `Codec.begin`."""
        yield from ()

    # ------------------------------------------------------------ from the client

    def decode(self, data: str | bytes) -> Iterator[Message]:
        """See `Codec.decode`."""
        fields = protocol.load(data)
        try:
            message = Generation.model_validate(fields)
        except ValidationError as error:
            yield from self._refuse(protocol.context_of(fields), refusal(error), is_last=not fields.get("continue"))
            return
        if message.cancel:
            yield from self._cancel(message.context_id)
        else:
            yield from self._generate(message)

    def _cancel(self, context_id: str | None) -> Iterator[Message]:
        if context_id is None:
            raise BadMessage("context_id: is needed to cancel")
        self._failed.pop(context_id, None)
        context = self._contexts.get(context_id)
        if context is not None and not context.is_cancelled:  # otherwise it has ended meanwhile
            context.is_cancelled = True
            yield {"type": "context.cancel", "context_id": context_id}

    def _generate(self, message: Generation) -> Iterator[Message]:
        context_id, is_last = message.context_id or self._name(), not message.continue_
        context = self._contexts.get(context_id)
        if context_id in self._failed:
            if is_last:
                del self._failed[context_id]
            return
        if context is not None and context.is_cancelled:
            context.is_ended |= is_last
            return
        text = spaced(message.transcript, is_whole=message.max_buffer_delay_ms == 0)
        if (error := self._complaint(context, text)) is not None:
            yield from self._refuse(context_id, error, is_last=is_last)
        if context is None:
            output = message.output_format
            context = _Context(output.sample_rate, SAMPLE_BYTES[output.encoding], is_ended=is_last)
            self._contexts[context_id] = context
            yield {"type": "context.open", "context_id": context_id} | message.overrides()
        elif context.is_ended:
            return
        context.is_ended = is_last
        if text:
            context.chars += len(text)
            yield {"type": "text.append", "context_id": context_id, "text": text}
        if message.flush:
            yield {"type": "context.flush", "context_id": context_id}
        if is_last:
            yield {"type": "context.end", "context_id": context_id}

    def _name(self) -> str:
        self._unnamed += 1
        return f"context-{self._unnamed}"

    def _complaint(self, context: _Context | None, text: str) -> SpeechError | None:
        """What is wrong with more text; what the session would find too late, when the context is open."""
        if context is not None and context.is_ended and text.strip():
            return BadMessage("this context was ended by a message without continue: use another context_id")
        limits = self._limits
        if len(text) > limits.text_message_chars:
            return TextTooLong(f"transcript of one message is at most {limits.text_message_chars} characters")
        if context is not None and context.chars + len(text) > limits.text_context_chars:
            return TextTooLong(f"text of one context is at most {limits.text_context_chars} characters")
        return None

    def _refuse(self, context_id: str | None, error: SpeechError, *, is_last: bool) -> Iterator[Message]:
        """Raise an error about a message of a context, which ends with it; `is_last`: so it would have anyway."""
        context = None if context_id is None else self._contexts.get(context_id)
        if context is not None and not context.is_cancelled:
            context.is_cancelled, context.is_ended = True, context.is_ended or is_last
            yield {"type": "context.cancel", "context_id": context_id}
        elif context_id is not None:
            if context is None and not is_last:
                self._fail(context_id)
            yield {"type": "ping", "context_id": context_id}  # so that the error is told with it
        raise error

    # ------------------------------------------------------------ to the client

    def encode(self, item: Message | AudioChunk) -> Iterable[str]:
        """See `Codec.encode`."""
        if isinstance(item, AudioChunk):
            return self._audio(item)
        context_id = item.get("context_id")
        match item["type"]:
            case "session.created":
                self._request_id = item["session_id"]
            case "words" if context_id in self._contexts:
                self._contexts[context_id].words.learn(item["words"])
            case "context.flushed" if context_id in self._contexts:
                context = self._contexts[context_id]
                context.flushed += 1
                flush = {"flush_done": True, "flush_id": context.flushed}
                return [_dump("flush_done", context_id, 206, done=False, **flush)]
            case "context.done" if context_id in self._contexts:
                return self._done(context_id, item["reason"])
            case "error" if item["code"] != "unknown_context":  # it has ended while the client's message came
                return [self._error(item)]
        return ()

    def _audio(self, chunk: AudioChunk) -> Iterator[str]:
        context = self._contexts.get(chunk.context_id)
        if context is None:
            return
        flush = {"flush_id": context.flushed + 1}
        samples = chunk.first_sample + len(chunk.payload) // context.sample_bytes
        if words := context.words.due(samples * 1_000 / context.rate):
            yield _timestamps(chunk.context_id, words)
        if chunk.payload:
            data = base64.b64encode(chunk.payload).decode()
            yield _dump("chunk", chunk.context_id, 206, done=False, data=data, step_time=0.0, **flush)

    def _done(self, context_id: str, reason: str) -> Iterator[str]:
        context = self._contexts.pop(context_id)
        if reason == "length" and not context.is_ended:
            self._fail(context_id)
        if reason in ("end", "length") and (words := context.words.rest()):
            yield _timestamps(context_id, words)
        yield _dump("done", context_id, 200, done=True)

    def _error(self, message: Message) -> str:
        context_id = message["context_id"]
        context = self._contexts.pop(context_id, None)
        if context is not None and not context.is_ended:
            self._fail(context_id)
        error = from_code(message["code"], message["message"])
        fields = error_fields(error, self._request_id)
        return _dump("error", context_id, error.status, done=True, **fields)

    def _fail(self, context_id: str) -> None:
        self._failed[context_id] = None
        if len(self._failed) > MAX_REMEMBERED:
            self._failed.popitem(last=False)


def error_fields(error: SpeechError, request_id: str) -> dict[str, str]:
    """What Cartesia says of an error besides its status."""
    title = error.code.replace("_", " ").capitalize()
    return {"title": title, "message": error.message, "error_code": error.code, "request_id": request_id}


def word_timestamps(words: list[Told]) -> dict[str, list[Any]]:
    """Words and their times, in seconds from the context's first sample."""
    return {
        "words": [word["word"] for word in words],
        "start": [word["start_ms"] / 1_000 for word in words],
        "end": [word["end_ms"] / 1_000 for word in words],
    }


def _timestamps(context_id: str, words: list[Told]) -> str:
    return _dump("timestamps", context_id, 206, done=False, word_timestamps=word_timestamps(words))


def _dump(type_: str, context_id: str | None, status: int, **fields: Any) -> str:
    message = {"type": type_, "context_id": context_id, "status_code": status} | fields
    return json.dumps(message, separators=(",", ":"), allow_nan=False)
