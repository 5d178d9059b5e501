"""The base of protocols whose text is spoken up to a flush, one utterance after another. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from agent_tts.errors import BadMessage
from agent_tts.messages import Append, Audio, Cancel, End, Finished
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import FOLLOWING, Command, Event, ProtocolAdapter
from agent_tts.protocol.options import Lenient
from agent_tts.protocol.v1 import Message
from agent_tts.serve.dialects.text import WaitingBudget

# Close codes after errors; others are POLICY_VIOLATION.
CLOSE_CODES = {"at_capacity": 1013, "draining": 1012, "engine_lost": 1011, "internal": 1011, "slow_consumer": 1011}
POLICY_VIOLATION = 1008

MAX_FLUSHES = 1_000  # of one utterance


@dataclass(slots=True, eq=False)
class QueuedUtterance:
    """A text up to its flush, spoken as one context, or as several if text comes too late for one."""

    context_id: str | None = None  # of the context that speaks it; None while it waits for its turn or for more text
    waiting: list[str] = field(default_factory=list)  # texts that no context has
    chars: int = 0  # text so far
    flushes: int = 0  # sent by the client; the first one completes the text
    audio_ms: int = 0  # of contexts that have ended

    @property
    def is_over(self) -> bool:
        """Whether all of it has been spoken."""
        return bool(self.flushes) and self.context_id is None and not self.waiting


class TextMessage(Lenient):
    """A message with text to speak."""

    text: str


class UtterancesAdapter(ProtocolAdapter):
    """The utterances of one connection, in their order, of which only the first has a context.

    Its audio is binary messages without a header.
    """

    def __init__(self) -> None:
        self._utterances: deque[QueuedUtterance] = deque()
        self._budget = WaitingBudget("too much text waits for earlier turns to be spoken: send it when some have been")
        # Number of the last context.
        self._context_no = 0

    # ------------------------------------------------------------ from the client

    @property
    def _first(self) -> QueuedUtterance | None:
        return self._utterances[0] if self._utterances else None

    @property
    def _writing(self) -> QueuedUtterance | None:
        """The utterance that further text belongs to; None if further text begins one."""
        return self._utterances[-1] if self._utterances and not self._utterances[-1].flushes else None

    def _write(self, text: str) -> list[Command]:
        """Add text; raises `TextTooLong` when too much of it waits for earlier utterances."""
        if not text:
            return []
        self._budget.add(len(text))
        utterance = self._writing
        if utterance is None:
            utterance = QueuedUtterance()
            self._utterances.append(utterance)
        utterance.chars += len(text)
        utterance.waiting.append(text)
        return self.follow()

    def _flush(self) -> list[Command]:
        """Complete the last utterance, if there is one; raises `BadMessage` when too many flushes wait for it."""
        if not self._utterances:
            return []
        utterance = self._utterances[-1]
        if utterance.flushes >= MAX_FLUSHES:
            raise BadMessage(f"{MAX_FLUSHES} flushes wait for the same audio")
        utterance.flushes += 1
        if utterance.flushes == 1 and utterance.context_id is not None and not utterance.waiting:
            return [End(utterance.context_id)]
        return []

    def _drop(self) -> list[QueuedUtterance]:
        """Forget all utterances; the caller cancels the first one's context."""
        dropped = list(self._utterances)
        self._utterances.clear()
        self._budget.clear()
        return dropped

    def _silence(self) -> list[Command]:
        """Forget all utterances, and cancel the first one's context."""
        return [Cancel(each.context_id) for each in self._drop()[:1] if each.context_id is not None]

    def follow(self) -> list[Command]:
        """What to tell the session now: some of the texts of the first utterance."""
        first = self._first
        if first is None or not first.waiting:
            return []
        if first.context_id is None:
            self._context_no += 1
            first.context_id = str(self._context_no)
        texts, first.waiting = first.waiting[:FOLLOWING], first.waiting[FOLLOWING:]
        for text in texts:
            self._budget.remove(len(text))
        ready: list[Command] = [Append(first.context_id, text) for text in texts]
        if first.flushes and not first.waiting:
            ready.append(End(first.context_id))
        return ready

    @property
    def has_more(self) -> bool:
        return self._first is not None and bool(self._first.waiting)

    # ------------------------------------------------------------ to the client

    def encode(self, event: Event) -> list[str | bytes]:
        if isinstance(event, Audio):
            return [event.payload] if event.payload and self._of(event.id) is not None else []
        if isinstance(event, Finished) and (ended := self._of(event.id)) is not None:
            ended.context_id = None
            ended.audio_ms += event.audio_ms
        messages = [*self._answers(event)]
        while (first := self._first) is not None and first.is_over:
            self._utterances.popleft()
            messages += self._spoken(first)
        return [protocol.dump(message) for message in messages]

    def _of(self, context_id: str | None) -> QueuedUtterance | None:
        """The utterance that a context speaks; None if it was dropped."""
        first = self._first
        return first if first is not None and context_id is not None and first.context_id == context_id else None

    def _answers(self, event: Event) -> Iterator[Message]:
        """What the client is told of an event of the session."""
        raise NotImplementedError

    def _spoken(self, utterance: QueuedUtterance) -> Iterable[Message]:
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
