"""From the given text to the text that is said: pauses taken out, markup cleaned, numbers said in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent_tts.events import SpeechOptions
from agent_tts.text.breaks import Break, BreakReader
from agent_tts.text.chars import is_unspeakable
from agent_tts.text.clean import Cleaner
from agent_tts.text.normalize import Normalizer

Sink = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Reading:
    """How a text is read. Control characters and lone surrogates are always dropped: no engine takes them."""

    clean: bool = True  # make markdown, links and emoji speakable
    normalize: str | None = None  # say numbers and signs in words of this language; None leaves them
    breaks: bool = False  # obey `<break time="500ms"/>`; otherwise it is text

    @classmethod
    def of(cls, options: SpeechOptions, language: str) -> Reading:
        """The reading that a request asks for; `language` is a code."""
        return cls(options.clean, language if options.normalize else None, options.breaks)


class Reader:
    """Takes raw characters with their offsets and passes what is to be said to `sink`.

    The output depends on the characters and the flushes alone.

    Args:
        rest: takes each pause, after everything before it has been passed on.
    """

    def __init__(self, reading: Reading, sink: Sink, rest: Callable[[Break], None]) -> None:
        self._rest = rest
        self._normalizer = Normalizer(sink, reading.normalize) if reading.normalize else None
        self._said = self._normalizer.push if self._normalizer else sink
        self._cleaner = Cleaner(self._said) if reading.clean else None
        text = self._cleaner.push if self._cleaner else self._plain
        self._breaks = BreakReader(text, self._break) if reading.breaks else None
        self.push: Sink = self._breaks.push if self._breaks else text

    def flush(self, offset: int) -> None:
        """All text so far is complete: pass on everything that is held back."""
        if self._breaks:
            self._breaks.flush()
        self._flush_text(offset)

    def _flush_text(self, offset: int) -> None:
        if self._cleaner:
            self._cleaner.flush(offset)
        if self._normalizer:
            self._normalizer.flush(offset)

    def _break(self, rest: Break, offset: int) -> None:
        self._flush_text(offset)
        self._rest(rest)

    def _plain(self, ch: str, offset: int) -> None:
        if not is_unspeakable(ch):
            self._said(ch, offset)
