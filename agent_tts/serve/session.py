"""The protocol of one client, whatever carries it: messages in, messages and audio out. No I/O of its own.

The transport (a WebSocket, a WebRTC peer) calls `receive` with what comes in and `poll` for what goes out. Audio that
it does not take stays in the engine's credit window: a slow client slows only itself.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Protocol

from agent_tts.errors import (
    BadMessage,
    ContextExists,
    ContextLimit,
    Draining,
    SlowConsumer,
    SpeechError,
    TextTooLong,
    UnknownContext,
    from_code,
)
from agent_tts.events import (
    FRAME_MS,
    SAMPLE_RATE,
    RequestAudio,
    RequestFinished,
    RequestFlushed,
    RequestStarted,
    RequestWords,
)
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import AudioChunk, Message
from agent_tts.serve.node import Node
from agent_tts.serve.telemetry.metrics import ContextMeter
from agent_tts.speech.audio.encoding import Chunk, Encoder, make_encoder
from agent_tts.speech.utterance import Utterance, UtteranceEvent
from agent_tts.speech.words.paces import Paces
from agent_tts.speech.words.timeline import Word, WordTimeline, timeline_of

# Ids of contexts that were refused or died, remembered so that a client's text in flight does not open them anew.
MAX_REMEMBERED = 64

# Flushes of a context that may wait for their audio: each costs the engine memory.
MAX_FLUSHES = 1_000

# Words in one message: some 80 bytes each, within what any data channel takes.
MAX_WORDS = 200

# Answers that a client may leave unread while it goes on asking.
MAX_REPLIES = 1_000


class Playout(Protocol):
    """Where the node itself plays the audio, as a WebRTC track does: one context after another."""

    def played_ms(self, context_no: int) -> int | None:
        """Audio of the context that has been played; None before its first."""
        ...

    def clear(self, context_no: int) -> None:
        """Drop what was not played yet."""
        ...

    def wants(self, context_no: int) -> bool:
        """Whether more audio of the context is to be handed over now; the transport wakes when it is again."""
        ...

    def is_playing(self, context_no: int) -> bool:
        """Whether handed over audio of the context is still to be played; the transport wakes when none is any more."""
        ...

    def end(self, context_no: int) -> None:
        """All audio of the context has been handed over."""
        ...


@dataclass(slots=True, eq=False)
class Context:
    """One utterance of the client."""

    id: str
    no: int
    config: protocol.SessionConfig
    speech: Utterance
    meter: ContextMeter
    timeline: WordTimeline
    encoder: Encoder | None  # None where audio leaves as it is
    started: bool = False  # context.started was sent
    chars: int = 0  # text so far
    flushes: int = 0  # not answered yet
    first_sample: int = 0  # of the next chunk
    samples: int = 0  # handed out, at 24 kHz
    closed: bool = False  # its last frame was handed out as such
    words: list[Word] = field(default_factory=list)  # told before context.started, sent right after it
    acked: tuple[float, float] | None = None  # (played_ms, when) of the client's last word on it

    @property
    def audio_ms(self) -> int:
        return round(self.samples * 1_000 / SAMPLE_RATE)


class Session:
    """All contexts of one client."""

    def __init__(
        self,
        node: Node,
        transport: str,
        playout: Playout | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = token_hex(8)
        self._node = node
        self._limits = node.settings.limits
        self._transport = transport
        self._playout = playout
        self._clock = clock
        self._config = protocol.SessionConfig(lead_ms=node.settings.lead_ms, normalize=node.settings.normalize)
        # Open contexts by id.
        self._contexts: dict[str, Context] = {}
        # Ids of contexts that were refused or ended without the client's doing; text for them is refused. Oldest first.
        self._dead: OrderedDict[str, None] = OrderedDict()
        # Ids of contexts that are done, newest last.
        self._done: OrderedDict[str, None] = OrderedDict()
        # Number of the last context.
        self._context_no = 0
        # How fast the voices of earlier contexts have spoken.
        self._paces = Paces()
        # Messages that wait for no audio.
        self._replies: deque[Message] = deque()
        # What the context whose turn it is still has to send.
        self._outbox: deque[Message | AudioChunk] = deque()
        # Open contexts that may have events, in their turn.
        self._ready: OrderedDict[str, None] = OrderedDict()
        # Why the session ends once no context is open: (WebSocket close code, reason); None while it goes on.
        self._leaving: tuple[int, str] | None = None
        # When the client was last heard, or a context last ended.
        self._active_at = clock()
        # Set when the transport is to close, after everything has been polled: (WebSocket close code, reason).
        self.closing: tuple[int, str] | None = None
        # Called when `poll` may have something; set by the transport. Must not block.
        self.waker: Callable[[], None] | None = None
        node.sessions.add(self)
        self._greet()

    # ------------------------------------------------------------ the transport's side

    def receive(self, messages: Iterable[Message]) -> None:
        """Take what the client has sent, as a adapter has decoded it; a mistake is answered, and ends this taking.

        Raises:
            SlowConsumer: the client asks and asks and does not read the answers.
        """
        self._active_at = self._clock()
        context_id = None
        try:
            for message in messages:
                context_id = protocol.context_of(message)
                self._obey(protocol.check(message))
        except SpeechError as error:
            if error.code in ("at_capacity", "engine_lost", "draining", "context_limit"):
                self._node.metrics.refused.labels(error.code).inc()
            self._reply(protocol.build_error(error, context_id=context_id))
        if len(self._replies) > MAX_REPLIES:
            raise SlowConsumer("the client does not read the answers")

    def poll(self) -> Message | AudioChunk | None:
        """What to send next, or None when there is nothing now."""
        while True:
            if self._outbox:
                return self._outbox.popleft()
            if self._replies:  # none may overtake the end of an earlier context of the same id
                return self._replies.popleft()
            context = self._next_ready()
            if context is None:
                break
            if (event := context.speech.poll()) is not None:
                if context.speech.has_events:
                    self._ready[context.id] = None  # after the others' turn
                self._tell(context, event)
        if self._leaving is not None and not self._contexts:
            self.closing = self._leaving
        return None

    @property
    def is_speaking(self) -> bool:
        """Whether a context is open."""
        return bool(self._contexts)

    def drain(self) -> None:
        """Say that the node is going away; open contexts may finish, then the session asks to be closed."""
        self._leaving = (1012, "the node is going away")
        deadline_ms = round(self._node.settings.timeouts.drain_s * 1_000)
        self._reply(protocol.build("session.draining", deadline_ms=deadline_ms))

    def expire(self) -> float:
        """Ask to be closed when nothing has happened for too long; the seconds until that may be so."""
        limit_s = self._limits.session_idle_s
        if self._contexts:
            return limit_s
        left_s = self._active_at + limit_s - self._clock()
        if left_s > 0:
            return left_s
        if self.closing is None:
            self.closing = (1000, f"idle for {limit_s:g} s")
            self._wake()
        return limit_s

    def close(self) -> None:
        """Stop every context at once. Idempotent."""
        self._node.sessions.discard(self)
        for context in self._contexts.values():
            context.speech.waker = None
            context.speech.stop()
            context.meter.finished(RequestFinished(context.speech.request_id, "cancelled"))
        self._contexts.clear()
        self._replies.clear()
        self._outbox.clear()
        self._ready.clear()

    # ------------------------------------------------------------ messages from the client

    def _obey(self, message: protocol.ClientMessage) -> None:
        match message:
            case protocol.TextAppend(context_id=context_id, text=text):
                self._append(context_id, text)
            case protocol.PlaybackAck(context_id=context_id, played_ms=played_ms):
                self._ack(context_id, played_ms)
            case protocol.ContextOpen(context_id=context_id):
                self._bury(context_id)
                if context_id in self._contexts:
                    raise ContextExists("this context is open: choose another context_id, or end it first")
                self._open(context_id, message.overrides)
            case protocol.ContextFlush(context_id=context_id, flush_id=flush_id):
                self._flush(context_id, flush_id)
            case protocol.ContextEnd(context_id=context_id):
                self._end(context_id)
            case protocol.ContextCancel(context_id="*", played_ms=played_ms):
                self._dead.clear()
                for context in list(self._contexts.values()):
                    self._cancel(context, played_ms)
            case protocol.ContextCancel(context_id=context_id, played_ms=played_ms):
                if not self._bury(context_id):
                    self._cancel(self._context(context_id), played_ms)
            case protocol.SessionUpdate(session=fields):
                self._update(fields)
            case protocol.Ping(t=t):
                self._reply(protocol.build("pong", t=t))
            case protocol.SessionClose():
                self._leaving = (1000, "closed by the client")
                for context in list(self._contexts.values()):
                    self._cancel(context, None)
                self._wake()

    def _update(self, fields: dict[str, object]) -> None:
        config = self._config.merged(fields, self._limits.max_lead_ms)
        if self._node.service.info is not None:
            self._node.service.resolve(config.options())
        self._config = config
        self._reply(protocol.build("session.updated", session=config.model_dump()))

    def _open(self, context_id: str, overrides: dict[str, object]) -> Context:
        try:
            config = self._config.merged(overrides, self._limits.max_lead_ms)
            return self._admit(context_id, config)
        except SpeechError:
            self._mark(self._dead, context_id)
            raise

    def _admit(self, context_id: str, config: protocol.SessionConfig) -> Context:
        if self._leaving is not None:
            raise Draining(f"no new context: {self._leaving[1]}")
        if len(self._contexts) >= self._limits.contexts_per_session:
            raise ContextLimit(f"{self._limits.contexts_per_session} contexts are open: end or cancel one first")
        encoding = config.output
        plain = self._playout is not None or (encoding.encoding == "pcm_s16le" and encoding.sample_rate == SAMPLE_RATE)
        encoder = None if plain else make_encoder(encoding.encoding, encoding.sample_rate, encoding.bit_rate)
        speech = self._node.service.open(config.options())
        info = self._node.service.info
        self._context_no += 1
        context = Context(
            context_id,
            self._context_no,
            config,
            speech,
            self._node.metrics.context(
                self._transport, self._clock, {"session_id": self.id, "context_no": self._context_no}
            ),
            timeline_of(
                info,
                config.speed,
                config.language,
                breaks=config.breaks,
                pace=self._paces.of(config.voice),
                tells=config.timestamps != "none",
            ),
            encoder,
        )
        self._contexts[context_id] = context
        speech.waker = partial(self._mark_ready, context_id)
        return context

    def _append(self, context_id: str, text: str) -> None:
        if context_id in self._dead:
            raise UnknownContext("this context has ended: end it, or open it anew")
        if len(text) > self._limits.text_message_chars:
            if context_id not in self._contexts:
                self._mark(self._dead, context_id)  # or it would be spoken without its beginning
            raise TextTooLong(f"text of one message is at most {self._limits.text_message_chars} characters")
        context = self._contexts.get(context_id) or self._open(context_id, {})
        self._check_writable(context)
        if context.chars + len(text) > self._limits.text_context_chars:
            raise TextTooLong(f"text of one context is at most {self._limits.text_context_chars} characters")
        if not text:
            return
        context.chars += len(text)
        context.meter.text()
        context.speech.write(text)
        self._tell_words(context, context.timeline.append(text), "estimated")

    def _flush(self, context_id: str, flush_id: str) -> None:
        context = self._context(context_id)
        self._check_writable(context)
        if context.flushes >= MAX_FLUSHES:
            raise BadMessage(f"{MAX_FLUSHES} flushes of this context wait for their audio")
        context.flushes += 1
        context.speech.flush(flush_id)
        self._tell_words(context, context.timeline.flush(), "estimated")

    def _check_writable(self, context: Context) -> None:
        if context.speech.stopped:
            raise UnknownContext("this context was cancelled: no more text")
        if context.speech.ended:
            raise BadMessage("this context was ended: no more text")

    def _ack(self, context_id: str, played_ms: float) -> None:
        if context_id not in self._done:  # its listener may still be playing
            self._context(context_id).acked = (played_ms, self._clock())

    def _end(self, context_id: str) -> None:
        if self._bury(context_id):
            return
        context = self._context(context_id)
        context.speech.end()
        self._tell_words(context, context.timeline.complete(), "estimated")

    def _cancel(self, context: Context, played_ms: float | None) -> None:
        """Barge-in: no audio of the context is given out after this; `context.done` follows from the engine."""
        if context.speech.stopped:
            return
        generated_ms = round(context.speech.samples * 1_000 / SAMPLE_RATE)
        played_ms = min(self._played_ms(context) if played_ms is None else played_ms, generated_ms)
        if self._playout is not None:
            self._playout.clear(context.no)
        if (finished := context.speech.finished) is not None:
            context.timeline.finish(generated_ms, cut=finished.reason != "end")
        heard, unheard = context.timeline.split(played_ms)
        context.meter.cancelled()
        context.speech.stop()
        self._drop_audio(context)
        self._reply(
            protocol.build(
                "context.cancelled",
                context_id=context.id,
                played_ms=round(played_ms),
                generated_ms=generated_ms,
                heard_text=heard,
                unheard_text=unheard,
            )
        )
        self._mark_ready(context.id)

    def _drop_audio(self, context: Context) -> None:
        """Take back the audio that waits behind its words."""
        dropped = [item for item in self._outbox if isinstance(item, AudioChunk) and item.context_no == context.no]
        if dropped:
            for item in dropped:
                self._outbox.remove(item)
            rate = SAMPLE_RATE if context.encoder is None else context.config.output.sample_rate
            sent = dropped[0].first_sample * SAMPLE_RATE // rate
            context.meter.taken_back((context.samples - sent) * 1_000 / SAMPLE_RATE)
            context.samples = sent

    def _played_ms(self, context: Context) -> float:
        """What the listener has heard: as played here, as acknowledged, or as real time has it."""
        if self._playout is not None:
            return self._playout.played_ms(context.no) or 0
        if context.acked is None:
            return context.meter.played_ms()
        acked_ms, at = context.acked
        return min(acked_ms + (self._clock() - at) * 1_000, context.audio_ms)

    def _mark(self, ids: OrderedDict[str, None], context_id: str) -> None:
        """Remember an id, and forget the oldest."""
        ids[context_id] = None
        if len(ids) > MAX_REMEMBERED:
            ids.popitem(last=False)

    def _bury(self, context_id: str) -> bool:
        """The client has seen that a context died; whether it was one of those. Its id may be used again."""
        if context_id not in self._dead:
            return False
        del self._dead[context_id]
        return True

    def _context(self, context_id: str) -> Context:
        context = self._contexts.get(context_id)
        if context is None:
            raise UnknownContext("no such context is open")
        return context

    # ------------------------------------------------------------ events of the engine

    def _next_ready(self) -> Context | None:
        """The context whose turn it is; it leaves the row."""
        for context_id in self._ready:
            context = self._contexts[context_id]
            if self._playout is None or not self._is_held(context, self._playout):
                del self._ready[context_id]
                return context
        return None

    def _is_held(self, context: Context, playout: Playout) -> bool:
        """Whether its next event has to wait for the playout: audio until there is room, a good end until it is heard.

        So a cancel finds a context open for as long as it plays.
        """
        event = next(context.speech.ahead(), None)
        if isinstance(event, RequestFinished):
            return event.reason in ("end", "length") and playout.is_playing(context.no)
        return not playout.wants(context.no)

    def _tell(self, context: Context, event: UtteranceEvent) -> None:
        match event:
            case RequestAudio(pcm=pcm):
                self._tell_audio(context, pcm)
            case RequestWords(words=times):
                self._tell_words(context, context.timeline.align(times), "aligned")
            case RequestStarted(queue_ms=queue_ms):
                context.started = True
                context.meter.started(queue_ms)
                started = {"context_id": context.id, "context_no": context.no, "queue_ms": queue_ms}
                self._reply(protocol.build("context.started", **started))
                held, context.words = context.words, []
                self._tell_words(context, held, "estimated")
            case RequestFlushed(flush_id=flush_id):
                context.flushes -= 1
                context.timeline.flushed(context.audio_ms)
                flushed = {"context_id": context.id, "flush_id": flush_id, "audio_ms": context.audio_ms}
                self._outbox.append(protocol.build("context.flushed", **flushed))
            case RequestFinished():
                self._tell_finished(context, event)

    def _tell_audio(self, context: Context, pcm: bytes) -> None:
        samples = len(pcm) // 2
        context.samples += samples
        context.timeline.hear(pcm)
        if context.config.timestamps != "none":
            self._tell_words(context, context.timeline.settle(context.audio_ms), "aligned")
        context.meter.audio(samples * 1_000 / SAMPLE_RATE)
        chunks = [(pcm, samples)] if context.encoder is None else context.encoder.encode(pcm)
        flags = 0
        for later in context.speech.ahead():
            if isinstance(later, RequestFlushed):
                flags |= protocol.FLAG_FLUSH
            elif isinstance(later, RequestFinished) and later.reason in ("end", "length"):
                flags |= protocol.FLAG_LAST
                context.closed = True
                chunks += [] if context.encoder is None else context.encoder.flush()
        self._chunks(context, chunks, flags)

    def _chunks(self, context: Context, chunks: list[Chunk], flags: int) -> None:
        """Send `chunks`, the last of them with `flags`; flags with no audio left go out with an empty chunk."""
        is_base64 = context.config.output.framing == "base64"
        if flags and not chunks:
            chunks = [(b"", 0)]
        last = len(chunks) - 1
        for number, (payload, samples) in enumerate(chunks):
            its_flags = flags if number == last else 0
            self._outbox.append(AudioChunk(context.id, context.no, context.first_sample, its_flags, payload, is_base64))
            context.first_sample += samples

    def _tell_words(self, context: Context, words: list[Word], kind: str) -> None:
        if context.config.timestamps == "none":
            return
        if not context.started:
            context.words += words
            return
        told = [
            {
                "word": word.word,
                "start_ms": word.start_ms,
                "end_ms": word.end_ms,
                "char_start": word.char_start,
                "char_end": word.char_end,
            }
            for word in words
        ]
        for first in range(0, len(told), MAX_WORDS):
            part = told[first : first + MAX_WORDS]
            message = protocol.build("words", context_id=context.id, kind=kind, words=part)
            # Final times keep their place before the audio that they speak of.
            (self._outbox.append if kind == "aligned" else self._reply)(message)

    def _tell_last_words(self, context: Context, event: RequestFinished) -> None:
        if context.config.timestamps == "none":
            return
        left = context.timeline.finish(context.audio_ms, cut=event.reason == "length")
        self._tell_words(context, left, context.timeline.kind)
        self._tell_words(context, context.timeline.settle(), "aligned")
        self._paces.learn(context.config.voice, context.timeline.pace)

    def _tell_finished(self, context: Context, event: RequestFinished) -> None:
        del self._contexts[context.id]
        self._ready.pop(context.id, None)
        self._mark(self._done, context.id)
        self._active_at = self._clock()
        if self._playout is not None:
            self._playout.end(context.no)
        if event.reason in ("end", "length"):
            if context.samples and not context.closed:
                tail = [] if context.encoder is None else context.encoder.flush()
                self._chunks(context, tail, protocol.FLAG_LAST)
            self._tell_last_words(context, event)
        if event.code is not None:
            error = from_code(event.code, event.message, event.retry_after_ms)
            self._outbox.append(protocol.build_error(error, context_id=context.id))
        if event.reason in ("length", "error") and not context.speech.ended:
            self._mark(self._dead, context.id)
        summary = context.meter.finished(event)
        self._outbox.append(
            protocol.build(
                "context.done",
                context_id=context.id,
                context_no=context.no,
                reason=event.reason,
                audio_ms=summary.audio_ms,
                ttfa_ms=summary.ttfa_ms,
                rtf=summary.rtf,
            )
        )

    # ------------------------------------------------------------ inside

    def _greet(self) -> None:
        info, limits = self._node.service.info, self._limits
        self._reply(
            protocol.build(
                "session.created",
                session_id=self.id,
                protocol=protocol.SUBPROTOCOL,
                engine=info.engine if info else None,
                model=info.model if info else None,
                sample_rate=SAMPLE_RATE,
                frame_ms=FRAME_MS,
                limits={
                    "text_message_chars": limits.text_message_chars,
                    "text_context_chars": limits.text_context_chars,
                    "message_bytes": limits.message_bytes,
                    "contexts": limits.contexts_per_session,
                    "session_idle_s": limits.session_idle_s,
                    "text_idle_s": limits.text_idle_s,
                    "max_lead_ms": limits.max_lead_ms,
                },
            )
        )

    def _mark_ready(self, context_id: str) -> None:
        self._ready[context_id] = None
        self._wake()

    def _reply(self, message: Message) -> None:
        self._replies.append(message)
        self._wake()

    def _wake(self) -> None:
        if self.waker is not None:
            self.waker()
