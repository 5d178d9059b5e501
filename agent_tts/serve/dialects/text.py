"""What adapters do with their clients' text: spaces between sentences. Pure."""

from __future__ import annotations

import re

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
