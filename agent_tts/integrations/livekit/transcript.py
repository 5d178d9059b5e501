"""The words of a reply with their times, each handed out with the audio that speaks it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from livekit.agents.types import TimedString

from agent_tts.client.utterance import Word


class Transcript:
    """The words of one context, as LiveKit takes them: every character of the text once and in order.

    LiveKit cannot take a time back. So a word waits for its audio, and better times that come meanwhile count.
    """

    def __init__(self, start_ms: float = 0.0) -> None:
        """For a context whose first sample is `start_ms` after the reply's."""
        self._start_ms = start_ms
        # The context's text so far.
        self._text = ""
        # How much of it was handed out.
        self._passed = 0
        # Up to where in the text the times are final; None before the first that is.
        self._final: int | None = None
        # Words that wait, by where they begin in the text; in the order of the text.
        self._waiting: dict[int, Word] = {}

    def write(self, text: str) -> None:
        """More text, as it is sent to the node."""
        self._text += text

    def tell(self, words: Iterable[Word], *, final: bool = False) -> None:
        """Words with their times, or better times; those of words that were handed out are ignored.

        Final times come before their audio: once there are any, words wait for theirs.
        """
        for word in words:
            if final:
                self._final = word.char_end
            if word.char_end > self._passed:
                self._waiting[word.char_start] = word

    def until(self, audio_ms: float) -> list[TimedString]:
        """The words that begin within so much audio of the context, with the white space before them."""
        begun: list[TimedString] = []
        while self._waiting:
            word = next(iter(self._waiting.values()))
            if word.start_ms >= audio_ms or (self._final is not None and word.char_start >= self._final):
                break
            begun.append(self._pass(word, word.start_ms, word.end_ms))
        return begun

    def finish(self, audio_ms: float) -> list[TimedString]:
        """What is left, once all text has been spoken within so much audio; nothing where the node told no words."""
        words = list(self._waiting.values())
        left = [self._pass(word, min(word.start_ms, audio_ms), min(word.end_ms, audio_ms)) for word in words]
        if self._passed and (tail := self._text[self._passed :]):
            self._passed = len(self._text)
            left.append(TimedString(tail))
        return left

    # ------------------------------------------------------------ inside

    def _pass(self, word: Word, start_ms: float, end_ms: float) -> TimedString:
        del self._waiting[word.char_start]
        text = self._text[self._passed : word.char_end]
        self._passed = word.char_end
        return TimedString(text, (self._start_ms + start_ms) / 1_000, (self._start_ms + end_ms) / 1_000)
