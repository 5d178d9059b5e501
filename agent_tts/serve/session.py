"""The contexts of one client, independent of the transport and the dialect: commands in, events out. No I/O.

The transport (WebSocket, WebRTC) calls `receive` with an adapter's commands and `poll` for events. Audio that is
not polled stays in the engine's credit window, so a slow client delays only itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agent_tts import errors
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.messages import Append, Cancel, End, Finished, Flush, Open
from agent_tts.protocol import adapter
from agent_tts.protocol.adapter import Command, Event, Failed
from agent_tts.protocol.options import SessionConfig
from agent_tts.serve.access.fair_queue import SLICE_S
from agent_tts.serve.node import Node
from agent_tts.sound.provenance import declaration
from agent_tts.speech.utterance import PCM, Listener, Utterance
from agent_tts.speech.words.timeline import Paces

if TYPE_CHECKING:
    from agent_tts.speech.audio.track import SpeechTrack

MAX_REMEMBERED = 64  # ids of failed contexts, so that text in flight does not open them again, and of ended ones
MAX_FLUSHES = 1_000  # unanswered, per context: each uses memory of the engine
MAX_REPLIES = 1_000  # answers that a client may leave unread before it is disconnected

# Characters of a text that are read at once, in about a millisecond with all that markup and lexicons can do; and of
# what a client may send while earlier text is read, or for the time when it has been spoken, where each message counts
# for MESSAGE_COST more. Thousands of messages may wait, each of hundreds of commands: so many commands and ends of
# messages have their turn at once.
SLICE_CHARS = 256
MAX_BEHIND, MESSAGE_COST = 250_000, 100
FOLLOWING = 16


@dataclass(slots=True, eq=False)
class _Line:
    """Messages that are obeyed one after another: one that has come, or all that have waited for a context."""

    messages: deque[adapter.Later]
    has_waited: bool
    about: str | None = None  # the context of the first message's last command


@dataclass(eq=False, repr=False)
class Session:
    """All contexts of one client."""

    node: Node
    transport: str
    playout: SpeechTrack | None = None  # plays in the node: a context stays open, and can be cancelled, while it plays
    clock: Callable[[], float] = time.monotonic
    owner: int = 0  # whose contexts these are; see `SpeechService.open`

    def __post_init__(self) -> None:
        node = self.node
        self.id = node.session_id()
        self._limits = node.settings.limits
        self._config = SessionConfig(lead_ms=node.settings.lead_ms, normalize=node.settings.normalize)
        self._contexts: dict[str, Utterance] = {}
        # Ids of contexts refused or ended without the client's request; text for them is refused.
        self._dead: deque[str] = deque(maxlen=MAX_REMEMBERED)
        # Ids of ended contexts.
        self._done: deque[str] = deque(maxlen=MAX_REMEMBERED)
        self._context_no = 0
        # Audio that was polled. Contexts that are open together are heard together: each has its share of the time.
        self.heard_s = 0.0
        self._paces = Paces()
        # The rest of a text that is read in slices, of which the first was read; and what is obeyed after it.
        self._rest: tuple[Utterance, str] | None = None
        self._due: deque[_Line] = deque()
        # What waits for the end of a context to be told, by its id.
        self._later: dict[str, deque[adapter.Later]] = {}
        # Costs of the messages that have come, and of those that wait or have waited, until each is obeyed or dropped.
        self._unread = self._waiting = 0
        # Events that need not wait for audio.
        self._replies: deque[Event] = deque()
        # Open contexts that may have events, in round-robin order.
        self._ready: dict[str, None] = {}
        # Time of the client's last message or of the last end of a context.
        self._active_at = self.clock()
        # (WebSocket close code, reason) with which the session closes once no context is open; None while it continues.
        self._leaving: tuple[int, str] | None = None
        # What `_leaving` says, when all events were polled: the transport closes now.
        self.closing: tuple[int, str] | None = None
        # Called when `poll` may have an event; set by the transport. Must not block.
        self.waker: Callable[[], None] = _nobody
        # Who comes to a node that is full already has found no better one, and is not sent on.
        self._may_be_asked = not node.high_water.was_over
        node.sessions.add(self)
        self._greet()
        if node.service.draining:  # since the client was admitted
            self.drain()

    # ------------------------------------------------------------ the transport's side

    def receive(self, commands: Iterable[Command], size: int = 0) -> None:
        """Obey the commands of an adapter, which has them from a message of `size` characters; many of them, and those
        behind a long text, wait for `go_on`. An error is answered and drops the rest of them.

        Raises:
            SlowConsumer: more than `MAX_REPLIES` answers are unread, or more than `MAX_BEHIND` waits to be obeyed.
        """
        self._active_at = self.clock()
        message = adapter.Later("", size, iter(commands))
        self._due.append(_Line(deque([message]), has_waited=False))
        self._unread += _cost(message)
        if len(self._due) == 1:
            self._obey_some(self.clock())
        if len(self._replies) > MAX_REPLIES:
            raise errors.SlowConsumer("the client does not read the answers")
        if self._unread > MAX_BEHIND:
            raise errors.SlowConsumer("the client sends text faster than it is read")

    @property
    def is_reading(self) -> bool:
        """Whether `go_on` has something to do; `poll` does it too."""
        return self._rest is not None or bool(self._due)

    def go_on(self) -> None:
        """Read a slice of the text that waits, or obey some of what came after it or has waited for a context."""
        began = self.clock()
        if self._rest is not None:
            (utterance, text), self._rest = self._rest, None
            if self._contexts.get(utterance.context_id) is utterance and not utterance.stopped:  # else its end is told
                self._read(utterance, text)
        self._obey_some(began)

    def _obey_some(self, began: float) -> None:
        """Obey what follows, in what is left of a slice that began then: each text may take all of it."""
        for _ in range(FOLLOWING):
            if self._rest is not None or not self._due or self.clock() - began > SLICE_S:
                break
            self._obey(self._due[0])
        if self._due:
            self.waker()

    def _obey(self, line: _Line) -> None:
        """Obey the next command of a line, or find that its first message has no more."""
        try:
            command = next(line.messages[0].commands, None)
            if isinstance(command, adapter.Later):
                self._wait(command, line)
            elif command is not None:
                line.about = getattr(command, "id", None)
                self._dispatch(command)
            if command is not None:
                return
        except errors.SpeechError as error:
            self._refuse(error, line.about)
        if self._due and self._due[0] is line:  # else it was dropped
            cost = _cost(line.messages.popleft())
            if line.has_waited:
                self._waiting -= cost
            else:
                self._unread -= cost
            line.about = None
            if not line.messages:
                self._due.popleft()

    def _refuse(self, error: errors.SpeechError, context_id: str | None) -> None:
        if error.code in ("at_capacity", "engine_lost", "draining", "context_limit"):
            self.node.metrics.refused.labels(error.code).inc()
        about = error.context_id or context_id
        self._reply(Failed(about, error, ends=about is not None and about not in self._contexts))

    def poll(self) -> Event | None:
        """The next event to tell, or None when there is nothing now."""
        self.go_on()
        while not self._replies:
            utterance = self._next_ready() if self._ready else None
            if utterance is None:
                if self._leaving is not None and not self._contexts:
                    self.closing = self._leaving
                return None
            samples = utterance.samples
            event = utterance.poll()
            self.heard_s += (utterance.samples - samples) / SAMPLE_RATE / len(self._contexts)
            if utterance.has_events:
                self._ready[utterance.context_id] = None  # round robin
            if isinstance(event, Finished):
                self._finish(utterance, event)
            elif event is not None:
                return event
        reply = self._replies.popleft()
        ended = _ended(reply)
        if ended is not None and (messages := self._later.pop(ended, None)) is not None:
            self._due.append(_Line(messages, has_waited=True))
        return reply

    @property
    def is_speaking(self) -> bool:
        """Whether a context is open."""
        return bool(self._contexts)

    def drain(self) -> None:
        """Announce the node's shutdown. Open contexts may finish, then `closing` is set."""
        self._leaving = (1012, "the node is going away")
        self._ask_to_move("shutdown", self.node.settings.timeouts.drain_s)

    @property
    def idle_since(self) -> float | None:
        """Since when a session that may be asked to move is idle; see `relieve`."""
        idle = self._may_be_asked and self._leaving is None and not self._contexts
        return self._active_at if idle else None

    def relieve(self) -> None:
        """Ask the client of an idle session on a full node to move, once; it may also stay."""
        self._ask_to_move("full", self._limits.session_idle_s)

    def _ask_to_move(self, reason: str, within_s: float) -> None:
        self._may_be_asked = False
        self._reply(adapter.AskedToMove(round(within_s * 1_000), reason, self.node.settings.public_url))

    def expire(self) -> float:
        """Set `closing` after `session_idle_s` without activity. Returns the seconds until the next check."""
        limit_s = self._limits.session_idle_s
        if self._contexts:
            return limit_s
        left_s = self._active_at + limit_s - self.clock()
        if left_s > 0:
            return left_s
        if self.closing is None:
            self.closing = (1000, f"idle for {limit_s:g} s")
            self.waker()
        return limit_s

    def close(self) -> None:
        """Stop every context at once. Idempotent."""
        self.waker = _nobody
        self.node.sessions.discard(self)
        for utterance in self._contexts.values():
            utterance.waker = None
            utterance.stop()
        self._contexts.clear()
        self._rest = None
        self._later.clear()
        self._due.clear()
        self._replies.clear()
        self._ready.clear()

    # ------------------------------------------------------------ commands of the client

    def _dispatch(self, command: Command) -> None:
        match command:
            case Append(id=context_id, content=str(text)):
                self._append(context_id, text)
            case adapter.Played(id=context_id, played_ms=played_ms):
                if context_id not in self._done:  # otherwise the listener may still be playing it
                    self._utterance(context_id).ack(played_ms)
            case Open(id=context_id, options=overrides):
                self._release_id(context_id)
                if context_id in self._contexts:
                    raise errors.ContextExists("this context is open: choose another context_id, or end it first")
                self._open(context_id, overrides)
            case Flush(id=context_id, flush_id=flush_id):
                self._flush(context_id, flush_id or "")
            case End(id=context_id):
                if not self._release_id(context_id):
                    self._utterance(context_id).end()
            case Cancel(id="*", played_ms=played_ms):
                self._dead.clear()
                self._cancel_all(played_ms)
            case Cancel(id=context_id, played_ms=played_ms):
                if not self._release_id(context_id):
                    self._cancel(self._utterance(context_id), played_ms)
            case adapter.Update(fields=fields):
                self._update(fields)
            case adapter.Ping(t=t):
                self._reply(adapter.Pong(t, self._played()))
            case adapter.Echo():
                self._reply(command)
            case adapter.Drop(context_id=context_id):
                self._waiting -= sum(map(_cost, self._later.pop(context_id, ())))
            case adapter.Close():
                self._leaving = (1000, "closed by the client")
                self._cancel_all(None)
                self.waker()

    def _played(self) -> dict[str, int] | None:
        """What was played of each context, ms, where this node plays it: its client counts on from there."""
        if self.playout is None:
            return None
        played = {id_: self.playout.played_ms(utterance.context_no) for id_, utterance in self._contexts.items()}
        return {id_: ms for id_, ms in played.items() if ms is not None}

    def _update(self, fields: dict[str, object]) -> None:
        config = self._config.merged(fields, self._limits.max_lead_ms)
        if self.node.service.info is not None:
            self.node.service.resolve(config.options())
        self._config = config
        self._reply(adapter.Updated(config))

    def _open(self, context_id: str, overrides: dict[str, object]) -> Utterance:
        try:
            config = self._config.merged(overrides, self._limits.max_lead_ms)
            return self._admit(context_id, config)
        except errors.SpeechError:
            self._dead.append(context_id)
            raise

    def _admit(self, context_id: str, config: SessionConfig) -> Utterance:
        if self._leaving is not None:
            raise errors.Draining(f"no new context: {self._leaving[1]}")
        if len(self._contexts) >= (most := self._limits.contexts_per_session):
            raise errors.ContextLimit(
                f"{most} contexts are open (limits.contexts_per_session): end or cancel one first"
            )
        context_no = self._context_no + 1
        listener = Listener(
            output=config.output if self.playout is None else PCM,
            words="told" if config.timestamps == "word" else "kept",
            paces=self._paces,
            context_id=context_id,
            context_no=context_no,
            clock=self.clock,
        )
        about: dict[str, str | int] = {"session_id": self.id, "context_no": context_no}
        node, options = self.node, config.options()
        utterance = node.metrics.open(node.service, self.transport, options, self.owner, listener, about)
        self._context_no, self._contexts[context_id] = context_no, utterance
        utterance.waker = partial(self._mark_ready, context_id)
        return utterance

    def _append(self, context_id: str, text: str) -> None:
        if context_id in self._dead:
            raise errors.UnknownContext("this context has ended: end it, or open it anew")
        if len(text) > self._limits.text_message_chars:
            if context_id not in self._contexts:
                self._dead.append(context_id)  # otherwise later text would be spoken without its beginning
            raise errors.TextTooLong(f"text of one message is at most {self._limits.text_message_chars} characters")
        utterance = self._contexts.get(context_id) or self._open(context_id, {})
        self._check_writable(utterance)
        if utterance.chars + len(text) > self._limits.text_context_chars:
            raise errors.TextTooLong(f"text of one context is at most {self._limits.text_context_chars} characters")
        is_first = not utterance.chars
        utterance.meter.take(len(text), begins=is_first)
        self._read(utterance, text)
        if is_first and text:
            utterance.meter.submitted(self._active_at)

    def _read(self, utterance: Utterance, text: str) -> None:
        utterance.write(text[:SLICE_CHARS])
        if rest := text[SLICE_CHARS:]:
            self._rest = utterance, rest
            self.waker()

    def _flush(self, context_id: str, flush_id: str) -> None:
        utterance = self._utterance(context_id)
        self._check_writable(utterance)
        if utterance.flushes >= MAX_FLUSHES:
            raise errors.BadMessage(f"{MAX_FLUSHES} flushes of this context wait for their audio")
        utterance.flush(flush_id)

    def _wait(self, later: adapter.Later, line: _Line) -> None:
        """Keep a message until a context has ended; one that has waited takes all that waits behind it along."""
        context_id = later.context_id
        is_over = context_id not in self._contexts and context_id not in map(_ended, self._replies)
        if not line.has_waited:
            if self._waiting + _cost(later) > MAX_BEHIND:
                raise errors.TextTooLong("too much waits for earlier text to be spoken: send it when some has been")
            self._waiting += _cost(later)
            line = _Line(deque([later]), has_waited=True)
            if is_over:
                self._due.append(line)
        else:
            line.messages[0] = later
            if not is_over:
                self._due.popleft()
        if not is_over:
            self._later.setdefault(context_id, deque()).extend(line.messages)

    def _check_writable(self, utterance: Utterance) -> None:
        if utterance.stopped:
            raise errors.UnknownContext("this context was cancelled: no more text")
        if utterance.ended:
            raise errors.BadMessage("this context was ended: no more text")

    def _cancel_all(self, played_ms: float | None) -> None:
        self._later.clear()
        self._due = deque(line for line in self._due if not line.has_waited)
        self._waiting = 0
        for utterance in list(self._contexts.values()):
            self._cancel(utterance, played_ms)

    def _cancel(self, utterance: Utterance, played_ms: float | None) -> None:
        """Barge-in: no audio of the context is sent after this; `context.done` follows when the engine has stopped."""
        if utterance.stopped:
            return
        if self.playout is not None:
            if played_ms is None:
                played_ms = self.playout.played_ms(utterance.context_no) or 0
            self.playout.clear(utterance.context_no)
        self._reply(utterance.cut(played_ms))
        self._mark_ready(utterance.context_id)

    def _release_id(self, context_id: str) -> bool:
        """Allow a failed context's id again, because the client has seen its end. Whether the id was one of those."""
        if context_id not in self._dead:
            return False
        self._dead.remove(context_id)
        return True

    def _utterance(self, context_id: str) -> Utterance:
        utterance = self._contexts.get(context_id)
        if utterance is None:
            raise errors.UnknownContext("no such context is open")
        return utterance

    # ------------------------------------------------------------ what the client is told

    def _next_ready(self) -> Utterance | None:
        for context_id in self._ready:
            utterance = self._contexts[context_id]
            if self.playout is None or not self._is_held(utterance, self.playout):
                del self._ready[context_id]
                return utterance
        return None

    def _is_held(self, utterance: Utterance, playout: SpeechTrack) -> bool:
        """Whether its next event waits for the playout: audio until there is room, a regular end until it is played."""
        event = utterance.ahead
        if isinstance(event, Finished):
            return event.reason in ("end", "length") and playout.is_playing(utterance.context_no)
        return event is not None and not playout.wants(utterance.context_no)

    def _finish(self, utterance: Utterance, event: Finished[str]) -> None:
        context_id = utterance.context_id
        del self._contexts[context_id]
        self._ready.pop(context_id, None)
        self._done.append(context_id)
        self._active_at = self.clock()
        if self.playout is not None:
            self.playout.end(utterance.context_no)
        if utterance.error is not None:
            self._reply(Failed(context_id, utterance.error))
        if event.reason in ("length", "error") and not utterance.ended:
            self._dead.append(context_id)
        self._reply(event)

    def _greet(self) -> None:
        info, limits = self.node.service.info, self._limits
        told = {
            "text_message_chars": limits.text_message_chars,
            "text_context_chars": limits.text_context_chars,
            "message_bytes": limits.message_bytes,
            "contexts": limits.contexts_per_session,
            "session_idle_s": limits.session_idle_s,
            "text_idle_s": limits.text_idle_s,
            "max_lead_ms": limits.max_lead_ms,
        }
        engine, model = (info.engine, info.model) if info else (None, None)
        self._reply(adapter.Created(self.id, engine, model, declaration(info.watermark if info else None), told))

    def _mark_ready(self, context_id: str) -> None:
        self._ready[context_id] = None
        self.waker()

    def _reply(self, event: Event) -> None:
        self._replies.append(event)
        self.waker()


def _cost(message: adapter.Later) -> int:
    return MESSAGE_COST + message.chars


def _ended(reply: Event) -> str | None:
    """The context whose end it tells; None if it tells none."""
    return reply.id if isinstance(reply, Finished) or (isinstance(reply, Failed) and reply.ends) else None


def _nobody() -> None:
    """The waker of a session without a transport."""
