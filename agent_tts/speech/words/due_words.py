"""Words of a context, told once each with the audio that speaks them: for languages that cannot take a time back."""

from __future__ import annotations

from typing import Any

Told = dict[str, Any]  # an entry of a `words` message of `agent_tts.v1`


class DueWords:
    """Words that wait for their audio, in the order of the text.

    What is known of a word may change until then: `aligned` times take the place of `estimated` ones. They come before
    their audio, so once there are any, words wait for theirs.
    """

    def __init__(self) -> None:
        # By the offset of their first character. One of the text's words is never cut in two ways.
        self._waiting: dict[int, Told] = {}
        # Offset after the last word whose times are final; None before the first that is.
        self._final: int | None = None
        # Offset after the last word that was told.
        self._told = 0

    def learn(self, words: list[Told], *, final: bool = False) -> None:
        """Take the words of a `words` message; `final` if its kind is `aligned`."""
        for word in words:
            if final:
                self._final = word["char_end"]
            if word["char_start"] >= self._told:
                self._waiting[word["char_start"]] = word

    def due(self, audio_ms: float) -> list[Told]:
        """The words that have begun within so much audio, counted from the context's first sample."""
        due = []
        for word in self._waiting.values():
            if word["start_ms"] >= audio_ms or (self._final is not None and word["char_start"] >= self._final):
                break
            due.append(word)
        return self._tell(due)

    def rest(self) -> list[Told]:
        """All others: the audio has ended."""
        return self._tell(list(self._waiting.values()))

    def _tell(self, words: list[Told]) -> list[Told]:
        for word in words:
            del self._waiting[word["char_start"]]
            self._told = word["char_end"]
        return words
