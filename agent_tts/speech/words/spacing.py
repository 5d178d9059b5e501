"""The white space around words as they are handed out, from the text of their context as it was sent. Pure."""

from __future__ import annotations

from agent_tts.messages import Word
from agent_tts.text.words import are_joined, space

AFTER_CHARS = 8  # behind a word, where another one may begin without white space


class Spacing:
    """Tags in the text are no words; see `agent_tts.text.words.space`."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        # Characters of it that were handed out, and their last word.
        self.passed = 0
        self._last = ""

    def write(self, text: str) -> None:
        self.text += text

    def before(self, word: Word) -> str:
        """The white space before the next word, which is handed out."""
        found = self._to(word.char_start, word.word)
        self.passed, self._last = word.char_end, word.word
        return found

    def after(self, word: Word) -> str:
        """The white space that is known to follow a word, as one space; "" where the next word may follow at once."""
        rest = self.text[word.char_end : word.char_end + AFTER_CHARS]
        return " " if rest[:1].isspace() or not are_joined(word.word, rest) else ""

    def rest(self) -> str:
        """The white space after the last word, once; "" if there is none."""
        found = self._to(len(self.text)) if self.passed else ""
        self.passed = len(self.text)
        return found

    def _to(self, end: int, word: str = "") -> str:
        gap = self.text[self.passed : end]
        if word and self.passed:
            return space(gap, self._last, word)
        return gap[: len(gap) - len(gap.lstrip())]
