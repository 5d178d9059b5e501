"""ElevenLabs' WebSockets, `stream-input` and `multi-stream-input`: text, flushes, and times of characters."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from agent_tts.config.settings import Limits
from agent_tts.engine_info import FRAME_MS
from agent_tts.errors import SpeechError, Starved, TextTooLong, UnknownContext, UnknownDictionary, cut_short, from_code
from agent_tts.messages import Append, Audio, Cancel, End, Finished, Flush, Open, Word, Words
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Close, Command, Drop, Echo, Event, Failed, Later, ProtocolAdapter, Update
from agent_tts.protocol.validation import check_message
from agent_tts.serve.dialects.elevenlabs_messages import (
    CharacterTimes,
    DictionaryLocator,
    ElevenLabsMessage,
    ElevenLabsQuery,
    TimedCharacter,
    lexicon_of,
    wanted_of,
)
from agent_tts.serve.dialects.text import spaced
from agent_tts.serve.dictionaries import Dictionaries, LoadedDictionaries
from agent_tts.speech.words.due_words import DueWords

# Contexts without text, or refused, that are remembered.
MAX_IDLE_CONTEXTS = 64

# Close codes after errors; others are POLICY_VIOLATION.
POLICY_VIOLATION = 1008
CLOSE_CODES = {"at_capacity": 1013, "draining": 1012}
MAX_REASON_BYTES = 123  # of a close frame


@dataclass(slots=True, eq=False)
class SpokenContext:
    """A context of the client, which is one utterance."""

    id: str  # in the session; unique, while clients may use a name again at once
    name: str | None  # the client's
    options: dict[str, Any] = field(default_factory=dict)
    locators: list[DictionaryLocator] = field(default_factory=list)
    # It is opened with its first word, so that it takes no slot while its LLM computes.
    state: Literal["new", "refused", "open", "ended", "cancelled"] = "new"
    is_flushed: bool = False  # since its last text
    ends_in_word: bool = False  # its text so far
    words: DueWords = field(default_factory=DueWords)
    characters: CharacterTimes = field(default_factory=CharacterTimes)


@dataclass(slots=True, eq=False)
class _WaitingText:
    """Messages to a closed context that is still spoken: clients cannot tell two contexts of one name apart."""

    context: SpokenContext  # which the last of them waits for
    count: int = 0  # messages
    is_flushed: bool = False  # since its last text
    is_closed: bool = False  # since its last text


class MultiStreamAdapter(ProtocolAdapter):
    """`multi-stream-input`: many contexts on one connection. See `ProtocolAdapter`.

    Text for a context that was closed waits until that context has been spoken. A context that fails gets an error and
    its end. A message or query that is not allowed, or too much waiting text, ends the connection.
    """

    _message_type = ElevenLabsMessage
    _speaks_all = False  # a close never interrupts
    _times: tuple[str, str] = "charStartTimesMs", "charDurationsMs"

    def __init__(self, voice: str | None, query: Mapping[str, str], limits: Limits, dictionaries: Dictionaries) -> None:
        self._dictionaries = LoadedDictionaries(dictionaries)
        self._voice = voice
        self._query = query
        self._limits = limits
        self._rate = 0  # Hz
        self._is_whole = False  # every text is a sentence or a phrase of its own
        # `sync_alignment`, which only LiveKit's class sets: it counts times from the context's first sample, others
        # from the end of the message before; and a flush with one of its sentences does not complete the text.
        self._is_synced = False
        # The latest context of each name.
        self._named: dict[str | None, SpokenContext] = {}
        # Contexts that the session has not ended, by their id in the session.
        self._open: dict[str, SpokenContext] = {}
        # What waits for a context to be spoken, by its name.
        self._waiting: dict[str | None, _WaitingText] = {}
        self._count = 0  # contexts so far
        self._is_heard = False  # the client has sent something
        # Why the connection cannot be served: code, message, and when to come again, because an error's traceback would
        # keep the session. It is told after the client's first message: LiveKit's class waits forever on a connection
        # that is closed before.
        self._failure: tuple[str, str, int | None] | None = None
        self._is_leaving = False  # the client has asked for the end of the connection

    def begin(self) -> Iterator[Command]:
        try:
            query = check_message(ElevenLabsQuery, self._query)
            session = query.session(self._voice)
        except SpeechError as error:
            self._failure = error.code, error.message, error.retry_after_ms
            return
        self._rate = session["output"]["sample_rate"]
        self._is_whole = query.auto_mode
        self._is_synced = query.sync_alignment
        yield Update(self._configured(session))

    def _configured(self, session: dict[str, Any]) -> dict[str, Any]:
        """The fields of `session.update` for those that the address asks for."""
        return session

    # ------------------------------------------------------------ from the client

    def prepare(self, data: str | bytes) -> Callable[[], object] | None:
        if isinstance(data, bytes) or '"pronunciation_dictionary_locators"' not in data:
            return None
        wanted = wanted_of(self._parse(data).pronunciation_dictionary_locators)
        return partial(self._dictionaries.load, wanted) if wanted else None

    def decode(self, data: str | bytes) -> Iterator[Command]:
        yield from self._take(self._parse(data))

    def _take(self, message: ElevenLabsMessage) -> Iterator[Command]:
        if self._is_leaving:
            return
        if message.close_socket:
            yield from self._leave()
        elif message.context_id in self._waiting or self._is_behind(message):
            yield from self._wait(message)
        else:
            yield from self._dispatch(message)

    def _parse(self, data: str | bytes) -> ElevenLabsMessage:
        self._is_heard = True
        if self._failure is not None:
            raise from_code(*self._failure)
        return check_message(self._message_type, protocol.load(data))

    def _dispatch(self, message: ElevenLabsMessage) -> Iterator[Command]:
        if message.close_context:
            yield from self._close(message.context_id)
        else:
            yield from self._write(message)

    def _is_behind(self, message: ElevenLabsMessage) -> bool:
        """Whether it is text for a new context while the last of its name is still being spoken."""
        context = self._named.get(message.context_id)
        return bool(context and context.state == "ended" and message.text and not message.close_context)

    def _wait(self, message: ElevenLabsMessage) -> Iterator[Command]:
        name, text = message.context_id, message.text or ""
        if (waiting := self._waiting.get(name)) is None:
            waiting = self._waiting[name] = _WaitingText(self._named[name])
        if message.close_context:
            if waiting.is_closed or not (waiting.is_flushed or self._speaks_all):  # an interruption
                del self._waiting[name]
                yield Drop(waiting.context.id)
                yield from self._close(name)
                return
            waiting.is_closed = True
        elif text or message.flush:
            waiting.is_flushed = self._is_last(text) if message.flush else waiting.is_flushed and text.isspace()
            waiting.is_closed = waiting.is_closed and not text
        else:
            return  # a keep-alive
        yield self._later(message, waiting)

    def _later(self, message: ElevenLabsMessage, waiting: _WaitingText) -> Command:
        waiting.count += 1
        return Later(waiting.context.id, len(message.text or ""), self._go_on(message, waiting))

    def _go_on(self, message: ElevenLabsMessage, waiting: _WaitingText) -> Iterator[Command]:
        """Take a message that has waited, unless one of its name before it has begun another context and closed it."""
        waiting.count -= 1
        context = self._named.get(message.context_id)
        if context is not None and (context is waiting.context or self._is_behind(message)):
            waiting.context = context
            yield self._later(message, waiting)
            return
        if not waiting.count:
            del self._waiting[message.context_id]
        yield from self._dispatch(message)
        if self._has_left:
            yield Close()

    def _is_last(self, text: str) -> bool:
        """Whether a flush with this text completes the context's text."""
        return not (text and self._is_synced and self._is_whole)

    def _write(self, message: ElevenLabsMessage) -> Iterator[Command]:
        context = self._named.get(message.context_id)
        text = spaced(message.text or "", is_whole=self._is_whole)
        if context is None or (context.state == "cancelled" and text):
            if not text:
                return  # a keep-alive or a flush before any text
            context = self._begin(message.context_id)
        if context.state == "new":
            context.options |= message.options
        if context.state == "new" and message.pronunciation_dictionary_locators:
            context.locators = message.pronunciation_dictionary_locators
        if len(text) > self._limits.text_message_chars:
            yield from self._refuse(context, f"text of one message is at most {self._limits.text_message_chars}")
        if len(context.characters.spacing.text) + len(text) > self._limits.text_context_chars:
            yield from self._refuse(context, f"text of one context is at most {self._limits.text_context_chars}")
        if context.state == "new" and text.strip():
            yield from self._admit(context)
        if context.state != "open":
            return
        if text:
            yield self._append(context, text)
        elif not message.flush and not context.ends_in_word:
            yield self._append(context, " ")  # keep-alive: white space counts as text and is silent
        if message.flush:
            context.is_flushed = self._is_last(text)
            yield Flush(context.id)

    def _begin(self, name: str | None) -> SpokenContext:
        self._count += 1
        context = SpokenContext(str(self._count), name)
        self._named.pop(name, None)
        self._named[name] = context
        idle = [name for name, other in self._named.items() if other.state in ("new", "refused")]
        if len(idle) > MAX_IDLE_CONTEXTS:
            del self._named[idle[0]]
        return context

    def _admit(self, context: SpokenContext) -> Iterator[Command]:
        self._open[context.id] = context
        context.state = "open"
        try:
            lexicon = lexicon_of(context.locators, self._dictionaries)
        except UnknownDictionary as unknown:
            context.state = "refused"
            raise unknown.about(context.id) from None
        yield Open(context.id, context.options | lexicon)

    def _refuse(self, context: SpokenContext, why: str) -> Iterator[Command]:
        """End a context because of a text and raise the error; the session would leave it open."""
        if context.state == "open":
            yield from self._cancel(context)
        elif context.state == "new":
            self._open[context.id] = context
            context.state = "refused"
        else:
            return
        raise TextTooLong(f"{why} characters").about(context.id)

    def _append(self, context: SpokenContext, text: str) -> Command:
        context.is_flushed = context.is_flushed and text.isspace()
        context.characters.spacing.write(text)
        context.ends_in_word = text[-1].isalnum()
        return Append(context.id, text)

    def _close(self, name: str | None) -> Iterator[Command]:
        """The first close after a flush lets everything be spoken; any other is an interruption."""
        context = self._named.get(name)
        if context is None:
            return
        if context.state == "open" and (context.is_flushed or self._speaks_all):
            yield from self._end(context)
        elif context.state in ("open", "ended"):
            yield from self._cancel(context)
        else:
            del self._named[name]
            if context.state == "new":
                yield from self._end(context)

    def _end(self, context: SpokenContext) -> Iterator[Command]:
        if context.state == "new":  # without text
            self._open[context.id] = context
            yield Echo(Finished(context.id, "end"))
        elif context.state == "open":
            context.state = "ended"
            yield End(context.id)

    def _cancel(self, context: SpokenContext) -> Iterator[Command]:
        context.state = "cancelled"
        yield Cancel(context.id)

    def _leave(self) -> Iterator[Command]:
        self._is_leaving = True
        for context in list(self._open.values()):
            if context.state == "open":
                yield from self._end(context) if context.is_flushed else self._cancel(context)
        for name, waiting in [*self._waiting.items()]:
            if not waiting.is_closed:
                yield self._later(ElevenLabsMessage(context_id=name, close_context=True), waiting)
        if self._has_left:
            yield Close()

    # ------------------------------------------------------------ to the client

    def encode(self, event: Event) -> Iterable[str]:
        if isinstance(event, Echo):
            event = event.item
        context = self._open.get(getattr(event, "id", None) or "")
        if isinstance(event, Failed):
            return self._error(context, event)
        if context is None:
            return ()
        match event:
            case Audio():
                return self._audio(context, event)
            case Words(words=words, kind=kind):
                context.words.learn(words, final=kind == "aligned")
            case Finished():
                return self._done(context, event)
        return ()

    def _audio(self, context: SpokenContext, chunk: Audio[str]) -> Iterator[str]:
        at_ms = chunk.first_sample * 1_000 / self._rate
        return self._tell(context, at_ms, context.words.due(at_ms + FRAME_MS), chunk.payload)

    def _tell(self, context: SpokenContext, at_ms: float, words: list[Word], payload: bytes = b"") -> Iterator[str]:
        """Words, and the audio at `at_ms` of the context, in which they begin; none at its end."""
        alignment = self._alignment(context, words)
        if payload or alignment:
            yield self._message(context, base64.b64encode(payload).decode(), alignment)

    def _done(self, context: SpokenContext, done: Finished[str]) -> Iterator[str]:
        self._forget(context)
        is_starved = done.reason == "error" and context.state == "cancelled"
        if done.reason in ("end", "length") or is_starved:
            yield from self._tell(context, done.audio_ms, context.words.rest())
        if done.reason == "length":
            error = cut_short(done.audio_ms)
            yield self._dump(context, {"message": error.message, "error": error.code, "code": POLICY_VIOLATION})
        yield from self._final(context)

    def _final(self, context: SpokenContext) -> Iterator[str]:
        """The last message of a context; after the very last one, a connection that is leaving is closed."""
        yield self._message(context, None)
        if self._has_left and self.closing is None:
            self.closing = (1000, "closed by the client")

    @property
    def _has_left(self) -> bool:
        """Whether the client has asked for the end of the connection, and all has been spoken."""
        return self._is_leaving and not self._open and not self._waiting

    def _message(self, context: SpokenContext, audio: str | None, alignment: dict[str, Any] | None = None) -> str:
        """A message with audio in base64; the final one has none."""
        is_final = True if audio is None else None
        fields = {"audio": audio, "isFinal": is_final, "alignment": alignment, "normalizedAlignment": alignment}
        return self._dump(context, fields)

    def _error(self, context: SpokenContext | None, failed: Failed) -> Iterator[str]:
        error = failed.error
        if context is None and failed.id is not None:
            return  # it ended while a message was on its way
        if context is None and not self._is_heard:
            self._failure = error.code, error.message, error.retry_after_ms
            return
        close_code = CLOSE_CODES.get(error.code, POLICY_VIOLATION)
        told = {"message": error.message, "error": error.code, "code": close_code, **error.again}
        if context is None:
            self.closing = (close_code, error.message.encode()[:MAX_REASON_BYTES].decode(errors="ignore"))
            yield protocol.dump(told)
        elif not isinstance(error, UnknownContext):
            if isinstance(error, Starved):
                context.state = "cancelled"  # later text of its name goes on in a new one
            yield self._dump(context, told)
            if failed.ends:
                if context.state in ("ended", "cancelled"):
                    self._forget(context)
                else:  # its later text is not spoken
                    context.state = "refused"
                    del self._open[context.id]
                yield from self._final(context)

    def _forget(self, context: SpokenContext) -> None:
        del self._open[context.id]
        if self._named.get(context.name) is context:
            del self._named[context.name]

    def _alignment(self, context: SpokenContext, words: list[Word]) -> dict[str, Any] | None:
        since_ms = 0 if self._is_synced else context.characters.end_ms
        return self._aligned(context.characters.of(words), since_ms)

    def _aligned(self, characters: list[TimedCharacter], since_ms: int) -> dict[str, Any] | None:
        if not characters:
            return None
        starts, durations = self._times
        return {
            "chars": [each.char for each in characters],
            starts: [each.start_ms - since_ms for each in characters],
            durations: [each.end_ms - each.start_ms for each in characters],
        }

    def _dump(self, context: SpokenContext, fields: dict[str, Any]) -> str:
        return protocol.dump(fields | {"contextId": context.name})


class StreamAdapter(MultiStreamAdapter):
    """`stream-input`: one utterance; an empty text ends it and the connection. See `ProtocolAdapter`."""

    def decode(self, data: str | bytes) -> Iterator[Command]:
        message = self._parse(data).model_copy(update={"context_id": None})
        if self._is_leaving:
            return
        if message.text != "":
            yield from self._write(message)
            return
        self._is_leaving = True
        yield from self._end(self._named.get(None) or self._begin(None))

    def _done(self, context: SpokenContext, done: Finished[str]) -> Iterator[str]:
        yield from super()._done(context, done)
        self.closing = (1000, "the text has been spoken")

    def _error(self, context: SpokenContext | None, failed: Failed) -> Iterator[str]:
        if isinstance(failed.error, UnknownContext):
            return  # it ended while a message was on its way
        if context is not None:
            self._forget(context)
        yield from super()._error(None, Failed(None, failed.error))

    def _dump(self, context: SpokenContext, fields: dict[str, Any]) -> str:
        return protocol.dump(fields)
