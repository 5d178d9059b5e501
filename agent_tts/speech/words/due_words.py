"""The rule by which words are let go: once each, in the order of the text, with the audio that speaks them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar


class TimedText(Protocol):
    """A word, or a part of one: milliseconds of the context's audio, character offsets in its text."""

    @property
    def start_ms(self) -> float: ...
    @property
    def end_ms(self) -> float: ...
    @property
    def char_start(self) -> int: ...
    @property
    def char_end(self) -> int: ...


W = TypeVar("W", bound=TimedText)


class DueWords(Generic[W]):
    """Words of one context that wait for their audio, for clients that cannot take a time back.

    Better times replace those of a word that waits. Final (`aligned`) times come before their audio, so from the first
    of them on only words with final times are due.
    """

    def __init__(self) -> None:
        # By `char_start`, in the order of the text.
        self._waiting: dict[int, W] = {}
        # `char_end` of the last word with final times; None before the first.
        self._final: int | None = None
        # `char_end` of the last word that was let go.
        self._passed = 0

    def learn(self, words: Iterable[W], *, final: bool = False) -> None:
        """Take words, or better times of words; those that were let go are ignored."""
        for word in words:
            if final:
                self._final = word.char_end
            if word.char_start >= self._passed:
                self._waiting[word.char_start] = word

    def due(self, audio_ms: float) -> list[W]:
        """The words that begin before `audio_ms` of the context's audio."""
        due = []
        for word in self._waiting.values():
            if word.start_ms >= audio_ms or (self._final is not None and word.char_start >= self._final):
                break
            due.append(word)
        return self._let_go(due)

    def rest(self) -> list[W]:
        """All words that are left: the audio has ended."""
        return self._let_go(list(self._waiting.values()))

    def _let_go(self, words: list[W]) -> list[W]:
        for word in words:
            del self._waiting[word.char_start]
            self._passed = word.char_end
        return words
