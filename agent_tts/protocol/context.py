"""An utterance and its events, in this process or over a connection."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from agent_tts.events import CutReason, FinishReason

FLAG_LAST = 1  # last audio of the context
FLAG_FLUSH = 2  # this piece completes the audio before a flush point


class AudioChunk(NamedTuple):
    """A piece of a context's audio."""

    context_id: str
    context_no: int
    first_sample: int  # index of its first sample at the output rate
    flags: int  # FLAG_LAST | FLAG_FLUSH
    payload: bytes  # in the context's encoding; default pcm_s16le, 24 kHz, mono
    base64: bool = False  # sent as base64 in JSON, not as a binary frame

    @property
    def last(self) -> bool:
        """Whether this is the last piece of the context."""
        return bool(self.flags & FLAG_LAST)

    @property
    def flush(self) -> bool:
        """Whether this piece completes the audio before a flush point."""
        return bool(self.flags & FLAG_FLUSH)


@dataclass(frozen=True, slots=True)
class Word:
    """A whitespace token of the text with its time."""

    word: str
    start_ms: int  # from the context's first sample
    end_ms: int
    char_start: int  # offsets in the context's text
    char_end: int


@dataclass(frozen=True, slots=True)
class Words:
    """Word times; aligned times replace estimated times of the same word."""

    kind: Literal["estimated", "aligned"]
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A `<mark name="..."/>` of the text, told before the audio at its place."""

    name: str
    at_ms: int  # from the context's first sample
    char_start: int  # offset of the tag in the context's text


@dataclass(frozen=True, slots=True)
class Flushed:
    """All audio of the text before a flush was sent."""

    flush_id: str
    audio_ms: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The position at which a context was cancelled."""

    played_ms: int  # heard by the listener
    generated_ms: int
    heard_text: str
    unheard_text: str


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a context with its figures."""

    reason: FinishReason
    audio_ms: int  # audio handed out
    ttfa_ms: float | None  # first text to first audio; None without audio
    rtf: float | None  # engine time / audio time; None without audio
    cut: tuple[CutReason, ...] = ()  # why the engine ended pieces of the text; each reason once


ContextEvent = AudioChunk | Words | Mark | Flushed | Done


class AnyUtterance(ABC):
    """One utterance, on a node or in this process, for one reader."""

    context_id: str  # names it in the logs of the node

    @property
    @abstractmethod
    def done(self) -> Done | None:
        """The figures; None before the end."""

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
    async def next(self) -> ContextEvent | None:
        """The next event; None after `Done`. Cancelling it loses nothing.

        Raises:
            SpeechError: it was refused or failed; raised after all earlier events.
        """

    async def events(self) -> AsyncIterator[ContextEvent]:
        """All events, `Done` last; raises the errors of `next`. Leaving the iteration does not stop the speech."""
        while (event := await self.next()) is not None:
            yield event

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The payloads of the audio; raises the errors of `next`. Leaving the iteration does not stop the speech."""
        async for event in self.events():
            if isinstance(event, AudioChunk):
                yield event.payload
