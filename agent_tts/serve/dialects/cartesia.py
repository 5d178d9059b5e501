"""Cartesia's WebSocket, `/tts/websocket`: contexts with text, flushes, cancels and times of words."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from secrets import token_hex

from pydantic import Field

from agent_tts.config.settings import Limits
from agent_tts.errors import BadMessage, SpeechError, TextTooLong, from_code
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Message, ProtocolAdapter
from agent_tts.protocol.context import AudioChunk, Word
from agent_tts.protocol.validation import check_message
from agent_tts.serve.dialects.cartesia_messages import CartesiaRequest, ContextEvents, RawFormat, failure
from agent_tts.serve.dialects.sentences import spaced

# Failed contexts that are remembered, so that a client's text in flight does not open them again.
MAX_REMEMBERED = 64


class GenerationMessage(CartesiaRequest):
    """A message of a client."""

    context_id: protocol.NewId | None = None
    output_format: RawFormat = RawFormat()
    cancel: bool | None = None
    continue_: bool | None = Field(None, alias="continue")
    flush: bool | None = None
    max_buffer_delay_ms: int | None = None


@dataclass(slots=True)
class _Context:
    """A context that has not ended."""

    events: ContextEvents
    is_ended: bool  # by the client
    chars: int = 0  # text so far
    is_cancelled: bool = False


class CartesiaAdapter(ProtocolAdapter):
    """See `ProtocolAdapter`.

    An error ends its context; its later text is dropped, up to the message that would have ended it. After `starved`
    all text has been spoken, and later text goes on in a new context.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Contexts by id.
        self._contexts: dict[str, _Context] = {}
        # Contexts that failed before the client ended them, oldest first.
        self._failed: OrderedDict[str, None] = OrderedDict()
        # The session's id, for error messages.
        self._request_id = ""

    # ------------------------------------------------------------ from the client

    def decode(self, data: str | bytes) -> Iterator[Message]:
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

    def _cancel(self, context_id: str | None) -> Iterator[Message]:
        if context_id is None:
            raise BadMessage("context_id: is needed to cancel")
        self._failed.pop(context_id, None)
        context = self._contexts.get(context_id)
        if context is not None and not context.is_cancelled:  # otherwise it has ended already
            context.is_cancelled = True
            yield {"type": "context.cancel", "context_id": context_id}

    def _generate(self, message: GenerationMessage) -> Iterator[Message]:
        context_id, is_last = message.context_id or _new_id(), not message.continue_
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
            audio = message.output_format
            context = _Context(ContextEvents(context_id, audio), is_ended=is_last)
            self._contexts[context_id] = context
            output = {"encoding": audio.ours, "sample_rate": audio.sample_rate, "framing": "binary"}
            yield {"type": "context.open", "context_id": context_id, "output": output} | message.overrides()
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

    def _complaint(self, context: _Context | None, text: str) -> SpeechError | None:
        """What is wrong with more text; the session would only find it after the context was opened."""
        if context is not None and context.is_ended and text.strip():
            return BadMessage("its context was ended by a message without continue: use another context_id")
        limits = self._limits
        if len(text) > limits.text_message_chars:
            return TextTooLong(f"transcript of one message is at most {limits.text_message_chars} characters")
        if context is not None and context.chars + len(text) > limits.text_context_chars:
            return TextTooLong(f"text of one context is at most {limits.text_context_chars} characters")
        return None

    def _refuse(self, context_id: str | None, error: SpeechError, *, is_last: bool) -> Iterator[Message]:
        """End a context because of a message and raise the error; `is_last`: the message would have ended it anyway.

        A context that the client has ended is spoken to its end; the error names no context then.
        """
        context = None if context_id is None else self._contexts.get(context_id)
        if context is not None and context.is_ended:
            raise error
        if context is not None and not context.is_cancelled:
            context.is_cancelled, context.is_ended = True, is_last
            yield {"type": "context.cancel", "context_id": context_id}
        elif context_id is not None:
            if context is None and not is_last:
                self._fail(context_id)
            yield {"type": "ping", "context_id": context_id}  # so that the error names it
        raise error

    # ------------------------------------------------------------ to the client

    def encode(self, item: Message | AudioChunk) -> Iterable[str]:
        if isinstance(item, AudioChunk):
            context = self._contexts.get(item.context_id)
            return () if context is None else context.events.audio(item.payload, item.first_sample)
        if item["type"] == "session.created":
            self._request_id = item["session_id"]
        elif item["type"] == "error" and item["code"] != "unknown_context":  # it ended while a message was on its way
            return self._error(item)
        context_id = item.get("context_id")
        context = self._contexts.get(context_id) if context_id is not None else None
        if context is None:
            return ()
        match item["type"]:
            case "words":
                context.events.words.learn((Word(**word) for word in item["words"]), final=item["kind"] == "aligned")
            case "context.flushed":
                return [context.events.flushed()]
            case "context.done" if item["reason"] != "error":  # already told; a new context may have its id
                return self._done(item["context_id"], context, item["reason"])
        return ()

    def _done(self, context_id: str, context: _Context, reason: str) -> Iterable[str]:
        del self._contexts[context_id]
        if reason == "length" and not context.is_ended:
            self._fail(context_id)
        return [context.events.done()] if reason == "cancelled" else context.events.end()

    def _error(self, message: Message) -> Iterable[str]:
        context_id = message["context_id"]
        context = self._contexts.pop(context_id, None)
        if context is not None and not context.is_ended and message["code"] != "starved":
            self._fail(context_id)
        return failure(context_id, from_code(message["code"], message["message"]), self._request_id)

    def _fail(self, context_id: str) -> None:
        self._failed[context_id] = None
        if len(self._failed) > MAX_REMEMBERED:
            self._failed.popitem(last=False)


def _new_id() -> str:
    """An id for a context without one, different from all that clients choose."""
    return f"context-{token_hex(8)}"
