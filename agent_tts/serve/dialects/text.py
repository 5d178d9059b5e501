"""What adapters do with their clients' text: spaces between sentences, and a limit for what waits. Pure."""

from __future__ import annotations

import re

from agent_tts.errors import TextTooLong

# What may stand behind the punctuation of a sentence: quotes, brackets, tags.
_CLOSERS = r"(?:[\"'”’)\]]|</?[A-Za-z][^<>]{0,128}>)*$"
_END = re.compile(r"[.!?…]" + _CLOSERS)
END_CHARS = 512  # of a text, in which its end is looked for: in 64 kB it takes 20 ms
# A sentence of several words whose end cannot be the start of a number or an abbreviation: "3." "e.g." "U.S."
_PLAIN_END = re.compile(r"\s\S*([^\W\d_]{2}[.!?…]|[!?…])" + _CLOSERS)


def spaced(text: str, *, is_whole: bool) -> str:
    """The text, with a space after it if it ends a sentence.

    Unless the client sends whole sentences, it may be a token of an LLM, and only several words count as a sentence.
    """
    return f"{text} " if (_END if is_whole else _PLAIN_END).search(text[-END_CHARS:]) else text


# Text that may wait, in characters; each message counts for MESSAGE_COST more.
MAX_WAITING = 250_000
MESSAGE_COST = 100


class WaitingBudget:
    """Limits the messages that wait; `refusal` is the message of the error."""

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal
        # What all messages that wait cost, by the measure of `MAX_WAITING`.
        self._cost = 0

    def add(self, chars: int) -> None:
        """A message is to wait; raises `TextTooLong`, and adds nothing, when too much waits already."""
        if self._cost + chars + MESSAGE_COST > MAX_WAITING:
            raise TextTooLong(self._refusal)
        self._cost += chars + MESSAGE_COST

    def remove(self, chars: int) -> None:
        self._cost -= chars + MESSAGE_COST

    def clear(self) -> None:
        self._cost = 0
