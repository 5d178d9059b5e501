"""Which text a listener has heard: one rule for a node and its clients. Pure.

`web/client.js` has it, too; both follow the cases of `tests/heard_text.json`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from agent_tts.messages import Word
from agent_tts.text.words import space


def split(
    text: str, count: int, timed: Callable[[int], Word], played_ms: float, wholes: Sequence[tuple[int, int]] = ()
) -> tuple[str, str]:
    """A text without tags as (heard, unheard). A word is heard once half of it is played.

    Args:
        count, timed: words or parts of them, in the order of text and time, by their number from 0 on; not all are
            asked for.
        wholes: beginnings and ends of parts that are heard as a whole, in text order.
    """
    heard = bisect_right(range(count), played_ms, key=lambda number: _middle_ms(timed(number)))
    return _split(text, heard, count, timed, wholes)


def heard_text(text: str, words: Sequence[Word], played_ms: float) -> tuple[str, str]:
    """A text as it was sent as (heard, unheard), both without its tags, which are in no word."""
    clean, placed, end = "", list[Word](), 0
    for word in words:
        gap = text[end : word.char_start]
        clean += space(gap, clean, word.word) if end or not gap.strip() else ""
        start = len(clean)
        clean += word.word
        placed.append(Word(word.word, word.start_ms, word.end_ms, start, len(clean)))
        end = word.char_end
    rest = text[end:]
    clean += "" if words and rest.strip() else rest
    # Times of different age need not be in order: a word is heard when all before it are, too.
    heard = next((number for number, word in enumerate(placed) if _middle_ms(word) > played_ms), len(placed))
    return _split(clean, heard, len(placed), placed.__getitem__)


def _middle_ms(word: Word) -> float:
    return (word.start_ms + word.end_ms) / 2


def _split(
    text: str, heard: int, count: int, timed: Callable[[int], Word], wholes: Sequence[tuple[int, int]] = ()
) -> tuple[str, str]:
    if heard == 0:
        return "", text
    at = timed(heard - 1).char_end
    limit = timed(heard).char_start if heard < count else len(text)
    while at < limit and not text[at].isspace() and not text[at].isalnum():
        at += 1  # punctuation belongs to the word before it
    whole = bisect_right(wholes, (at, 0)) - 1
    if whole >= 0 and at < wholes[whole][1]:
        at = wholes[whole][0]
    return text[:at], text[at:]
