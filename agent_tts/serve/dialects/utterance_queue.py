"""What waits while an utterance is spoken, for protocols that speak one utterance after another. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from agent_tts.errors import BadMessage, TextTooLong
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Message

# Text that may wait, in characters; each message counts for MESSAGE_COST more.
MAX_WAITING = 250_000
MESSAGE_COST = 100

# Flushes of one utterance.
MAX_FLUSHES = 1_000


class WaitingBudget:
    """Limits the messages that wait.

    Args:
        refusal: the message of the error.
    """

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal
        # Of all messages that wait, by the measure of `MAX_WAITING`.
        self._cost = 0

    def add(self, chars: int) -> None:
        """A message with so many characters is to wait.

        Raises:
            TextTooLong: too much waits already; nothing was added.
        """
        if self._cost + chars + MESSAGE_COST > MAX_WAITING:
            raise TextTooLong(self._refusal)
        self._cost += chars + MESSAGE_COST

    def remove(self, chars: int) -> None:
        """A message that was added waits no longer."""
        self._cost -= chars + MESSAGE_COST

    def clear(self) -> None:
        """No message waits."""
        self._cost = 0


@dataclass(slots=True, eq=False)
class QueuedUtterance:
    """A text up to its flush, spoken as one context, or as several if text comes too late for one."""

    context_id: str | None = None  # of the context that speaks it; None while it waits for its turn or for more text
    waiting: list[str] = field(default_factory=list)  # texts that no context has
    chars: int = 0  # text so far
    tail: str = ""  # its last character
    flushes: int = 0  # sent by the client; the first one completes the text
    audio_ms: int = 0  # of contexts that have ended


class UtteranceQueue:
    """The utterances of one connection, in their order. Only the first has a context."""

    def __init__(self) -> None:
        self._utterances: deque[QueuedUtterance] = deque()
        self._budget = WaitingBudget("too much text waits for earlier turns to be spoken: send it when some have been")
        # Number of the last context.
        self._context_no = 0

    @property
    def speaking(self) -> QueuedUtterance | None:
        """The first utterance."""
        return self._utterances[0] if self._utterances else None

    @property
    def writing(self) -> QueuedUtterance | None:
        """The utterance that further text belongs to; None if further text begins one."""
        return self._utterances[-1] if self._utterances and not self._utterances[-1].flushes else None

    def of(self, context_id: str | None) -> QueuedUtterance | None:
        """The utterance that a context speaks; None if it was dropped."""
        first = self.speaking
        return first if first is not None and context_id is not None and first.context_id == context_id else None

    def write(self, text: str) -> list[Message]:
        """More text.

        Raises:
            TextTooLong: too much of it waits for earlier utterances.
        """
        if not text:
            return []
        self._budget.add(len(text))
        utterance = self.writing
        if utterance is None:
            utterance = QueuedUtterance()
            self._utterances.append(utterance)
        utterance.chars += len(text)
        utterance.tail = text[-1]
        utterance.waiting.append(text)
        return self.follow()

    def flush(self) -> list[Message]:
        """The last utterance is complete, if there is one.

        Raises:
            BadMessage: too many flushes wait for it.
        """
        if not self._utterances:
            return []
        utterance = self._utterances[-1]
        if utterance.flushes >= MAX_FLUSHES:
            raise BadMessage(f"{MAX_FLUSHES} flushes wait for the same audio")
        utterance.flushes += 1
        if utterance.flushes == 1 and utterance.context_id is not None:
            return [protocol.build("context.end", context_id=utterance.context_id)]
        return []

    def drop(self) -> list[QueuedUtterance]:
        """Forget all utterances; the caller cancels the first one's context."""
        dropped = list(self._utterances)
        self._utterances.clear()
        self._budget.clear()
        return dropped

    def ended(self, context_id: str, audio_ms: int) -> None:
        """A context has ended, for whatever reason."""
        if (utterance := self.of(context_id)) is not None:
            utterance.context_id = None
            utterance.audio_ms += audio_ms

    def finish(self) -> QueuedUtterance | None:
        """Forget and return the first utterance if all of it has been spoken; otherwise None."""
        first = self.speaking
        if first is None or not first.flushes or first.context_id is not None or first.waiting:
            return None
        self._utterances.popleft()
        return first

    def follow(self) -> list[Message]:
        """What to tell the session now: the texts of the first utterance."""
        first = self.speaking
        if first is None or not first.waiting:
            return []
        if first.context_id is None:
            self._context_no += 1
            first.context_id = str(self._context_no)
        ready = [protocol.build("text.append", context_id=first.context_id, text=text) for text in first.waiting]
        if first.flushes:
            ready.append(protocol.build("context.end", context_id=first.context_id))
        for text in first.waiting:
            self._budget.remove(len(text))
        first.waiting.clear()
        return ready
