"""An utterance, in this process or over a connection."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Self

from agent_tts.messages import Audio, Finished, Flushed, Mark, Words

UtteranceEvent = Audio[str] | Words[str] | Mark[str] | Flushed[str] | Finished[str]


class AnyUtterance(ABC):
    """One utterance, on a node or in this process, for one reader. It stops at the end of its `async with` block."""

    context_id: str  # names it in the logs of the node
    done: Finished[str] | None = None  # the figures; None before the end

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def write(self, text: str) -> None:
        """Append text, verbatim and in any split. Never blocks; ignored once it has ended or failed."""

    @abstractmethod
    def end(self) -> None:
        """No more text. Idempotent."""

    @abstractmethod
    def stop(self) -> None:
        """Stop now, without waiting: no audio follows. Idempotent."""

    @abstractmethod
    async def next(self) -> UtteranceEvent | None:
        """The next event; None after `Finished`. Cancelling it loses nothing.

        Raises:
            SpeechError: it was refused or failed; raised after all earlier events.
        """

    async def events(self) -> AsyncIterator[UtteranceEvent]:
        """All events, `Finished` last; raises the errors of `next`. Leaving the iteration does not stop the speech."""
        while (event := await self.next()) is not None:
            yield event

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The payloads of the audio; raises the errors of `next`. Leaving the iteration does not stop the speech."""
        async for event in self.events():
            if isinstance(event, Audio):
                yield event.payload
