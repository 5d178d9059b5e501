"""The base of protocols whose text is spoken up to a flush, one utterance after another. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agent_tts.errors import BadMessage
from agent_tts.messages import Append, Audio, Cancel, End, Finished
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Command, Drop, Echo, Event, Later, ProtocolAdapter
from agent_tts.protocol.options import Lenient
from agent_tts.protocol.v1 import Message

# Close codes after errors; others are POLICY_VIOLATION.
CLOSE_CODES = {"at_capacity": 1013, "draining": 1012, "engine_lost": 1011, "internal": 1011, "slow_consumer": 1011}
POLICY_VIOLATION = 1008

MAX_FLUSHES = 1_000  # of one utterance


@dataclass(slots=True, eq=False)
class SpokenUtterance:
    """A text up to its flush, spoken as one context, or as several if text comes too late for one."""

    context_id: str = ""  # of the context that speaks it; "" while it waits for more text
    chars: int = 0  # text so far
    flushes: int = 0  # sent by the client; the first one completes the text
    audio_ms: int = 0  # of contexts that have ended


class TextMessage(Lenient):
    """A message with text to speak."""

    text: str


class UtterancesAdapter(ProtocolAdapter):
    """The utterances of one connection: text and flushes for the next one wait until the last has been spoken.

    Its audio is binary messages without a header.
    """

    def __init__(self) -> None:
        # The one that is written or spoken; None before the next.
        self._utterance: SpokenUtterance | None = None
        self._is_writing = False  # text has come since the last flush
        # Texts of later utterances, which wait for the end of this one.
        self._waiting: deque[str] = deque()
        # Number of the last context.
        self._context_no = 0

    # ------------------------------------------------------------ from the client

    def _write(self, text: str, *, among: deque[str] | None = None) -> Iterator[Command]:
        """Speak text, or have it wait. What has waited `among` others says nothing once they were forgotten."""
        if not text or self._is_forgotten(among):
            return
        self._is_writing = self._is_writing or among is None
        utterance = self._utterance = self._utterance or SpokenUtterance()
        if utterance.flushes:
            if among is None:
                self._waiting.append(text)
            yield Later(utterance.context_id, len(text), self._write(text, among=self._waiting))
            return
        if among is not None:
            among.popleft()
        utterance.chars += len(text)
        if not utterance.context_id:
            self._context_no += 1
            utterance.context_id = str(self._context_no)
        yield Append(utterance.context_id, text)

    def _flush(self, *, among: deque[str] | None = None) -> Iterator[Command]:
        """Complete the last text, if there is one; raises `BadMessage` when too many flushes wait for it."""
        if self._is_forgotten(among):
            return
        self._is_writing = self._is_writing and among is not None
        utterance = self._utterance
        if utterance is None:
            return
        if self._waiting and among is None:
            yield Later(utterance.context_id, 0, self._flush(among=self._waiting))
            return
        if utterance.flushes >= MAX_FLUSHES:
            raise BadMessage(f"{MAX_FLUSHES} flushes wait for the same audio")
        utterance.flushes += 1
        if not utterance.context_id:
            self._utterance = None
            yield Echo(utterance)
        elif utterance.flushes == 1:
            yield End(utterance.context_id)

    def _silence(self, played_ms: float | None = None) -> Iterator[Command]:
        """Forget the utterance and what waits for it, and cancel its context."""
        dropped, self._utterance, self._is_writing = self._utterance, None, False
        self._waiting = deque()
        if dropped is not None and dropped.context_id:
            yield Drop(dropped.context_id)
            yield Cancel(dropped.context_id, played_ms)

    def _is_forgotten(self, among: deque[str] | None) -> bool:
        return among is not None and among is not self._waiting

    # ------------------------------------------------------------ to the client

    def encode(self, event: Event) -> list[str | bytes]:
        if isinstance(event, Audio):
            return [event.payload] if event.payload and self._of(event.id) is not None else []
        over = event.item if isinstance(event, Echo) and isinstance(event.item, SpokenUtterance) else None
        messages = [] if over is not None else [*self._answers(event)]
        if isinstance(event, Finished) and (ended := self._of(event.id)) is not None:
            ended.context_id = ""
            ended.audio_ms += event.audio_ms
            if ended.flushes:
                over, self._utterance = ended, None
        if over is not None:
            messages += self._spoken(over)
        return [protocol.dump(message) for message in messages]

    def _of(self, context_id: str) -> SpokenUtterance | None:
        """The utterance that a context speaks; None if it was dropped."""
        return self._utterance if self._utterance is not None and self._utterance.context_id == context_id else None

    def _answers(self, event: Event) -> Iterator[Message]:
        """What the client is told of an event of the session."""
        raise NotImplementedError

    def _spoken(self, utterance: SpokenUtterance) -> Iterable[Message]:
        """What the client is told of an utterance that was spoken to its end."""
        return ()

    def _closes(self, code: str, reason: str) -> bool:
        """Whether an error ends the connection; `closing` is set then.

        After `starved` the utterance goes on with its next text; after `unknown_context` the context has ended while a
        message for it was on its way.
        """
        if code in ("starved", "unknown_context"):
            return False
        self.closing = CLOSE_CODES.get(code, POLICY_VIOLATION), reason
        return True
