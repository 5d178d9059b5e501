"""When each character is spoken, as ElevenLabs' clients are told: words spread over their letters. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from agent_tts.protocol.context import Word


@dataclass(frozen=True, slots=True)
class Character:
    """A character of the text, in milliseconds from the first sample."""

    char: str
    start_ms: int
    end_ms: int


class Characters:
    """The characters of one text, in its order and without gaps in what is told: a word, a space, a word, a space.

    The white space between words is one space, whatever it was, and stands behind the last word too: clients take a
    word for complete when they see it.
    """

    def __init__(self) -> None:
        # End of the last character; times never go back, even where better ones become known.
        self.end_ms = 0

    def of(self, words: list[Word]) -> list[Character]:
        """The characters of the next words; all letters of a word take the same time."""
        told: list[Character] = []
        for word in words:
            start = max(word.start_ms, self.end_ms)
            end = max(word.end_ms, start)
            text = word.word
            edges = [start + (end - start) * index // len(text) for index in range(len(text) + 1)]
            told += map(Character, text, edges, edges[1:])
            told.append(Character(" ", end, end))
            self.end_ms = end
        return told
