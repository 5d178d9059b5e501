"""Sentences that clients send one by one, without the space between them: their words would become one. Pure."""

from __future__ import annotations

import re

_END = re.compile(r"[.!?…][\"'”’)\]]*$")
# What cannot be the first piece of a number, an abbreviation or a name: "3." "e.g." "U.S."
_PLAIN_END = re.compile(r"\s\S*([^\W\d_]{2}[.!?…]|[!?…])[\"'”’)\]]*$")


def spaced(text: str, *, is_whole: bool) -> str:
    """The text, with a space behind it if a sentence ends there.

    Args:
        is_whole: whether the client is known to send whole sentences; otherwise it may be a token of an LLM, and only
            several words are taken for a sentence.
    """
    return f"{text} " if (_END if is_whole else _PLAIN_END).search(text) else text
