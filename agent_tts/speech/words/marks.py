"""When the marks of an utterance are spoken: `<mark name="..."/>` between its words. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from agent_tts.messages import Mark, Word


@dataclass(slots=True)
class _WaitingMark:
    name: str
    raw: int  # offset of its tag in the raw text
    place: int  # offset in the clean text, behind the last character that is no white space
    before_pause: bool = False  # a pause follows before the next word


class Marks:
    """Marks that wait for the final times of the words around them; offsets are those of the clean text.

    A mark has the time at which the next word starts; before a pause, and behind all words, that at which the last one
    ends.
    """

    def __init__(self) -> None:
        self._waiting: deque[_WaitingMark] = deque()
        # End of the last word with a final time.
        self._spoken_ms = 0

    def add(self, name: str, raw: int, place: int) -> None:
        """A mark behind all text so far, which ends at `place`; `raw` is the offset of its tag in the raw text."""
        self._waiting.append(_WaitingMark(name, raw, place))

    def pause(self, place: int) -> None:
        """A pause behind all text so far, which ends at `place`."""
        for waiting in reversed(self._waiting):
            if waiting.place < place:
                break
            waiting.before_pause = True

    def due(self, context_id: str, words: Sequence[Word]) -> list[Mark[str]]:
        """The marks whose times these words tell, which are the next ones with final times."""
        marks: list[Mark[str]] = []
        for word in words:
            while self._waiting and (waiting := self._waiting[0]).place <= word.char_start:
                marks.append(self._at(context_id, self._spoken_ms if waiting.before_pause else word.start_ms))
            self._spoken_ms = word.end_ms
            while self._waiting and (waiting := self._waiting[0]).before_pause and waiting.place <= word.char_end:
                marks.append(self._at(context_id, word.end_ms))
        return marks

    def rest(self, context_id: str) -> list[Mark[str]]:
        return [self._at(context_id, self._spoken_ms) for _ in range(len(self._waiting))]

    def _at(self, context_id: str, ms: int) -> Mark[str]:
        mark = self._waiting.popleft()
        return Mark(context_id, mark.name, ms, mark.raw)
