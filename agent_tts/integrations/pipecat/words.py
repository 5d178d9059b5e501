"""Words as Pipecat takes them, each with the audio that speaks it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from agent_tts.directives import Say
from agent_tts.messages import Word
from agent_tts.speech.words.due_words import DueWords
from agent_tts.speech.words.spacing import Spacing
from agent_tts.text.markup.reader import MarkupReader

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
    """A word of the text, as `agent_tts.text.words` has it."""

    text: str  # with the space before it if it is joined
    at_s: float  # when it begins, from the turn's first sample
    joined: bool  # to one of its neighbours: no space is to be put between it and the joined words around it


class SpokenWords:
    """The words of one turn, which may take several contexts, by the rule of `DueWords`."""

    def __init__(self) -> None:
        # The words that are due of the context that speaks now, and its text.
        self.known, self.text = DueWords(), Spacing()
        # Audio of the turn before this context.
        self._before_ms = 0.0

    def due(self, audio_ms: float) -> list[SpokenWord]:
        return self._spoken(self.known.due(audio_ms), audio_ms)

    def finish(self, audio_ms: float) -> list[SpokenWord]:
        """The words that are left, within `audio_ms`: all text of the context is spoken. The next context may begin."""
        left = self._spoken(self.known.rest(), audio_ms)
        self.known, self.text = DueWords(), Spacing()
        self._before_ms += audio_ms
        return left

    def _spoken(self, words: list[Word], audio_ms: float) -> list[SpokenWord]:
        return [self._of(word, (self._before_ms + min(word.start_ms, audio_ms)) / 1_000) for word in words]

    def _of(self, word: Word, at_s: float) -> SpokenWord:
        is_first, before = not self.text.passed, self.text.before(word)
        if not (self.text.after(word) and (is_first or before)):
            return SpokenWord(word.word if is_first or not before else f" {word.word}", at_s, joined=True)
        return SpokenWord(word.word, at_s, joined=False)
