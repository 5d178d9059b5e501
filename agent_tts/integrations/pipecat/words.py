"""Which words a listener has been given: each is let go with the audio that speaks it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from agent_tts.client.utterance import Word

# A character of a script that is written without spaces.
_CHARACTER = "[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
# Such a character, or a run of others, with the punctuation around it.
_PIECE = re.compile(rf"[^\w\s]*(?:{_CHARACTER}|(?:(?!{_CHARACTER})\w)+)[^\w\s]*")


# Metadata of the service's audio frames, and of the stop after the last: the `SpokenWord` that begin in them. Pipecat's
# own word frames wait for the end of their sentence, which the language model may not have written yet.
SPOKEN = "agent_tts.spoken"

# Metadata key of the service's audio frames: the request_id, as in the logs of the node.
REQUEST_ID = "agent_tts.request_id"


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word of the text, or a character of one that is written without spaces."""

    text: str
    at_s: float  # when it begins, from the turn's first sample
    joined: bool  # no space stands between it and its neighbours


class SpokenWords:
    """The words of one turn, over all contexts that it takes."""

    def __init__(self) -> None:
        # Pieces told and not yet let go, by where they begin in the context's text.
        self._waiting: dict[int, tuple[str, float, bool]] = {}
        # Where the last one that was let go begins in the context's text; -1 before the first.
        self._passed = -1
        # Up to where in the context's text the times are final; None before the first that is.
        self._final: int | None = None
        # Audio of the turn before this context.
        self._before_ms = 0.0

    def tell(self, words: Iterable[Word], *, final: bool = False) -> None:
        """Words with their times, or better times of words told before; those that were let go stay so.

        Final times come before their audio: once there are any, words wait for theirs.
        """
        for word in words:
            if final:
                self._final = word.char_end
            for start, piece in _pieces(word):
                if start > self._passed:
                    self._waiting[start] = piece

    def until(self, audio_ms: float) -> list[SpokenWord]:
        """What begins within so much audio of the context."""
        begun = [start for start, (_, at_ms, _) in self._waiting.items() if at_ms < audio_ms]
        return self._let_go([start for start in begun if self._final is None or start < self._final], audio_ms)

    def finish(self, audio_ms: float) -> list[SpokenWord]:
        """All of the context's text has been spoken within so much audio: what is left."""
        left = self._let_go(list(self._waiting), audio_ms)
        self._before_ms += audio_ms
        self._passed, self._final = -1, None
        return left

    def _let_go(self, starts: list[int], audio_ms: float) -> list[SpokenWord]:
        spoken = []
        for start in sorted(starts):
            text, at_ms, joined = self._waiting.pop(start)
            spoken.append(SpokenWord(text, (self._before_ms + min(at_ms, audio_ms)) / 1_000, joined))
            self._passed = start
        return spoken


def _pieces(word: Word) -> list[tuple[int, tuple[str, float, bool]]]:
    """What of a word is let go at once: where it begins in the text, and (text, start in ms, whether it is joined)."""
    if re.search(_CHARACTER, word.word) is None:
        return [(word.char_start, (word.word, word.start_ms, False))]
    texts = _PIECE.findall(word.word)
    step_ms = (word.end_ms - word.start_ms) / len(texts)
    pieces, start = [], word.char_start
    for index, text in enumerate(texts):
        pieces.append((start, (text, word.start_ms + index * step_ms, True)))
        start += len(text)
    return pieces
