"""Words as Pipecat takes them, each with the audio that speaks it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from agent_tts.directives import Say
from agent_tts.messages import Word
from agent_tts.speech.words.due_words import DueWords
from agent_tts.text.markup.reader import MarkupReader

# A character of a script that is written without spaces.
_CHARACTER = "[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
# Such a character, or a run of others, with the punctuation around it.
_PIECE = re.compile(rf"[^\w\s]*(?:{_CHARACTER}|(?:(?!{_CHARACTER})\w)+)[^\w\s]*")


# Metadata key of the service's audio frames and of the stop after the last: the `SpokenWord`s that begin in the frame.
# Pipecat's own word frames wait for the end of their sentence, which the language model may not have written yet.
SPOKEN = "agent_tts.spoken"

# Metadata key of the service's audio frames: the request_id, as in the logs of the node.
REQUEST_ID = "agent_tts.request_id"


class PlainText:
    """The text of one turn without its markup."""

    def __init__(self) -> None:
        self._markup = MarkupReader()

    def read(self, text: str) -> str:
        """More text in any split; returns what it completes. What may be the start of a tag waits for its end."""
        items = self._markup.read(text)
        return "".join(item if isinstance(item, str) else item.text for item in items if isinstance(item, str | Say))


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word of the text, or a character of one that is written without spaces."""

    text: str
    at_s: float  # when it begins, from the turn's first sample
    joined: bool  # no space stands between it and its neighbours


@dataclass(frozen=True, slots=True)
class _TimedPiece:
    """A `TimedText` that becomes one `SpokenWord`."""

    text: str
    start_ms: float
    end_ms: float
    char_start: int
    char_end: int
    joined: bool


class SpokenWords:
    """The words of one turn, which may take several contexts, by the rule of `DueWords`."""

    def __init__(self) -> None:
        # What is due of the context that speaks now.
        self._due = DueWords[_TimedPiece]()
        # Audio of the turn before this context.
        self._before_ms = 0.0

    def learn(self, words: Iterable[Word], *, final: bool = False) -> None:
        self._due.learn((piece for word in words for piece in _pieces(word)), final=final)

    def due(self, audio_ms: float) -> list[SpokenWord]:
        return self._spoken(self._due.due(audio_ms), audio_ms)

    def finish(self, audio_ms: float) -> list[SpokenWord]:
        """The words that are left, within `audio_ms`: all text of the context is spoken. The next context may begin."""
        left = self._spoken(self._due.rest(), audio_ms)
        self._due = DueWords()
        self._before_ms += audio_ms
        return left

    def _spoken(self, pieces: list[_TimedPiece], audio_ms: float) -> list[SpokenWord]:
        before_ms = self._before_ms
        return [SpokenWord(p.text, (before_ms + min(p.start_ms, audio_ms)) / 1_000, p.joined) for p in pieces]


def _pieces(word: Word) -> list[_TimedPiece]:
    """The word itself, or its characters where its script is written without spaces; these share its time evenly."""
    if re.search(_CHARACTER, word.word) is None:
        return [_TimedPiece(word.word, word.start_ms, word.end_ms, word.char_start, word.char_end, False)]
    texts = _PIECE.findall(word.word)
    step_ms = (word.end_ms - word.start_ms) / len(texts)
    pieces, at, start_ms = [], word.char_start, float(word.start_ms)
    for text in texts:
        pieces.append(_TimedPiece(text, start_ms, start_ms + step_ms, at, at + len(text), True))
        at, start_ms = at + len(text), start_ms + step_ms
    return pieces
