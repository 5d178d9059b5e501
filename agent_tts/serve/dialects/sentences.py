"""Adds the space between sentences that clients send one by one without it. Pure."""

from __future__ import annotations

import re

_END = re.compile(r"[.!?…][\"'”’)\]]*$")
# A sentence of several words whose end cannot be the start of a number or an abbreviation: "3." "e.g." "U.S."
_PLAIN_END = re.compile(r"\s\S*([^\W\d_]{2}[.!?…]|[!?…])[\"'”’)\]]*$")


def spaced(text: str, *, is_whole: bool) -> str:
    """The text, with a space after it if it ends a sentence.

    Args:
        is_whole: whether the client sends whole sentences; otherwise the text may be a token of an LLM, and only
            several words count as a sentence.
    """
    return f"{text} " if (_END if is_whole else _PLAIN_END).search(text) else text
