"""Turns, for languages without contexts: texts that are spoken one after another, each as one context. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from agent_tts.errors import BadMessage, TextTooLong
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Message

# Text that waits while an earlier turn is spoken, in characters; each piece of it counts for so many more.
MAX_WAITING = 250_000
PIECE = 100

# Flushes of one turn.
MAX_FLUSHES = 1_000


@dataclass(slots=True, eq=False)
class Turn:
    """A text up to its flush."""

    context_id: str | None = None  # of the context that speaks it; None while it waits for its turn, or for more text
    waiting: list[str] = field(default_factory=list)  # pieces of text that no context has
    cost: int = 0  # of what waits for an earlier turn, by the measure of `MAX_WAITING`
    chars: int = 0  # text so far
    tail: str = ""  # the last of them
    flushes: int = 0  # that the client has sent; with the first it is complete
    audio_ms: int = 0  # of contexts that have ended


class Turns:
    """The turns of one connection, in their order. One at a time has a context."""

    def __init__(self) -> None:
        # The one that is spoken, and those that wait for it to end.
        self._turns: deque[Turn] = deque()
        # The cost of all of them.
        self._cost = 0
        # Number of the last context.
        self._context_no = 0

    @property
    def speaking(self) -> Turn | None:
        """The turn whose turn it is."""
        return self._turns[0] if self._turns else None

    @property
    def writing(self) -> Turn | None:
        """The turn that further text belongs to; None when that begins one."""
        return self._turns[-1] if self._turns and not self._turns[-1].flushes else None

    def of(self, context_id: str | None) -> Turn | None:
        """The turn that a context speaks; None for the context of a turn that was dropped."""
        turn = self.speaking
        return turn if turn is not None and context_id is not None and turn.context_id == context_id else None

    def write(self, text: str) -> list[Message]:
        """More text.

        Raises:
            TextTooLong: too much of it waits for earlier turns.
        """
        if not text:
            return []
        turn = self.writing
        if turn is None:
            turn = Turn()
            self._turns.append(turn)
        if turn is not self.speaking:
            cost = len(text) + PIECE
            if self._cost + cost > MAX_WAITING:
                raise TextTooLong("too much text waits for earlier turns to be spoken: send it when some have been")
            self._cost += cost
            turn.cost += cost
        turn.chars += len(text)
        turn.tail = text[-1]
        turn.waiting.append(text)
        return self.follow()

    def flush(self) -> list[Message]:
        """The last turn is complete, if there is one.

        Raises:
            BadMessage: it was flushed again and again.
        """
        if not self._turns:
            return []
        turn = self._turns[-1]
        if turn.flushes >= MAX_FLUSHES:
            raise BadMessage(f"{MAX_FLUSHES} flushes wait for the same audio")
        turn.flushes += 1
        if turn.flushes == 1 and turn.context_id is not None:
            return [protocol.build("context.end", context_id=turn.context_id)]
        return []

    def drop(self) -> list[Turn]:
        """Forget all turns; a context of the first is still to be cancelled."""
        dropped = list(self._turns)
        self._turns.clear()
        self._cost = 0
        return dropped

    def ended(self, context_id: str, audio_ms: int) -> None:
        """A context has ended, however that came."""
        if (turn := self.of(context_id)) is not None:
            turn.context_id = None
            turn.audio_ms += audio_ms

    def finish(self) -> Turn | None:
        """The turn that has been spoken to its end, which is forgotten; None when there is none."""
        turn = self.speaking
        if turn is None or not turn.flushes or turn.context_id is not None or turn.waiting:
            return None
        self._turns.popleft()
        return turn

    def follow(self) -> list[Message]:
        """What the session is to be told now: text whose turn has come."""
        turn = self.speaking
        if turn is None or not turn.waiting:
            return []
        if turn.context_id is None:
            self._context_no += 1
            turn.context_id = str(self._context_no)
        ready = [protocol.build("text.append", context_id=turn.context_id, text=text) for text in turn.waiting]
        if turn is not self.writing:
            ready.append(protocol.build("context.end", context_id=turn.context_id))
        turn.waiting.clear()
        self._cost -= turn.cost
        turn.cost = 0
        return ready
