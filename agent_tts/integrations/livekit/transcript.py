"""The words of a reply as LiveKit takes them, each with the audio that speaks it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from livekit.agents.types import TimedString

from agent_tts.client.utterance import Word
from agent_tts.speech.words.due_words import DueWords


class Transcript:
    """The words of one context by the rule of `DueWords`: every character of its text comes once and in order.

    Args:
        start_ms: the context's first sample, from the reply's first.
    """

    def __init__(self, start_ms: float = 0.0) -> None:
        self._start_ms = start_ms
        self._due = DueWords[Word]()
        # The context's text so far, and how much of it was handed out.
        self._text = ""
        self._passed = 0

    def write(self, text: str) -> None:
        """More text, as it is sent to the node."""
        self._text += text

    def learn(self, words: Iterable[Word], *, final: bool = False) -> None:
        """See `DueWords.learn`."""
        self._due.learn(words, final=final)

    def due(self, audio_ms: float) -> list[TimedString]:
        """See `DueWords.due`; each word comes with the white space before it."""
        return [self._timed(word, word.start_ms, word.end_ms) for word in self._due.due(audio_ms)]

    def finish(self, audio_ms: float) -> list[TimedString]:
        """What is left, within `audio_ms`: all text is spoken. Nothing where the node sent no words."""
        rest = self._due.rest()
        left = [self._timed(word, min(word.start_ms, audio_ms), min(word.end_ms, audio_ms)) for word in rest]
        if self._passed and (tail := self._text[self._passed :]):
            self._passed = len(self._text)
            left.append(TimedString(tail))
        return left

    def _timed(self, word: Word, start_ms: float, end_ms: float) -> TimedString:
        text = self._text[self._passed : word.char_end]
        self._passed = word.char_end
        return TimedString(text, (self._start_ms + start_ms) / 1_000, (self._start_ms + end_ms) / 1_000)
