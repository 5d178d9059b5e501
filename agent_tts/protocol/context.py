"""What a context tells its listener, in this process or over a connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from agent_tts.events import FinishReason

FLAG_LAST = 1  # last audio of the context
FLAG_FLUSH = 2  # all audio before a flush point has been sent with this piece


class AudioChunk(NamedTuple):
    """A piece of a context's audio."""

    context_id: str
    context_no: int
    first_sample: int  # index of its first sample at the output rate
    flags: int  # FLAG_LAST | FLAG_FLUSH
    payload: bytes  # in the context's encoding: pcm_s16le, 24 kHz, mono unless another one was chosen
    base64: bool = False  # framing

    @property
    def last(self) -> bool:
        """Whether it is the last piece of the context."""
        return bool(self.flags & FLAG_LAST)

    @property
    def flush(self) -> bool:
        """Whether it completes the audio before a flush point."""
        return bool(self.flags & FLAG_FLUSH)


@dataclass(frozen=True, slots=True)
class Word:
    """A whitespace token of the text with its time in the audio."""

    word: str
    start_ms: int  # from the context's first sample
    end_ms: int
    char_start: int  # offsets in the context's text
    char_end: int


@dataclass(frozen=True, slots=True)
class Words:
    """Times of words; aligned times replace estimated times of the same word."""

    kind: Literal["estimated", "aligned"]
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Flushed:
    """All audio of the text before a flush has been told."""

    flush_id: str
    audio_ms: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Where a context was cut off."""

    played_ms: int  # what the listener has heard
    generated_ms: int
    heard_text: str
    unheard_text: str


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a context, and its figures."""

    reason: FinishReason
    audio_ms: int  # audio handed out
    ttfa_ms: float | None  # first text to first audio; None without audio
    rtf: float | None  # engine time over audio time; None without audio


ContextEvent = AudioChunk | Words | Flushed | Done
