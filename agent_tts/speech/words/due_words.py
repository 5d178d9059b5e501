"""Releases words once each, in text order, together with the audio that speaks them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent_tts.messages import Word


class DueWords:
    """Words of one context that wait for their audio, for clients that cannot correct a time.

    New times replace those of a waiting word. Final (`aligned`) times arrive before their audio, so after the first
    final times only words with final times are released.
    """

    def __init__(self) -> None:
        # Waiting words by `char_start`, in text order.
        self._waiting: dict[int, Word] = {}
        # `char_end` of the last word with final times; None before the first.
        self._final: int | None = None
        # `char_end` of the last released word.
        self._passed = 0

    def learn(self, words: Iterable[Word], *, final: bool = False) -> None:
        """Take words or new times of words; released words are ignored."""
        for word in words:
            if final:
                self._final = word.char_end
            if word.char_start >= self._passed:
                self._waiting[word.char_start] = word

    def due(self, audio_ms: float) -> list[Word]:
        """Release the words that start before `audio_ms` of the context's audio."""
        due = []
        for word in self._waiting.values():
            if word.start_ms >= audio_ms or (self._final is not None and word.char_start >= self._final):
                break
            due.append(word)
        return self._let_go(due)

    def rest(self) -> list[Word]:
        return self._let_go(list(self._waiting.values()))

    def _let_go(self, words: list[Word]) -> list[Word]:
        for word in words:
            del self._waiting[word.char_start]
            self._passed = word.char_end
        return words
