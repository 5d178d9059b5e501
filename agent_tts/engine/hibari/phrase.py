"""When words of a sentence that is still being written are spoken, and how what is spoken of it is joined.

A voice sounds natural when it knows what comes next. All words of the sentence so far are therefore spoken together
again and again, of which those are heard that were not heard before, but for the last one: it waits for its successor,
as long as there is audio to play.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.text.chars import CLAUSE_MARKS, CLOSERS
from agent_tts.text.units import is_abbreviation

FIRST_WORDS = 3  # words with which a text begins that is still being written
FIRST_WAIT_S = 0.25  # after which it begins with fewer
FIRST_MOST = 7  # words that are spoken together before anything is heard: 20 ms of a core
AHEAD_S = 0.6  # audio left to play below which words are spoken, of a sentence that is not complete
LOW_S = 0.3  # audio left to play below which the last word does not wait for its successor
MAX_CHARS = 240  # of the words that wait; with those before them, `speech.MAX_PHONEMES` of most texts
MAX_BEFORE = 12  # words that were heard and are spoken again, which bounds what a word costs in a long sentence

FADE = round(0.010 * SAMPLE_RATE)  # samples of a cross-fade
SEARCH = round(0.004 * SAMPLE_RATE)  # samples by which it moves to where both sounds are most alike: a period of 125 Hz
# Samples of silence behind the last word so far: in mid-phrase, where a clause ends as at a comma in a whole sentence,
# and where a sentence ends.
TAIL, CLAUSE_PAUSE, SENTENCE_PAUSE = (round(seconds * SAMPLE_RATE) for seconds in (0.040, 0.150, 0.350))

_SENTENCE_ENDS = frozenset(".!?…")
_CLOSERS = "".join(CLOSERS) + " "


def ends_sentence(word: str) -> bool:
    bare = word.rstrip(_CLOSERS)
    return bare[-1:] in _SENTENCE_ENDS and not is_abbreviation(bare)


def ends_clause(word: str) -> bool:
    bare = word.rstrip(_CLOSERS)
    return bare[-1:] in CLAUSE_MARKS and not is_abbreviation(bare)


def pause_behind(word: str) -> int:
    """In samples, behind a word after which nothing is known to come."""
    return SENTENCE_PAUSE if ends_sentence(word) else CLAUSE_PAUSE if ends_clause(word) else TAIL


class Due(NamedTuple):
    together: int = 0  # words to speak together with those before
    heard: int = 0  # of them, the first ones that are heard


def due(waiting: int, *, closed: bool, at_clause_end: bool, left_s: float, waited_s: float) -> Due:
    """Which of the words to speak now that wait; none: `Due()`.

    Args:
        closed: nothing comes that belongs to the sentence.
        at_clause_end: the last of the words has a pause behind it.
        left_s: audio that the listener has not heard.
        waited_s: how long the first of the words has waited.
    """
    if waiting and left_s <= 0:
        if waiting > FIRST_MOST:
            return Due(FIRST_MOST, FIRST_MOST - 1)
        if not (closed or waiting >= FIRST_WORDS or waited_s >= FIRST_WAIT_S):
            return Due()
    elif not (closed or (waiting > 1 and left_s < AHEAD_S) or (waiting and left_s < LOW_S)):
        return Due()
    all_heard = closed or at_clause_end or waiting == 1
    return Due(waiting, waiting if all_heard else waiting - 1)


def joined(before: NDArray[np.float32], samples: NDArray[np.float32], start: int, end: int) -> NDArray[np.float32]:
    """`samples[start:end]` as the continuation of other samples that would have gone on with `before`.

    The start moves to where the sound is most like `before`, and both are cross-faded.
    """
    fade = min(FADE, len(before), end - start)
    if fade < FADE:
        return samples[start:end].copy()
    low = max(0, start - SEARCH)
    places = np.lib.stride_tricks.sliding_window_view(samples[low : start + SEARCH + fade], fade)
    power = np.sqrt(np.sum(places**2, axis=1)) + 1.0
    start = min(low + int(np.argmax(places @ before[:fade] / power)), end - fade)
    ramp: NDArray[Any] = np.linspace(0.0, 1.0, fade, endpoint=False, dtype=np.float32)
    made = samples[start:end].copy()
    made[:fade] = made[:fade] * ramp + before[:fade] * (1 - ramp)
    return made
